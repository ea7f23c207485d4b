"""Checks of what the driver does with memory that programs take in unusual ways: graphs, handles, small arrays, suspended processes, modules on a card that is
let in full. Each runs in half of the card and alone, as the control; what is only learned, and not judged, is recorded."""

import json
import sys

import access
from bench import CANTLE, GIB, HERE, MIB, Skip
from frameworks import ALLOCATORS, needs_kernels, start

GRAPHS = ("reuse", "together", "auto_free", "captured", "freed_between", "freed_by_another")
# What a driver does here is its own affair, or only new ones have it: it is recorded.
LEARNED = ("concurrent", "on_host", "managed")


def seen(bench, child, base):
    """What a program says, and what it has on the card while it waits. One that breaks says nothing."""
    line = child.stdout.readline()
    facts = {**(json.loads(line) if line else {"codes": None}), "nvml_bytes": bench.used() - base}
    errors = child.communicate(timeout=bench.time_left())[1]
    return facts if line else {**facts, "error": errors[-300:]}


def graph_memory(bench):
    """Graphs that reuse memory, keep some, or do both at the same time (ADR 0061). The same codes as outside, and never more than the slice."""
    command, facts = [sys.executable, str(access.BYPASS / "graphs.py")], {}
    ways = {"inside": lambda *words: bench.start("run", "--quiet", "--gpu", "0.5", "--", *words), "outside": bench.alone}
    base = bench.used()
    for way in (*GRAPHS, *LEARNED):
        bench.settle(base)
        facts[way] = {side: seen(bench, begin(*command, way), base) for side, begin in ways.items()}
        assert facts[way]["inside"]["nvml_bytes"] <= bench.half(), facts
    codes = {way: [facts[way][side]["codes"] for side in ("inside", "outside")] for way in GRAPHS}
    differ = [way for way, (inside, outside) in codes.items() if inside != outside or inside is None]
    assert not differ, (differ, facts)
    return facts


def a_captured_step(name):
    """A training step of PyTorch, captured and replayed with an allocator: what fits eagerly fits captured."""

    def check(bench):
        needs_kernels(bench)
        inside, outside = (bench.last_record(start(bench, "captured_step", part=part, env=ALLOCATORS[name])) for part in (0.5, None))
        assert inside["replays"] == outside["replays"] and inside["loss"] == outside["loss"], (inside, outside)
        return {"inside": inside, "outside": outside}

    check.__name__ = f"a_captured_step_of_{name}_replays"
    return check


def modules_beside_a_neighbor(bench):
    """The other half of the card is full. A program fills its half, then loads cuBLAS and cuDNN for the first time."""
    needs_kernels(bench)
    neighbor = bench.job("fill")
    bench.record(neighbor)
    inside = start(bench, "fill", "yes")
    full = bench.record(inside)
    bench.go_on(inside)
    out, errors = inside.communicate(timeout=bench.time_left())
    facts = {"full": full, "code": inside.returncode, "after": out.splitlines()[-1:], "errors": errors[-500:]}
    bench.go_on(neighbor)
    # The error of CUDA, or none; not a kill.
    assert inside.returncode in (0, 1), facts
    return facts


def modules_in_their_reserve(bench):
    """The same with a reserve for modules: the program goes on, whatever the neighbor has."""
    needs_kernels(bench)
    neighbor = bench.job("fill")
    bench.record(neighbor)
    command = [sys.executable, str(HERE / "workloads.py"), "fill", "yes"]
    inside = bench.start("run", "--quiet", "--gpu", "0.5", "--module-reserve", "1Gi", "--", *command)
    full = bench.record(inside)
    bench.go_on(inside)
    after = bench.last_record(inside)
    bench.go_on(neighbor)
    return {"full": full, "after": after}


def exports_stay_charged(bench):
    """Memory that only descriptors keep, in half of the card and outside; then as much again."""
    base, most = bench.used(), str((bench.half() + 4 * GIB) // MIB)
    facts = {}
    for side, part in (("inside", 0.5), ("outside", None)):
        child = bench.job("exports", most, part=part)
        first = bench.record(child)
        facts[side] = {"full": first, "nvml_bytes": bench.used() - base}
        facts[side] |= {"after": bench.last_record(child)}
        bench.settle(base)
    inside, outside = facts["inside"], facts["outside"]
    assert outside["full"]["kept"] > bench.half() and not outside["full"]["code"], facts
    assert inside["full"]["code"] == 2 and inside["nvml_bytes"] <= bench.half(), facts
    assert inside["after"]["again"] >= inside["full"]["kept"], facts
    return facts


def a_profiler_asks_in_each_callback(bench):
    """A subscriber of CUPTI that asks for the free memory, and sometimes allocates, at the beginning and the end of each call of the driver."""
    needs_kernels(bench)
    command = [sys.executable, str(HERE / "profiled.py")]
    inside = bench.last_record(bench.start("run", "--quiet", "--gpu", "0.5", "--", *command))
    outside = bench.last_record(bench.alone(*command))
    # The filter's own questions to the driver are calls, too.
    assert inside["codes"] == outside["codes"] == [0] and inside["callbacks"] >= outside["callbacks"] > 1000, (inside, outside)
    return {"inside": inside, "outside": outside}


def figures_of_processes_are_there(bench):
    """Without them the watchdog has only sums (ADR 0075)."""
    done = bench.alone(CANTLE, "-o", "json", "doctor")
    out, errors = done.communicate(timeout=bench.time_left())
    found = [item for item in json.loads(out)["items"] if item["check"] == "watchdog"]
    assert found and all(item["verdict"] == "good" for item in found), (found, errors[-500:])
    return {"found": [item["found"] for item in found]}


def handles_and_small_arrays(bench):
    """Whether the driver gives out handle values again, and what small arrays take: charged against NVML's growth."""
    inside, outside = (bench.last_record(bench.job("handles", part=part)) for part in (0.5, None))
    base = bench.used()
    arrays = {}
    for name, size in (("4_kib", 32), ("300_kib", 277)):
        child = bench.job("arrays", str(size))
        record = bench.record(child)
        arrays[name] = {**record, "nvml_bytes": bench.used() - base}
        child.communicate(timeout=bench.time_left())
        bench.settle(base)
        assert arrays[name]["nvml_bytes"] <= bench.half() - record["free"] + 64 * MIB, arrays
    return {"inside": inside, "outside": outside, "arrays": arrays}


def suspended_and_resumed(bench):
    """Seconds per GiB to bring a process of a slice to host memory and back, and what the card and the slice show meanwhile."""
    child = bench.job("suspend")
    record = bench.last_record(child)
    if record["codes"][0] == 801:
        raise Skip("this driver suspends no process (before 570), or not this one")
    assert set(record["codes"]) == {0}, record
    return record


# With their seconds, guessed until a card has run them.
GUESSED = {
    graph_memory: 25,
    a_captured_step("torch_with_cudaMallocAsync"): 25,
    modules_beside_a_neighbor: 12,
    modules_in_their_reserve: 12,
    exports_stay_charged: 8,
    a_profiler_asks_in_each_callback: 10,
    handles_and_small_arrays: 8,
    figures_of_processes_are_there: 2,
    suspended_and_resumed: 20,
}
CHECKS = list(GUESSED)
# The allocators of which less is expected.
LATER = {a_captured_step(name): 20 for name in ("torch", "torch_with_expandable_segments")}
