"""A lost node whose tasks are in containers: no container outlives its fence, and one that comes back late neither runs on nor is
reported. The node `first` is this machine with its engine. The node `second` has a GPU of this machine and files of its own; its tasks
are processes."""

import contextlib
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import time

import pytest

from conftest import IMAGE, installation

AFTER_S = 10
# What the server allows a node for the end of a run; crates/service/server/src/sweep.rs.
SLACK_S = 5
wait_until = installation.wait_until
# Another machine for all that cantle keeps; its GPUs are the machine's.
ELSEWHERE = """
mount --bind /var/lib/cantle/sim /mnt
for each in /run/cantle /var/lib/cantle; do mount -t tmpfs tmpfs $each; done
mkdir /var/lib/cantle/sim && mount --move /mnt /var/lib/cantle/sim
touch /run/cantle/lock /dev/shm/cantle.lock && mount --bind /run/cantle/lock /dev/shm/cantle.lock
exec "$@"
"""


class Fleet:
    def __init__(self, cantle, engine, out):
        self.cantle, self.engine, self.out, self.agents, self.paused = cantle, engine, out, {}, []
        cantle.start("server", "--listen", "127.0.0.1:0", log="up.log")
        wait_until(lambda: "cantle server is up" in cantle.log(), 60, cantle.log)
        (keys,) = cantle.json("credentials")
        cantle.env["CANTLE_SERVER"] = keys["url"]
        cantle.env["CLEARML_API_ACCESS_KEY"], cantle.env["CLEARML_API_SECRET_KEY"] = keys["access_key"], keys["secret_key"]

    def node(self, name):
        words = ["daemon", "--dynamic-gpus", "--create-queue", "--queue", "q=0.5", "--worker-name", name, "--gpus"]
        if name == "first":
            words += [str(self.cantle.gpus[0]), "--docker", IMAGE, "-v", f"{self.out}:{self.out}"]
            self.agents[name] = self.cantle.start(*words, log="first.log")
        else:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", ELSEWHERE, "sh", installation.CANTLE, *words, str(self.cantle.gpus[1])]
            with (self.cantle.home / "second.log").open("wb") as log:
                self.agents[name] = subprocess.Popen(command, env=self.cantle.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            self.cantle.background.append(self.agents[name])
        wait_until(lambda: any(node["node"].startswith(name) and node["alive"] for node in self.cantle.json("nodes")), 120, lambda: self.cantle.log(f"{name}.log"))

    def submit(self):
        """A task that writes down that it lives until the file `end` exists."""
        script = f"cd {self.out}; run=$(cat /proc/sys/kernel/random/uuid); echo $run >>runs; trap '' TERM; until [ -e end ]; do date +%s.%N >>$run; sleep 0.2; done; echo done"
        return self.cantle.submit("q", "sh", "-c", script)

    def runs(self):
        path = self.out / "runs"
        return path.read_text().split() if path.exists() else []

    def signs(self, run):
        """When a run has shown that it lives, in seconds."""
        path = self.out / run
        return [float(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_silence(self, run, seconds):
        """Until this run has shown no sign of life for two seconds."""
        wait_until(lambda: time.time() - self.signs(run)[-1] > 2, seconds, f"run {run} goes on")

    def wait_fence(self, task):
        """The run has a fence on disk, and the server knows of it."""
        known = "SELECT count(*) FROM run_fences WHERE task = ?"

        def is_known():
            with contextlib.closing(sqlite3.connect("file:/var/lib/cantle/server/cantle.db?mode=ro", uri=True, timeout=30)) as database:
                return database.execute(known, (task,)).fetchone() == (1,)

        wait_until(is_known, 60, lambda: self.cantle.log("first.log"))
        assert list(pathlib.Path("/var/lib/cantle").rglob("fence.json"))

    def pause(self, container):
        """Stops all of the node `first` at one moment: the container, its guard, the agent."""
        inside = self.engine.client("top", container, "-eo", "pid").stdout.split()[1:]
        self.paused = [*map(int, inside), *guards(), self.agents["first"].pid]
        self.signal(signal.SIGSTOP)

    def signal(self, which, *kept):
        for pid in self.paused:
            if pid not in kept:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)


def guards():
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"\0__task-init\0guard\0" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


def kinds(cantle, task):
    return [event["kind"] for event in cantle.json("events", "--task", task, "--limit", "1000")]


@pytest.fixture
def fleet(make_cantle, engine, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    found = Fleet(make_cantle([0, 1]), engine, out)
    yield found
    # What a failed test leaves stopped could never be ended.
    found.signal(signal.SIGCONT)


def begun(fleet):
    """A task that runs on the first node, of a queue that gives it away; a second node, which has room."""
    fleet.node("first")
    fleet.cantle.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s")
    task = fleet.submit()
    wait_until(lambda: len(fleet.runs()) == 1, 180, lambda: fleet.cantle.cli("why", task).stdout)
    fleet.wait_fence(task)
    fleet.node("second")
    return task, fleet.engine.container_of(task)


def is_ended_once(fleet, task):
    """The last run ends the task, and nothing of the first one is reported. As a rule there are two: a node that a busy machine does not
    let renew in time is lost as well."""
    (fleet.out / "end").touch()
    fleet.cantle.wait_state(task, "completed", seconds=180)
    assert fleet.cantle.said(task) == ["done"]
    happened = kinds(fleet.cantle, task)
    assert happened.count("exit") == 1 and len(fleet.runs()) == 1 + happened.count("requeue") >= 2, happened
    wait_until(lambda: fleet.engine.containers() == [] and guards() == [], 120, fleet.engine.containers)


def test_a_container_whose_agent_is_dead_ends_before_its_task_runs_elsewhere(fleet, engine):
    """The engine hangs as well: neither of them is needed."""
    task, container = begun(fleet)
    (old,) = fleet.runs()
    fleet.agents["first"].kill()
    fleet.agents["first"].wait()
    lost = time.time()
    why = lambda: fleet.cantle.cli("why", task).stdout  # noqa: E731
    with engine.hanging():
        # Said from the node's silence until the task is given away.
        wait_until(lambda: "it is queued again after" in why(), 60, why)
        fleet.wait_silence(old, 60)
    wait_until(lambda: len(fleet.runs()) > 1 and fleet.signs(fleet.runs()[1]), 120, lambda: fleet.cantle.cli("why", task).stdout)
    last, first = fleet.signs(old)[-1], fleet.signs(fleet.runs()[1])[0]
    assert last < first and last - lost < AFTER_S + SLACK_S, "the old run ends at its fence, and before the new one begins"
    # The agent comes back late.
    fleet.node("first")
    wait_until(lambda: "given to another node" in fleet.cantle.log("first.log"), 120, lambda: fleet.cantle.log("first.log"))
    is_ended_once(fleet, task)


@pytest.mark.skipif("CANTLE_TEST_ALL" not in os.environ, reason="in make soak: CANTLE_TEST_ALL=yes")
def test_a_container_of_a_paused_machine_ends_when_it_comes_back_late(fleet, engine):
    task, container = begun(fleet)
    (old,) = fleet.runs()
    assert len(guards()) == 1
    fleet.pause(container)
    lost = time.time()
    wait_until(lambda: len(fleet.runs()) == 2, 120, lambda: fleet.cantle.cli("why", task).stdout)
    assert time.time() - lost > AFTER_S, "not before the node has ended it for certain"
    assert re.match("second", fleet.cantle.task(task)["node"])
    before = len(fleet.signs(old))
    # All but the agent continues: what ends the container needs no agent.
    fleet.signal(signal.SIGCONT, fleet.agents["first"].pid)
    back = time.time()
    fleet.wait_silence(old, 60)
    signs = fleet.signs(old)
    assert len(signs) == before or signs[-1] - back < SLACK_S
    fleet.signal(signal.SIGCONT)
    wait_until(lambda: "given to another node" in fleet.cantle.log("first.log"), 120, lambda: fleet.cantle.log("first.log"))
    found = fleet.cantle.task(task)
    assert found["state"] == "in_progress" and found["node"].startswith("second")
    is_ended_once(fleet, task)
