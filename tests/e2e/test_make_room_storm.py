"""Tasks of two projects come and go while quotas, priorities and hands suspend them and bring them back, and the agent is killed between. No
task runs twice at once, none is on two GPUs, no memory is given out twice, and all of them come to their end.

CANTLE_STORM_STEPS sets the number of steps, CANTLE_STORM_SEED repeats a run."""

import os
import random
import signal
import sys
import time

import pytest

from conftest import own_port, wait_until
from test_quotas import GIB, kinds
from test_suspend import TASK

STEPS = int(os.environ.get("CANTLE_STORM_STEPS", "30"))
SEED = int(os.environ.get("CANTLE_STORM_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
GPUS = 2
SIZES = ("0.25", "0.5", "0.5", "1")
LEAST, MOST = 6, 12

# It says each of its starts, and holds a lock while it runs: a second process of the same task would find it.
PROGRAM = TASK.split("for line")[0] + """
import fcntl
task = os.environ["CLEARML_TASK_ID"]
lock = open(f"{folder}/{task}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(f"{folder}/twice", "a").write(task + "\\n")
    raise
open(f"{folder}/{task}.starts", "a").write("started\\n")
assert alloc(1 << 30)[0] == 0
while not os.path.exists(f"{folder}/{task}.end"): time.sleep(0.1)
"""


class Storm:
    def __init__(self, cantle, folder):
        self.cantle, self.folder, self.dice, self.port = cantle, folder, random.Random(SEED), own_port()
        self.tasks, self.done, self.up = [], [], None
        self.begin_agent()
        cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue")
        for project in "ab":
            cantle.cli("quota", "set", project, "--gpu", "1")

    def begin_agent(self):
        self.up = self.cantle.up("--queue", "q=task", "--keep-tasks", port=self.port)

    def rows(self):
        return self.cantle.json("ps")

    def states(self):
        """One line of each task, for a failure."""
        return SEED, [(task, self.cantle.task(task)) for task in self.tasks], self.rows()

    def submit(self):
        size, project = self.dice.choice(SIZES), self.dice.choice("ab")
        priority = self.dice.choice(("0", "0", "5"))
        program = f"folder = {str(self.folder)!r}\n" + PROGRAM
        flags = ("--gpu", size, "--project", project, "--priority", priority)
        self.tasks.append(self.cantle.submit("q", sys.executable, "-c", program, flags=flags))

    def end(self):
        task = self.tasks.pop(self.dice.randrange(len(self.tasks)))
        (self.folder / f"{task}.end").touch()
        self.done.append(task)

    def kill_agent(self):
        self.up.send_signal(signal.SIGKILL)
        self.up.wait()
        self.begin_agent()

    def by_hand(self, word):
        self.cantle.cli(word, self.dice.choice(self.tasks), code=None)

    def step(self):
        if len(self.tasks) < LEAST:
            return self.submit()
        what = self.dice.choice(("submit", "submit", "submit", "end", "end", "kill", "suspend", "resume"))
        if what == "submit" and len(self.tasks) < MOST:
            return self.submit()
        if what == "kill":
            return self.kill_agent()
        if what in ("suspend", "resume"):
            return self.by_hand(what)
        return self.end()

    def check(self):
        assert not (self.folder / "twice").exists(), ((self.folder / "twice").read_text(), self.states())
        places, limits = {}, [0] * GPUS
        for row in self.rows():
            if row["state"] == "running":
                places.setdefault(row["task"], set()).add(row["gpu"])
                limits[row["gpu"]] += row["memory_limit_bytes"]
        assert all(len(gpus) == 1 for gpus in places.values()), self.states()
        assert all(limit <= 40 * GIB for limit in limits), self.states()

    def finish(self):
        """All end, those that a hand suspended after a hand brought them back."""
        while self.tasks:
            self.end()
        end = time.monotonic() + 180
        while open := [task for task in self.cantle.json("tasks") if task["state"] != "completed"]:
            failed = [(task, self.cantle.output(task["id"])) for task in open if task["state"] == "failed"]
            assert not failed and time.monotonic() < end, (SEED, failed, open, self.rows())
            for row in self.rows():
                if row["state"] == "suspended":
                    self.cantle.cli("resume", row["task"], code=None)
            self.check()


@pytest.mark.full
def test_a_storm(make_cantle, tmp_path):
    cantle = make_cantle("2xA100-40GB")
    cantle.machine.model("checkpoint_mib_per_s=4096")
    storm = Storm(cantle, tmp_path)
    for _ in range(STEPS):
        storm.step()
        time.sleep(storm.dice.random())
        storm.check()
    storm.finish()
    reclaims = 0
    for task in storm.done:
        starts = len((tmp_path / f"{task}.starts").read_text().splitlines())
        events = kinds(cantle, task)
        reclaims += events.count("reclaim") + events.count("preempt") + events.count("suspend")
        assert starts == 1 or "requeue" in events or events.count("place") > 1, (SEED, task, starts, events)
    print(f"{len(storm.done)} tasks, {reclaims} times one made room")
    wait_until(lambda: cantle.json("ps") == [], 60, lambda: cantle.json("ps"))
    assert cantle.used() == [0] * GPUS and cantle.machine.checkpoints() == []
