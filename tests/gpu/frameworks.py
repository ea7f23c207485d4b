"""Checks with frameworks, where they are installed. Each runs in half of the card and alone, as the control."""

import re
import statistics
import sys
import time

from bench import GIB, HERE, MIB, Skip

# Of turns of two programs.
PAIRS = 10
ALLOCATORS = {
    "torch": {},
    "torch_with_expandable_segments": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "torch_with_cudaMallocAsync": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def start(bench, name, *words, part=0.5, env=None, flags=()):
    command = [sys.executable, str(HERE / "workloads.py"), name, *words]
    if part is None:
        return bench.alone(*command, **env or {})
    return bench.start("run", "--quiet", "--gpu", str(part), *flags, "--", *command, **env or {})


def needs_kernels(bench):
    if bench.nvml.simulated:
        raise Skip("simulated GPUs run no kernels")


def jobs_may_begin_with_a_context(bench):
    """`torch.cuda.set_device`, or pinned memory, then seconds of work on the CPU: what every rank and every data loader does."""
    seen = {}
    for way in ("set_device", "pinned"):
        bench.last_record(start(bench, "begin", way, part=None))
        seen[way] = bench.last_record(start(bench, "begin", way))
    return seen


def fills(name, env):
    """To the framework's own error with right figures in it, then on: frees a little, loads modules, computes."""

    def check(bench):
        computes = "no" if bench.nvml.simulated else "yes"
        base = bench.used()
        with bench.watched() as used:
            inside = start(bench, "fill", computes, env=env)
            full = bench.record(inside)
            on_card = bench.used() - base
            # Long enough for a sample.
            time.sleep(0.2)
            bench.go_on(inside)
            after = bench.last_record(inside)
        outside = start(bench, "fill", computes, part=None, env=env)
        control = bench.record(outside)
        bench.go_on(outside)
        bench.last_record(outside)
        facts = {"full": full, "after": after, "nvml_full_bytes": on_card, "nvml_max_bytes": max(used), "control_bytes": control["taken"]}
        assert full["total"] == bench.half() and full["taken"] > bench.half() - 4 * GIB, facts
        assert control["taken"] > bench.half(), facts
        assert max(used) <= bench.half(), facts
        said = re.search(r"total capacity of ([\d.]+) GiB", full["text"])
        assert not said or abs(float(said[1]) * GIB - bench.half()) < GIB // 50, facts
        return facts

    check.__name__ = f"{name}_fills_its_slice_and_goes_on"
    return check


def two_ranks_in_one_slice(bench):
    """Two processes that fill the slice together, and go on."""
    base = bench.used()
    inside = start(bench, "ranks", "2")
    full = bench.record(inside)
    used = bench.used() - base
    bench.go_on(inside)
    after = bench.last_record(inside)
    facts = {"full": full, "after": after, "nvml_bytes": used}
    assert used <= bench.half() and full["taken"] > bench.half() - 4 * GIB and after["codes"] == [0, 0], facts
    return facts


def workload(bench, name, env=None):
    """Runs it in half of the GPU, then alone as the control, and gives what both saw."""
    if name != "graph":
        needs_kernels(bench)
    with bench.watched() as used:
        inside = bench.last_record(start(bench, name, env=env))
    outside = bench.last_record(start(bench, name, part=None, env=env))
    assert inside["total"] == bench.half() and inside["over"] == "refused", inside
    assert outside["total"] > bench.half(), outside
    assert max(used) <= bench.half(), f"NVML saw {max(used)} of {bench.half()}"
    return inside, outside


def stays(name, workload_name, env=None):
    def check(bench):
        inside, _ = workload(bench, workload_name, env)
        return inside

    check.__name__ = f"{name}_stays_in_its_slice"
    return check


def computes(name, workload_name, env=None):
    """The same result as outside."""

    def check(bench):
        needs_kernels(bench)
        inside, outside = (bench.last_record(start(bench, workload_name, part=part, env=env)) for part in (0.5, None))
        assert inside == outside, (inside, outside)
        return inside

    check.__name__ = f"{name}_computes_as_outside"
    return check


def steps_take_as_long_in_a_slice(bench):
    """Time of steps in a slice divided by the time alone. Two programs take turns of some steps each, so that a card that warms up counts on both sides, and
    each pair has the clock of the card: 1 % would show."""
    needs_kernels(bench)
    programs = {part: start(bench, "steps", part=part) for part in (0.5, None)}
    for program in programs.values():
        bench.record(program)
    report = {}
    for what in ("train", "infer"):
        pairs = []
        for turn in range(PAIRS):
            took = {}
            # Who begins changes.
            for part in sorted(programs, key=str, reverse=turn % 2 == 1):
                programs[part].stdin.write(f"{what}\n")
                programs[part].stdin.flush()
                took[part] = bench.record(programs[part])["ms"]
            pairs.append({"ratio": round(took[0.5] / took[None], 4), "alone_ms": round(took[None], 4), "mhz": bench.nvml.clock_mhz()})
        ratios = sorted(pair["ratio"] for pair in pairs)
        report[what] = {"median": statistics.median(ratios), "pairs": pairs}
    assert all(report[what]["median"] < 1.01 for what in report), report
    return report
