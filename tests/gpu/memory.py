"""Checks of what the driver does with memory that programs take in unusual ways: graphs, handles, small arrays, suspended processes, modules on a card that is
let in full. Each runs in half of the card and alone, as the control; what is only learned, and not judged, is recorded."""

import json
import sys

import access
from bench import MIB, Skip
from frameworks import needs_kernels, start

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


def a_captured_step_replays(bench):
    """A training step of PyTorch, captured and replayed with `cudaMallocAsync`: what fits eagerly fits captured."""
    needs_kernels(bench)
    env = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}
    inside, outside = (bench.last_record(start(bench, "captured_step", part=part, env=env)) for part in (0.5, None))
    assert inside["replays"] == outside["replays"] and inside["loss"] == outside["loss"], (inside, outside)
    return {"inside": inside, "outside": outside}


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


CHECKS = [graph_memory, a_captured_step_replays, modules_beside_a_neighbor, handles_and_small_arrays, suspended_and_resumed]
# Their seconds, guessed until a card has run them.
GUESSED = {"graph_memory": 25, "a_captured_step_replays": 25, "modules_beside_a_neighbor": 12, "handles_and_small_arrays": 8, "suspended_and_resumed": 20}
