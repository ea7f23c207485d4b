"""Checks with frameworks, where they are installed. Each runs in half of the card and alone, as the control."""

import re
import statistics
import sys
import time

from bench import GIB, HERE, MIB, Skip

ALLOCATORS = {
    "torch": {},
    "torch_with_expandable_segments": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "torch_with_cudaMallocAsync": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def start(bench, name, *words, part=0.5, env=None):
    command = [sys.executable, str(HERE / "workloads.py"), name, *words]
    if part is None:
        return bench.alone(*command, **env or {})
    return bench.start("run", "--quiet", "--gpu", str(part), "--", *command, **env or {})


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


def training_and_inference_cost_nothing(bench):
    """Time of a step in a slice divided by the time alone, in pairs, so that a card that warms up counts on both sides."""
    needs_kernels(bench)
    pairs = [workload(bench, "torch") for _ in range(5)]
    report = {}
    for what in ("train_ms", "infer_ms"):
        ratios = sorted(inside[what] / outside[what] for inside, outside in pairs)
        report[what.replace("_ms", "_time_ratios")] = ratios
        assert statistics.median(ratios) < 1.02, f"{what}: {ratios}"
    return report
