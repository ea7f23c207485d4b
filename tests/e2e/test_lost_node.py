"""A lost node: its tasks are given to another node if the queue's policy requires it, and a node that comes back late
neither runs nor reports them. The node is lost like a machine: all its processes (agent, supervisors and tasks) stop at one
instant."""

import json
import os
import pathlib
import signal
import time

import pytest

from conftest import wait_until

# Long enough to look in between, on a busy machine too.
AFTER_S = 20

# In the gate only the first one, which shows the most.
in_soak = pytest.mark.skipif(not os.environ.get("CANTLE_TEST_ALL"), reason="set CANTLE_TEST_ALL, as tests/soak.sh does")


class Node:
    """A machine with one GPU that serves the queue `q` of another machine's server."""

    def __init__(self, machine, name, hub):
        self.machine, self.name = machine, name
        (keys,) = hub.json("credentials")
        machine.env["CANTLE_SERVER"] = keys["url"]
        machine.env["CLEARML_API_ACCESS_KEY"], machine.env["CLEARML_API_SECRET_KEY"] = keys["access_key"], keys["secret_key"]
        self.start()

    def start(self):
        self.machine.start("daemon", "--dynamic-gpus", "--create-queue", "--queue", "q=task", "--worker-name", self.name, log=f"{self.name}.log")

    def log(self):
        return self.machine.log(f"{self.name}.log")

    def processes(self):
        """All of this machine but the one that holds it: they see its file systems."""
        inside, found = os.readlink(f"/proc/{self.machine.machine.holder.pid}/ns/mnt"), []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                ours = os.readlink(process / "ns/mnt") == inside or self.is_task(process)
            except OSError:
                continue
            if ours and int(process.name) not in (self.machine.machine.holder.pid, os.getpid()):
                found.append(int(process.name))
        return found

    def is_task(self, process):
        """Tasks have a mount namespace of their own; their command line names them."""
        return self.marker in (process / "cmdline").read_bytes()

    marker = b"\0never\0"

    def signal(self, which):
        # Twice: one may have begun another meanwhile.
        for _ in range(2):
            for pid in self.processes():
                try:
                    os.kill(pid, which)
                except ProcessLookupError:
                    pass


@pytest.fixture
def hub(make_cantle):
    """A server alone."""
    found = make_cantle("1xA100-40GB")
    found.start("server", "--listen", "127.0.0.1:0", log="up.log")
    wait_until(lambda: "cantle server is up" in found.log(), 60, "the server")
    return found


@pytest.fixture
def nodes(hub, make_cantle):
    """Creates nodes of that server; stopped processes continue before they are ended."""
    made = []

    def make(name):
        made.append(Node(make_cantle("1xA100-40GB"), name, hub))
        wait_until(lambda: any(node["node"] == name and node["alive"] for node in hub.json("nodes")), 60, name)
        return made[-1]

    yield make
    for node in made:
        node.signal(signal.SIGCONT)


def submit(hub, tmp_path, name):
    """A task that prints its node and runs until the file `end` exists."""
    marker = f"lost-task-{name}-{os.getpid()}"
    script = f"""run=$(cat /proc/sys/kernel/random/uuid); echo $run >> {tmp_path}/runs
        until [ -e {tmp_path}/end ]; do echo tick >> {tmp_path}/$run; sleep 0.2; done; echo done # {marker}"""
    Node.marker = marker.encode()
    return hub.submit("q", "sh", "-c", script, flags=("--gpu", "0.5", "--name", name))


def runs(tmp_path):
    path = tmp_path / "runs"
    return path.read_text().split() if path.exists() else []


def kinds(hub, task):
    return [event["kind"] for event in hub.json("events", "--task", task, "--limit", "1000")]


def ticks(tmp_path, run):
    path = tmp_path / run
    return path.read_text().count("tick") if path.exists() else 0


def wait_end(tmp_path, run, seconds):
    """Until this run has done nothing for two seconds."""
    last, since, deadline = -1, time.monotonic(), time.monotonic() + seconds
    while time.monotonic() - since < 2:
        assert time.monotonic() < deadline, f"the run still works after {seconds} s"
        now = ticks(tmp_path, run)
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.1)


def fences(node):
    """What is on the node's disk: until when a task is its own, in milliseconds since the machine started."""
    return [json.loads(path.read_text())["until_ms"] for path in node.machine.machine.path("/var/lib/cantle").rglob("fence.json")]


def wait_fence(node):
    wait_until(lambda: fences(node), 60, "the fence")
    # A renewal that moves it has told the server that it is on disk.
    first = fences(node)
    wait_until(lambda: fences(node) != first, 60, "the next renewal")


