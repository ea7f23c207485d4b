"""Kills of agent, server, supervisors and tasks at random moments, while disks fill up and become free again."""

import contextlib
import json
import os
import pathlib
import random
import signal
import time

from place import FILL, LIMIT_S, check, installation, killed, own_port, until
from starts import ENDED, STATE, commands, supervisors

# Of the 40 GiB of each GPU.
QUEUES = ("none=none", "eighth=0.125")
SERVER_STATE = "/var/lib/cantle/server"
NODE = "/run/cantle/node"
DISKS = {STATE: "16m", SERVER_STATE: "64m", NODE: "4m"}
# Tasks that wait or run at a time.
AT_ONCE = 10
# What ends well, and what fails by itself.
CODES = (0, 0, 0, 3)
SLICE = 5 << 30


class Storm:
    """Its state is what clients of cantle know: the tasks that they submitted, and those with a process that was killed."""

    def __init__(self, cantle):
        self.cantle, self.dice = cantle, random.Random(4711)
        self.port, self.server, self.agent = own_port(), None, None
        self.runs = cantle.home / "runs"
        # By number: the task, the exit code that it has if nobody touches it.
        self.tasks, self.touched, self.open = {}, set(), {}
        self.kills = dict.fromkeys(("server", "agent", "supervisor", "task"), 0)
        self.fills, self.looks = 0, 0

    def run(self, kills):
        for disk, size in DISKS.items():
            self.cantle.program("sh", "-c", f"mkdir -p {disk} && mount -t tmpfs -o size={size} tmpfs {disk}", check=True)
        self.start_server()
        self.start_agent()
        while sum(self.kills.values()) < kills:
            self.submit_some()
            if self.dice.random() < 0.2:
                self.fill_a_disk()
            getattr(self, f"kill_{self.dice.choice(tuple(self.kills))}")()
            self.look()
            time.sleep(self.dice.random() / 2)
        self.end()

    def start_server(self):
        started = lambda: "http://127.0.0.1:" in self.cantle.log("server.log")
        self.server = self.cantle.start("server", "--listen", f"127.0.0.1:{self.port}", log="server.log")
        # A server whose disk is full may not start; what manages services starts it again.
        while not started():
            if self.server.poll() is not None:
                self.free_disks()
                self.server = self.cantle.start("server", "--listen", f"127.0.0.1:{self.port}", log="server.log")
            time.sleep(0.02)

    def start_agent(self):
        words = ("daemon", "--dynamic-gpus", "--gpus", "0-1", "--queue", *QUEUES, "--create-queue")
        self.agent = self.cantle.start(*words, log="daemon.log")

    def submit_some(self):
        self.ask_again()
        while len(self.open) < AT_ONCE:
            number, code = len(self.tasks), self.dice.choice(CODES)
            work = " ".join(FILL) if number % 2 else "sleep"
            hold = f"--hold {self.dice.random() * 2:.2f}" if number % 2 else f"{self.dice.random() * 2:.2f}"
            script = f"echo {number} >>{self.runs}; {work} {hold} >/dev/null; exit {code}"
            words = ("submit", "--queue", QUEUES[number % 2].split("=")[0], "--name", f"t{number}", "--", "sh", "-c", script)
            done = self.cantle.cli(*words, code=None)
            if done.returncode != 0:
                # The server is away or its disk is full; it may have the task all the same.
                self.touched.add(number)
                self.tasks[number] = (None, code)
                return
            self.tasks[number] = self.open[number] = (done.stdout.strip(), code)

    def ask_again(self):
        done = self.cantle.cli("-o", "json", "tasks", "--limit", "1000", code=None)
        if done.returncode == 0:
            states = {found["id"]: found["state"] for found in json.loads(done.stdout)["items"]}
            self.open = {number: task for number, task in self.open.items() if states.get(task[0]) not in ENDED}

    def fill_a_disk(self):
        self.free_disks()
        disk = self.dice.choice(tuple(DISKS))
        left = self.dice.choice((0, 16, 64))
        self.cantle.program("sh", "-c", f"cat /dev/zero >{disk}/filler 2>/dev/null; truncate -s -{left}K {disk}/filler")
        self.fills += 1

    def free_disks(self):
        self.cantle.program("rm", "-f", *(f"{disk}/filler" for disk in DISKS))

    def kill_server(self):
        killed(self.server)
        self.kills["server"] += 1
        time.sleep(self.dice.random() / 4)
        self.start_server()

    def kill_agent(self):
        killed(self.agent)
        self.kills["agent"] += 1
        time.sleep(self.dice.random() / 4)
        self.start_agent()

    def kill_supervisor(self):
        self.kill_one("supervisor", [(pid, self.number_of(pid)) for pid in supervisors(self.cantle)])

    def kill_task(self):
        marked = [(pid, words) for pid, words in commands() if f">>{self.runs};".encode() in words and words.startswith(b"sh\0")]
        self.kill_one("task", [(pid, int(words.split(b"echo ")[1].split()[0])) for pid, words in marked])

    def kill_one(self, kind, found):
        if found:
            pid, number = self.dice.choice(found)
            # What the task would have done without this is not known any more.
            self.touched.add(number)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                self.kills[kind] += 1

    def number_of(self, pid):
        """The number of a supervisor's task, by what its first processes do; none that is known yet counts as all that are open."""
        words = dict(commands())
        below = [words.get(child, b"") for child in descendants(pid)]
        for text in below:
            if b"echo " in text:
                return int(text.split(b"echo ")[1].split()[0])
        self.touched.update(self.open)
        return -1

    def look(self):
        """No GPU holds more than its slices may; nothing holds memory of a GPU without a lease."""
        self.looks += 1
        for gpu in self.cantle.truth():
            used = sum(process["used_bytes"] for process in gpu["processes"])
            check(used <= gpu["used_bytes"] and all(process["used_bytes"] <= SLICE for process in gpu["processes"]), gpu)

    def end(self):
        self.free_disks()
        if self.agent.poll() is not None:
            self.start_agent()
        states = {}

        def all_ended():
            done = self.cantle.cli("-o", "json", "tasks", "--limit", "10000", code=None)
            if done.returncode == 0:
                states.update({found["name"]: found for found in json.loads(done.stdout)["items"]})
            return done.returncode == 0 and all(found["state"] in ENDED for found in states.values())

        until(all_ended, lambda: [found for found in states.values() if found["state"] not in ENDED], 5 * LIMIT_S)
        ran = self.runs.read_text().split()
        check(len(ran) == len(set(ran)), lambda: f"these ran twice: {sorted(word for word in set(ran) if ran.count(word) > 1)}")
        for number, (task, code) in self.tasks.items():
            found = states.get(f"t{number}")
            check(found is not None or task is None, f"task {number} is lost")
            if number not in self.touched:
                right = ("completed", 0) if code == 0 else ("failed", code)
                check((found["state"], found["exit_code"]) == right and str(number) in ran, found)
        left = lambda: [pid for pid, words in commands() if str(self.runs).encode() in words]
        until(lambda: not left(), lambda: f"left behind: {left()}")
        until(lambda: not any(gpu["allocated_milli"] for gpu in self.cantle.json("gpus")), lambda: self.cantle.json("gpus"))
        check(self.cantle.used() == [0, 0], self.cantle.used())


def descendants(pid):
    with contextlib.suppress(OSError):
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def everything_at_once():
    kills = int(os.environ.get("CANTLE_TEST_KILLS") or 24)
    with installation("2xA100-40GB") as cantle:
        storm = Storm(cantle)
        storm.run(kills)
        counted = ", ".join(f"{count} of {kind}s" for kind, count in storm.kills.items())
        untouched = len(storm.tasks) - len(storm.touched)
        return f"{counted} and {storm.fills} full disks: {len(storm.tasks)} tasks, none ran twice or was lost, {untouched} untouched ones ended as they should"
