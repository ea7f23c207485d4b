"""Starts and ends of tasks that are interrupted at any step, or have no room."""

import contextlib
import os
import pathlib
import random
import signal
import threading
import time

from place import check, installation, killed, own_port, until

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
