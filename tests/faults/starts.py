"""Starts and ends of tasks that are interrupted at any step, or have no room."""

import contextlib
import os
import pathlib
import random
import resource
import signal
import threading
import time

from place import Lacking, check, installation, killed, own_port, until

QUEUES = ("--queue", "none=none", "half=0.5")
ENDED = ("completed", "failed")
# The state of the agent, on a disk of its own.
STATE = "/var/lib/cantle/agent"


def commands():
    """The processes of all machines and their command lines."""
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            yield int(entry.name), (entry / "cmdline").read_bytes()


def supervisors(cantle):
    """Those of this machine. They have its mount namespace; their tasks have others."""
    own = os.readlink(f"/proc/{cantle.machine.holder.pid}/ns/mnt")
    for pid, words in commands():
        with contextlib.suppress(OSError):
            if b"\0__task-init\0" in words and b"\0--first\0" not in words and os.readlink(f"/proc/{pid}/ns/mnt") == own:
                yield pid


class Killer(threading.Thread):
    """Kills each supervisor that appears, some time after that, until it is stopped."""

    def __init__(self, cantle, most_s):
        super().__init__(daemon=True)
        self.cantle, self.most_s = cantle, most_s
        self.kills, self.over, self.dice = 0, threading.Event(), random.Random(41)

    def run(self):
        while not self.over.is_set():
            for pid in supervisors(self.cantle):
                time.sleep(self.dice.random() * self.most_s)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1
            time.sleep(0.01)

    def end(self):
        self.over.set()
        self.join()


def supervisors_killed(count=12):
    """Each task notes that it runs, and stays for an hour: it must never run twice, and never be left behind."""
    with installation() as cantle:
        runs, port = cantle.home / "runs", own_port()
        agent = cantle.up(*QUEUES, port=port)
        killer = Killer(cantle, 0.4)
        killer.start()
        tasks = {}
        for number in range(count):
            queue = ("none", "half")[number % 2]
            # The path of the file marks its processes, too.
            tasks[number] = cantle.submit(queue, "sh", "-c", f"echo {number} >>{runs}; sleep 3600; : end")
            if number % 4 == 3:
                time.sleep(killer.dice.random() / 2)
                killed(agent)
                agent = cantle.up(*QUEUES, port=port)
        until(lambda: killer.kills >= count, lambda: f"{killer.kills} kills")
        until(lambda: all(cantle.task(task)["state"] in ENDED for task in tasks.values()), lambda: cantle.json("tasks"), 180)
        killer.end()
        ran = runs.read_text().split() if runs.exists() else []
        check(len(ran) == len(set(ran)), f"these ran twice: {ran}")
        left = lambda: [pid for pid, words in commands() if str(runs).encode() in words and b"submit" not in words]
        until(lambda: not left(), lambda: f"left behind: {left()}")
        until(lambda: not any(gpu["allocated_milli"] for gpu in cantle.json("gpus")), lambda: cantle.json("gpus"))
        check(cantle.used() == [0], cantle.used())
        states = [cantle.task(task)["state"] for task in tasks.values()]
        check(set(states) == {"failed"}, states)
        return f"{killer.kills} kills of supervisors, {count // 4} of the agent: {len(ran)} of {count} tasks ran, none twice; no process and no lease is left"


def small_disk(cantle):
    cantle.program("sh", "-c", f"mkdir -p {STATE} && mount -t tmpfs -o size=8m tmpfs {STATE}", check=True)


def fill(cantle, but_kib=0):
    cantle.program("sh", "-c", f"cat /dev/zero >{STATE}/filler 2>/dev/null; truncate -s -{but_kib}K {STATE}/filler; sync {STATE}")


