"""Random suspensions, resumptions, moves and resizes, with kills of the command, its helper and the tasks between. After each step the driver's
record is compared with the leases: no task is lost, none is on two GPUs, and no memory is given out twice.

CANTLE_STORM_STEPS sets the number of steps, CANTLE_STORM_SEED repeats a run."""

import os
import random
import signal
import time

import pytest

from conftest import wait_until
from test_suspend import GIB, deepest, helpers, start  # noqa: F401  the fixture

STEPS = int(os.environ.get("CANTLE_STORM_STEPS", "40"))
SEED = int(os.environ.get("CANTLE_STORM_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
GPUS = 2
SIZES = ("0.2", "0.3", "0.4")


class Storm:
    def __init__(self, start):
        self.start, self.cantle, self.dice = start, start.cantle, random.Random(SEED)
        self.tasks, self.lost = [], 0

    def rows(self):
        return {row["task"]: row for row in self.cantle.json("ps")}

    def begin(self):
        task = self.start("--gpu", self.dice.choice(SIZES), "--timeout", "60")
        task.bytes = self.dice.randrange(1, 5) * GIB // 4
        assert task.ask(f"alloc({task.bytes})")[0] == 0
        self.tasks.append(task)

    def words(self, task):
        gpu = str(self.dice.randrange(GPUS))
        return self.dice.choice((
            ("suspend", task.id), ("suspend", task.id), ("resume", task.id), ("resume", task.id, "--gpu", gpu), ("move", task.id, "--gpu", gpu),
            ("resize", task.id, "--gpu", self.dice.choice(SIZES)),
        ))

    def step(self):
        task = self.dice.choice(self.tasks)
        words, fate = self.words(task), self.dice.choice(("live",) * 4 + ("command", "helper", "task"))
        if fate == "live":
            done = self.cantle.cli(*words, code=None)
            assert done.returncode in (0, 6, 8), (words, done.stderr)
            return words
        child = self.cantle.start(*words, log="storm.log")
        time.sleep(self.dice.random() * 0.6)
        self.kill(fate, task, child)
        child.wait(timeout=120)
        return (*words, f"with the {fate} killed")

    def kill(self, fate, task, child):
        try:
            if fate == "task":
                self.end(task)
            elif fate == "helper" and (found := helpers(child.pid)):
                os.kill(found[0], signal.SIGKILL)
            elif fate == "command":
                os.kill(deepest(child.pid), signal.SIGKILL)
        except (ProcessLookupError, IndexError):
            pass  # It was faster.

    def pids(self, task):
        """The processes of a task. It has two rows on its way to another GPU, and for a moment none when it comes or goes."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            if found := {pid for row in self.cantle.json("ps") if row["task"] == task.id for pid in row["pids"]}:
                return found
        return set()

    def end(self, task):
        self.tasks.remove(task)
        for pid in self.pids(task):
            os.kill(pid, signal.SIGKILL)
        task.child.wait(timeout=60)
        self.begin()

    def settle(self, what):
        wait_until(lambda: all(row["state"] in ("running", "suspended") for row in self.rows().values()), 60, lambda: (SEED, what, self.rows()))
        self.check(what)

    def check(self, what):
        context = (SEED, what, [task.log.read_text() for task in self.tasks])
        # The lease of one that was killed goes in a moment.
        wait_until(lambda: len(self.rows()) == len(self.tasks), 60, lambda: (context, self.rows(), [task.id for task in self.tasks]))
        rows, truth = self.rows(), self.cantle.machine.truth()
        assert set(rows) == {task.id for task in self.tasks}, (context, rows)
        limits, parked = [0] * GPUS, 0
        for task in self.tasks:
            row = rows[task.id]
            holds = [gpu for gpu in range(GPUS) if any(process["pid"] in row["pids"] for process in truth[gpu]["processes"])]
            if row["state"] == "running":
                assert holds == [row["gpu"]], (context, row, truth)
                limits[row["gpu"]] += row["memory_limit_bytes"]
            else:
                assert holds == [] and row["parked_bytes"] > task.bytes, (context, row, truth)
                parked += 1
        assert all(limit <= 40 * GIB for limit in limits), (context, limits)
        assert len(self.cantle.machine.checkpoints()) == parked, (context, self.cantle.machine.checkpoints(), rows)


@pytest.mark.full
def test_a_storm(start):  # noqa: F811
    storm = Storm(start)
    storm.cantle.machine.model("checkpoint_mib_per_s=4096")
    for _ in range(3):
        storm.begin()
    for number in range(STEPS):
        storm.settle((number, storm.step()))
    for task in storm.tasks:
        storm.cantle.cli("resume", task.id, code=None)
    storm.settle("all are back")
    assert all(row["state"] == "running" for row in storm.rows().values()), storm.rows()
    for task in storm.tasks:
        assert task.ask("info()")[0] >= 0, "it computes"
        assert task.end() == 0
    assert [gpu["used_bytes"] for gpu in storm.cantle.machine.truth()] == [0] * GPUS and storm.cantle.machine.checkpoints() == []
