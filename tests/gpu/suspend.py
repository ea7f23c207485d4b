"""Checks of suspension on a card: `--only suspend` runs them, in three minutes at most. What takes how long is recorded, and judged is only whether the memory is
free meanwhile and everything comes back."""

import json
import sys
import time

from bench import CANTLE, GIB, HERE, MIB, Skip

SIZES_GIB = (1, 10, 40)
# A loop with a CUDA graph, and a suspension each time that it says so.
SUSPENSIONS = 5


def tasks(bench):
    return json.loads(bench.run("-o", "json", "ps").stdout)["items"]


def cantle_does(bench, *words):
    """How long a command took, and what it said. A driver that cannot do it skips the check."""
    began = time.monotonic()
    child = bench.alone(CANTLE, *words)
    _, errors = child.communicate(timeout=bench.time_left())
    if child.returncode == 8 and "older than" in errors:
        raise Skip(errors.strip().splitlines()[0])
    assert child.returncode == 0, f"{words}: exit {child.returncode}: {errors[-1000:]}"
    return round(time.monotonic() - began, 3)


def suspend_by_size(bench):
    """Seconds of the driver's calls for 1, 10 and 40 GiB, by a helper that has called `cuInit` long before, and what `cuInit` itself takes."""
    record = {"sizes": {}}
    for gib in SIZES_GIB:
        if gib * GIB > bench.part(0.9):
            continue
        child = bench.job("suspend_calls", str(gib * GIB), part=None)
        facts = bench.last_record(child)
        if facts["codes"][0] == 801:
            raise Skip("this driver suspends no process (before 570)")
        assert set(facts["codes"]) == {0}, facts
        record["sizes"][gib] = facts
    return record


def suspend_a_task(bench):
    """A task in half of the card: its memory is free while it is suspended, by NVML's figures, and a neighbor gets all of the card."""
    base = bench.used()
    child = bench.job("keep", str(min(4 * GIB, bench.part(0.3))))
    bench.record(child)
    held = bench.used() - base
    (task,) = [row["task"] for row in tasks(bench)]
    seconds = {"suspend": cantle_does(bench, "suspend", task, "--timeout", "60")}
    free = bench.used() - base
    assert free <= 64 * MIB, f"{free >> 20} MiB are still in use of {held >> 20}"
    whole = bench.start("run", "--quiet", "--gpus", "1", "--", sys.executable, str(HERE / "jobs.py"), "keep", str(bench.part(0.8)))
    assert bench.record(whole)["address"], "all of the card is there for another one"
    bench.go_on(whole)
    assert whole.wait(timeout=bench.time_left()) == 0
    bench.settle(base + 64 * MIB)
    seconds["resume"] = cantle_does(bench, "resume", task)
    back = bench.used() - base
    assert abs(back - held) <= 256 * MIB, (held, back)
    bench.go_on(child)
    assert child.wait(timeout=bench.time_left()) == 0
    return {"held_bytes": held, "while_suspended_bytes": free, "back_bytes": back, "seconds_with_the_start_of_a_helper": seconds}


def suspend_a_training_loop(bench):
    """A PyTorch loop with a CUDA graph: the losses of a run with five suspensions are those of a run without, bit by bit."""
    plain = bench.last_record(bench.job("graph_loop", "0"))["losses"]
    child = bench.job("graph_loop", str(SUSPENSIONS))
    task, seconds = None, []
    for _ in range(SUSPENSIONS):
        bench.record(child)
        task = task or tasks(bench)[0]["task"]
        seconds.append((cantle_does(bench, "suspend", task, "--timeout", "60"), cantle_does(bench, "resume", task)))
        bench.go_on(child)
    losses = bench.last_record(child)["losses"]
    assert losses == plain, {"plain": plain[-3:], "suspended": losses[-3:]}
    return {"steps": len(losses), "seconds": seconds}


def suspend_refusals(bench):
    """What the driver says to a process that it cannot suspend: with managed memory, and with exported memory."""
    codes = {way: bench.last_record(bench.job("suspend_calls", str(64 * MIB), way, part=None)) for way in ("managed", "ipc")}
    return {"codes": {way: facts["codes"] for way, facts in codes.items()}}


GUESSED = {suspend_a_task: 30, suspend_by_size: 60, suspend_a_training_loop: 60, suspend_refusals: 20}
CHECKS = list(GUESSED)