def full_disk_at_the_end():
    """The disk of the agent is full when tasks end: each result is the right one."""
    with installation() as cantle:
        small_disk(cantle)
        cantle.up(*QUEUES)
        go = cantle.home / "go"
        codes = {0: "completed", 7: "failed"}
        wait = f"until [ -e {go} ]; do sleep 0.1; done"
        tasks = {code: cantle.submit("none", "sh", "-c", f"{wait}; exit {code}") for code in codes}
        until(lambda: all(cantle.task(task)["state"] == "in_progress" for task in tasks.values()), lambda: cantle.json("tasks"))
        time.sleep(1)
        fill(cantle)
        go.touch()
        for code, state in codes.items():
            task = tasks[code]
            until(lambda task=task: cantle.task(task)["state"] in ENDED, lambda task=task: cantle.task(task))
            found = cantle.task(task)
            check((found["state"], found["exit_code"]) == (state, code), found)
        cantle.program("rm", f"{STATE}/filler", check=True)
        task = cantle.submit("none", "true")
        until(lambda: cantle.task(task)["state"] == "completed", lambda: cantle.task(task))
        return "the agent's disk is full at the end of two tasks: exit codes 0 and 7 are reported"


def no_room_for_a_start():
    """The disk has room for the claim of a task and not for its start."""
    with installation() as cantle:
        small_disk(cantle)
        cantle.up(*QUEUES)
        fill(cantle, but_kib=16)
        task = cantle.submit("none", "true")
        returned = lambda: [event for event in cantle.json("events") if "no room to start it" in event["message"]]
        until(returned, lambda: (cantle.task(task), cantle.log()))
        check(cantle.task(task)["state"] == "queued", cantle.task(task))
        cantle.program("rm", f"{STATE}/filler", check=True)
        until(lambda: cantle.task(task)["state"] == "completed", lambda: cantle.task(task))
        return "no room for a start: the task is queued again, and completes when there is room"


def running(cantle, tasks):
    return any(cantle.task(task)["state"] == "in_progress" for task in tasks)


def held(cantle):
    """Thousandths of a GPU that leases have."""
    return sum(gpu["allocated_milli"] for gpu in cantle.json("gpus"))


def killed_on_a_full_disk(most_kib=64, step_kib=4):
    """The agent dies while its disk has room for nothing, for the record of a claim, for more and more of a start."""
    with installation() as cantle:
        small_disk(cantle)
        port, done = own_port(), []
        agent = cantle.up(*QUEUES, port=port)
        for number, kib in enumerate(range(0, most_kib, step_kib)):
            fill(cantle, but_kib=kib)
            queue = ("half", "none")[number % 2]
            done.append(cantle.submit(queue, "sh", "-c", "sleep 0.5"))
            time.sleep(1.5)
            # What was not started holds nothing; what starts just now is not yet in progress.
            until(lambda: running(cantle, done) or held(cantle) == 0, lambda kib=kib: f"room for {kib} KiB: {held(cantle)} of a GPU is held for nobody", 20)
            killed(agent)
            cantle.program("rm", f"{STATE}/filler", check=True)
            agent = cantle.up(*QUEUES, port=port)
        # A claim whose answer nobody has heard is settled after a minute.
        until(lambda: all(cantle.task(task)["state"] == "completed" for task in done), lambda: cantle.json("tasks"), 150)
        return f"room for 0 to {most_kib - step_kib} KiB, and a kill each time: {len(done)} tasks, all completed"


def started_on_a_full_disk():
    """The agent dies while its disk is full, and comes back: it takes its tasks over, and serves again when there is room."""
    with installation() as cantle:
        small_disk(cantle)
        port, go, began = own_port(), cantle.home / "go", cantle.home / "began"
        agent = cantle.up(*QUEUES, port=port)
        held_until_go = lambda: cantle.submit("half", "sh", "-c", f"touch {began}; until [ -e {go} ]; do sleep 0.1; done")
        tasks = [held_until_go()]
        # The server calls a task in progress before it has a process; one that has none yet goes back to its queue with the agent's death.
        until(began.exists, lambda: cantle.json("tasks"))
        fill(cantle)
        for _ in range(2):
            killed(agent)
            agent = cantle.up(*QUEUES, port=port)
            time.sleep(2)
            check(agent.poll() is None and running(cantle, tasks), cantle.log)
        cantle.program("rm", f"{STATE}/filler", check=True)
        tasks.append(held_until_go())
        until(lambda: all(running(cantle, [task]) for task in tasks), lambda: (cantle.json("tasks"), cantle.log()))
        go.touch()
        until(lambda: all(cantle.task(task)["state"] == "completed" for task in tasks), lambda: cantle.json("tasks"))
        return "the agent is started twice on a full disk: its task runs on, and with room another one runs beside it"


