#!/usr/bin/env python3
"""The processor time of an agent whose tasks do nothing: without tasks, with 64 that sleep, and with 64 that hold GPU memory.

The agent with no task is the floor. Needs root, to make a machine with GPUs. `idle.py [SECONDS [TASKS]]`
"""

import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from machine import CANTLE, Machine  # noqa: E402

SECONDS = float(sys.argv[1]) if sys.argv[1:] else 30
TASKS = int(sys.argv[2]) if sys.argv[2:] else 64
# By what the tasks do.
PERCENT_MAX = {"sleep": 2.5, "hold GPU memory": 4.0}
HOLD = f"{shlex.quote(sys.executable)} {shlex.quote(str(ROOT / 'examples/fill_slice.py'))} --at-most {1 << 30} --hold 3600"


class Node:
    """A server and an agent, each a process of its own."""

    def __init__(self, machine, home):
        self.machine, self.home = machine, home
        self.env = {"PATH": os.environ["PATH"], "HOME": home}
        self.children = []

    def start(self, *words):
        with open(f"{self.home}/log", "ab") as log:
            command = self.machine.command(CANTLE, *words)
            child = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.children.append(child)
        return child

    def cli(self, *words):
        done = subprocess.run(self.machine.command(CANTLE, *words), env=self.env, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None

    def until(self, true, what):
        deadline = time.monotonic() + 180
        while not true():
            if time.monotonic() > deadline:
                raise SystemExit(f"idle: not within 180 s: {what}; {pathlib.Path(self.home, 'log').read_text()[-2000:]}")
            time.sleep(0.2)

    def running(self, array):
        (found,) = json.loads(self.cli("-o", "json", "tasks", array))["items"]
        return found["array"]["running"]

    def end(self):
        for child in reversed(self.children):
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            child.wait()


def threads_ticks(pid):
    """The ticks of each of its threads, by name."""
    found = {}
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            name, rest = (thread / "stat").read_text().rsplit(")", 1)
            fields = rest.split()
            name = name.split("(", 1)[1]
            found[name] = found.get(name, 0) + int(fields[11]) + int(fields[12])
    return found


def percent(agent, seconds):
    """Of a core, and of each thread."""
    before = threads_ticks(agent)
    time.sleep(seconds)
    tick = os.sysconf("SC_CLK_TCK") * seconds / 100
    of = {name: (ticks - before.get(name, 0)) / tick for name, ticks in threads_ticks(agent).items()}
    return sum(of.values()), of


def measure(node, agent, what):
    time.sleep(5)
    used, of = percent(agent.pid, SECONDS)
    busiest = sorted(of.items(), key=lambda item: -item[1])[:4]
    threads = ", ".join(f"{name} {share:.2f}" for name, share in busiest)
    print(f"idle agent, {what}: {used:.2f} % of a core ({threads}; {SECONDS:.0f} s, load {os.getloadavg()[0]:.0f})", flush=True)
    return used


def main():
    if os.geteuid() != 0:
        print("idle: skipped, it needs root")
        return 0
    with tempfile.TemporaryDirectory(prefix="cantle-bench-") as home:
        machine = Machine("8xA100-40GB")
        node = Node(machine, home)
        try:
            node.start("server", "--listen", "127.0.0.1:0")
            node.until(lambda: node.cli("tasks") is not None, "the server")
            agent = node.start("daemon", "--dynamic-gpus", "--create-queue", "--queue", "q=0.1", "--gpus", "0-7")
            time.sleep(3)
            floor = measure(node, agent, "no task")
            used = {}
            for what, script in (("sleep", "exec sleep 3600"), ("hold GPU memory", f"exec {HOLD}")):
                array = node.cli("submit", "--queue", "q", "--array", f"0-{TASKS - 1}", "--", "sh", "-c", script).strip()
                node.until(lambda: node.running(array) == TASKS, f"{TASKS} tasks run")
                if what != "sleep":
                    node.until(lambda: sum(gpu["used_bytes"] >> 30 for gpu in machine.truth()) >= TASKS, "each has its memory")
                used[what] = measure(node, agent, f"{TASKS} tasks that {what}")
                node.cli("stop", array)
                node.until(lambda: node.running(array) == 0, "they have ended")
        finally:
            node.end()
            machine.stop()
    kept = all(used[what] <= most for what, most in PERCENT_MAX.items())
    promised = " and ".join(f"{most} % ({what})" for what, most in PERCENT_MAX.items())
    print(f"promised: at most {promised} of a core with 64 idle tasks; floor: {floor:.2f} % with none: {'kept' if kept else 'BROKEN'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
