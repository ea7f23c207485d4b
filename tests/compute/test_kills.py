"""Processes killed at random while all slices are full of work: no process waits for a dead one, and no gate stays shut.

Every millisecond or so the driver's count of GPU time is read. A stretch without any is one in which all slices waited. On a busy machine
threads wake up late too, so the same is measured without kills first. The promised 20 ms are checked in a model (`cargo test -p cantle-arbiter`)."""

import os
import random
import signal
import time

import pytest

SLICES = int(os.environ.get("CANTLE_TEST_SLICES", 8))
SECONDS = float(os.environ.get("CANTLE_TEST_KILL_S", 5))
# Interval of kills: each process is killed as often, however many there are. To start one again takes a processor longer than to
# kill it.
PAUSE_S = 0.05 * max(1, SLICES / 8)
# The tenants are ordinary programs, as at a customer's: the arbiter and this test run before them. As real-time programs (conftest.py), each would
# keep a processor for 100 ms at a time, and the arbiter would have to wait behind all that start again.
ORDINARY = ("chrt", "--other", "0")
# The bound in place of 20 ms on a machine where everything waits for a processor. A gate that stays shut is shut
# forever.
STALL_S_MAX = 2


class Stalls:
    """The longest stretches in which the GPU did nothing, until `act` says that enough time has passed."""

    def __init__(self, machine, seconds, act):
        began = asked = time.monotonic()
        worked_at, before, self.stretches, self.longest_look = began, None, [], 0.0
        while asked < began + seconds:
            worked = machine.truth()[0]["gpu_time_us"]
            looked = time.monotonic()
            self.longest_look = max(self.longest_look, looked - asked)
            if worked != before:
                # It worked between the two answers: at the latest until the former was asked for.
                self.stretches.append(max(0, asked - worked_at))
                worked_at, before = looked, worked
            act(looked)
            asked = time.monotonic()
        self.stretches.append(max(0, asked - worked_at))
        self.stretches.sort()

    def __str__(self):
        count = len(self.stretches)
        return f"longest {self.stretches[-1] * 1e3:.0f} ms, p99 {self.stretches[count * 99 // 100] * 1e3:.1f} ms of {count} (a look took {self.longest_look * 1e3:.0f} ms at most)"


def test_nobody_waits_for_the_dead_and_no_gate_stays_shut(box, tmp_path):
    part = str(1 / SLICES)[:5]
    rng = random.Random(SLICES)
    kernels_us = [20, 200, 1000, 5000]
    # All begin at once: the last of 64 would find a machine so busy that the driver answers no call in time.
    begin = tmp_path / "begin"
    lasting = SECONDS * 3 + 120
    tenants = [box.tenant(part, "async", kernels_us[at % 4], lasting, forever=begin, under=ORDINARY) for at in range(SLICES)]
    begin.touch()
    until = time.monotonic() + 60
    while len(box.machine.truth()[0]["processes"]) < SLICES:
        assert time.monotonic() < until, "not all programs have begun"
        time.sleep(0.2)
    calm = Stalls(box.machine, 2, lambda now: time.sleep(0.001))
    killed, next_kill = 0, time.monotonic()

    def kill(now):
        nonlocal killed, next_kill
        if now < next_kill:
            return time.sleep(0.001)
        next_kill = now + rng.uniform(0, 2 * PAUSE_S)
        pids = [process["pid"] for process in box.machine.truth()[0]["processes"]]
        # Where the others still have to start, the GPU would have nothing to do.
        if len(pids) > SLICES // 2:
            try:
                os.kill(rng.choice(pids), signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass

    stalls = Stalls(box.machine, SECONDS, kill)
    print(f"{SLICES} slices, {killed} processes killed in {SECONDS:.0f} s; without GPU time: {stalls}; before: {calm}")
    assert killed >= 5
    assert stalls.stretches[-1] <= max(STALL_S_MAX, 2 * calm.stretches[-1])
    had, shut = [0.0] * SLICES, range(SLICES)
    until = time.monotonic() + 60
    while shut:
        assert time.monotonic() < until, f"gates that stay shut: {shut}"
        now, _ = box.had(tenants, 1)
        had = [before + more for before, more in zip(had, now)]
        shut = [at for at, each in enumerate(had) if each == 0]