def put_back_and_done(cantle, task, make_room):
    """The task returns to its queue because of the node, not of itself; with room it completes."""
    returned = lambda: [event for event in cantle.json("events") if "no room to start it" in event["message"]]
    until(returned, lambda: (cantle.task(task), cantle.log()))
    check(cantle.task(task)["state"] in ("queued", "in_progress"), cantle.task(task))
    make_room()
    until(lambda: cantle.task(task)["state"] in ENDED, lambda: (cantle.task(task), cantle.log()))
    check(cantle.task(task)["state"] == "completed", cantle.task(task))


def no_room_in_run():
    """The tmpfs of the leases has room for a lease and not for the accounting of a slice."""
    with installation() as cantle:
        node = "/run/cantle/node"
        cantle.program("sh", "-c", f"mkdir -p {node} && mount -t tmpfs -o size=3m tmpfs {node}", check=True)
        cantle.up(*QUEUES)
        cantle.program("sh", "-c", f"cat /dev/zero >{node}/filler 2>/dev/null; truncate -s -24K {node}/filler")
        task = cantle.submit("half", "true")
        put_back_and_done(cantle, task, lambda: cantle.program("rm", f"{node}/filler", check=True))
        return "/run is full at the start: the task is queued again, and completes when there is room"


def no_descriptors_for_a_start():
    """The agent has all the descriptors that it may have."""
    with installation() as cantle:
        cantle.start("server", "--listen", "127.0.0.1:0", log="server.log")
        until(lambda: "http://127.0.0.1:" in cantle.log("server.log"), lambda: cantle.log("server.log"))
        agent = cantle.start("daemon", "--dynamic-gpus", "--gpus", "0", "--queue", *QUEUES[1:], "--create-queue", log="daemon.log")
        until(lambda: "serving" in cantle.log("daemon.log"), lambda: cantle.log("daemon.log"))
        time.sleep(1)
        pid = daemon_of(agent.pid)
        # One is left; a start needs two pipes and a file.
        most = sorted(set(range(1024)) - always_open(pid))[1]
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
        task = cantle.submit("half", "true")
        returned = lambda: [event for event in cantle.json("events") if "no room to start it" in event["message"]]
        until(lambda: returned() or "Too many open files" in cantle.log("daemon.log"), lambda: (cantle.task(task), cantle.log("daemon.log")))
        time.sleep(2)
        check(cantle.task(task)["state"] not in ENDED, cantle.task(task))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        until(lambda: cantle.task(task)["state"] in ENDED, lambda: (cantle.task(task), cantle.log("daemon.log")))
        check(cantle.task(task)["state"] == "completed", cantle.task(task))
        return "no descriptors are left at the start (EMFILE): the task waits, and completes when there are"


def always_open(pid, looks=20):
    """The descriptors that the process has at each look during a second."""
    found = set(range(1024))
    for _ in range(looks):
        found &= {int(entry.name) for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()}
        time.sleep(1 / looks)
    return found


def daemon_of(pid):
    """The process of cantle's below the one that was started, which enters the machine."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return daemon_of(int(children[0])) if children and b"cantle" in (pathlib.Path("/proc") / children[0] / "cmdline").read_bytes() else pid


def no_processes_for_a_start():
    """The control group of the agent has all the processes that it may have."""
    with installation() as cantle, pids_group() as group:
        agent = cantle.up(*QUEUES)
        pid = daemon_of(agent.pid)
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text("1")
        task = cantle.submit("half", "true")
        put_back_and_done(cantle, task, lambda: (group / "pids.max").write_text("max"))
        agent.terminate()
        agent.wait()
        return "the pids limit is reached at the start: the task is queued again, and completes when there is room"


@contextlib.contextmanager
def pids_group():
    """A control group that limits the number of processes, in a hierarchy of either version."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    places = [words[4] for words in mounts if "cgroup" in words and "pids" in words[-1].split(",")]
    for place in (words[4] for words in mounts if "cgroup2" in words):
        with contextlib.suppress(OSError):
            (pathlib.Path(place) / "cgroup.subtree_control").write_text("+pids")
            places.append(place)
    if not places:
        raise Lacking("no hierarchy of control groups with the controller of pids")
    group = pathlib.Path(places[0]) / f"cantle-faults-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        (group / "pids.max").write_text("max")
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()