@pytest.mark.clock
def test_a_task_of_a_lost_node_goes_to_another_and_the_first_comes_back_late(hub, nodes, tmp_path):
    hub.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s", code=3)
    first = nodes("first")
    assert f"silent for {AFTER_S} s is queued again" in hub.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s").stderr
    assert f"requeue after {AFTER_S} s" in hub.cli("queues", "-o", "wide").stdout
    task = submit(hub, tmp_path, "train")
    hub.wait_state(task, "in_progress")
    wait_until(lambda: len(runs(tmp_path)) == 1, 60, "the task")
    wait_fence(first)
    second = nodes("second")
    first.signal(signal.SIGSTOP)
    (until_ms,) = fences(first)
    wait_until(lambda: "it is queued again after" in hub.cli("why", task).stdout, 120, lambda: hub.cli("why", task).stdout)
    wait_until(lambda: len(runs(tmp_path)) == 2, 90, lambda: hub.cli("why", task).stdout)
    # By the clock of fences: when the second run noted itself.
    began_ms = (time.clock_gettime(time.CLOCK_BOOTTIME) - time.time() + (tmp_path / "runs").stat().st_mtime) * 1000
    assert began_ms > until_ms, "not before the node has ended it for certain"
    print(f"the task runs again {(began_ms - until_ms) / 1000:.0f} s after it ended on the node that was lost")
    assert hub.task(task)["node"] == "second"
    old = runs(tmp_path)[0]
    (event,) = [e["message"] for e in hub.json("events", "--task", task, "--limit", "1000") if e["kind"] == "requeue"]
    assert "back to the front of q: lost with node first, which was silent for" in event
    # The machine continues, as after a pause: the old run ends before anything of it is reported.
    before = ticks(tmp_path, old)
    first.signal(signal.SIGCONT)
    wait_end(tmp_path, old, 60)
    assert ticks(tmp_path, old) - before < 100
    wait_until(lambda: "given to another node" in first.log(), 60, first.log)
    found = hub.task(task)
    assert (found["state"], found["node"]) == ("in_progress", "second")
    (tmp_path / "end").touch()
    hub.wait_state(task, "completed")
    assert hub.output(task).splitlines() == ["done"]
    assert kinds(hub, task).count("exit") == 1 and len(runs(tmp_path)) == 2
    # The first node serves the queue as before.
    second.signal(signal.SIGKILL)
    again = hub.submit("q", "echo", "here", flags=("--gpu", "1"))
    assert hub.wait_state(again, "completed")["node"] == "first"


@pytest.mark.clock
@in_soak
def test_a_machine_that_lost_its_power_reports_nothing_of_the_past(hub, nodes, tmp_path):
    first = nodes("first")
    hub.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s")
    task = submit(hub, tmp_path, "train")
    wait_until(lambda: len(runs(tmp_path)) == 1, 60, "the task")
    wait_fence(first)
    first.signal(signal.SIGKILL)
    wait_until(lambda: "back to the front of q" in hub.cli("events", "--task", task).stdout, 120, lambda: hub.cli("why", task).stdout)
    assert "lost with node first" in hub.cli("why", task).stdout
    # It comes back before another node has taken the task, and finds the files of the run that it lost.
    first.start()
    wait_until(lambda: len(runs(tmp_path)) == 2, 60, lambda: hub.cli("why", task).stdout)
    (tmp_path / "end").touch()
    hub.wait_state(task, "completed")
    assert hub.output(task).splitlines() == ["done"]
    assert kinds(hub, task).count("exit") == 1


@pytest.mark.clock
@in_soak
def test_a_queue_that_holds_waits_for_the_node(hub, nodes, tmp_path):
    first = nodes("first")
    hub.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s")
    hub.cli("queues", "set", "q", "--requeue-after", "never")
    task = submit(hub, tmp_path, "train")
    wait_until(lambda: len(runs(tmp_path)) == 1, 60, "the task")
    nodes("second")
    first.signal(signal.SIGSTOP)
    time.sleep(AFTER_S + 20)
    why = hub.cli("why", task).stdout
    assert "first, which holds it, is silent since" in why and "cantle requeue" in why, why
    first.signal(signal.SIGCONT)
    (tmp_path / "end").touch()
    hub.wait_state(task, "completed")
    assert len(runs(tmp_path)) == 1


@pytest.mark.clock
@in_soak
def test_a_node_that_cannot_reach_the_server_ends_its_tasks_in_time(hub, nodes, tmp_path):
    """The server is unreachable for longer than the time: the node ends the task by itself, and reports that when the server is back."""
    first = nodes("first")
    hub.cli("queues", "set", "q", "--requeue-after", f"{AFTER_S}s")
    task = submit(hub, tmp_path, "train")
    wait_until(lambda: len(runs(tmp_path)) == 1, 60, "the task")
    wait_fence(first)
    server = hub.background[0]
    server.send_signal(signal.SIGSTOP)
    (old,) = runs(tmp_path)
    wait_end(tmp_path, old, AFTER_S + 50)
    server.send_signal(signal.SIGCONT)
    wait_until(lambda: len(runs(tmp_path)) == 2, 120, lambda: hub.cli("why", task).stdout)
    (tmp_path / "end").touch()
    hub.wait_state(task, "completed")
    assert kinds(hub, task).count("requeue") == 1
