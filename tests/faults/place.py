"""The base of the probes: an installation on a machine of its own, and the checks that tell green from red."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from conftest import CANTLE, FILL, Cantle, own_port  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
LIMIT_S = 60
A100 = 40 * GIB

__all__ = ["A100", "CANTLE", "FILL", "GIB", "LIMIT_S", "MIB", "ROOT", "Lacking", "check", "installation", "killed", "own_port", "until"]


class Lacking(Exception):
    """This machine or cantle itself has not what the fault needs: the line is red, with this reason."""


def check(true, seen):
    """The observed result is not the expected one."""
    if not true:
        raise AssertionError(seen() if callable(seen) else seen)


def until(true, what, seconds=LIMIT_S):
    """Waits until it is so; returns the seconds that took."""
    began = time.monotonic()
    while not true():
        check(time.monotonic() - began < seconds, lambda: f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.01)
    return time.monotonic() - began


@contextlib.contextmanager
def installation(gpus="1xA100-40GB", **env):
    """A machine with these GPUs, and cantle on it."""
    with tempfile.TemporaryDirectory(prefix="cantle-faults-") as home:
        found = Cantle(pathlib.Path(home), gpus)
        found.env |= env
        try:
            yield found
        finally:
            found.stop()


def killed(child):
    child.kill()
    child.wait()


def processes_of(cantle, word):
    """Pids of the machine's processes whose command line has this word."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if word.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                if same_machine(cantle, entry.name):
                    found.append(int(entry.name))
    return found


def same_machine(cantle, pid):
    """Has the process the file system that only this machine has?"""
    theirs, ours = (path.stat() for path in (pathlib.Path(f"/proc/{pid}/root/var/lib/cantle"), cantle.machine.path("/var/lib/cantle")))
    host = pathlib.Path("/proc/1/root/var/lib").stat().st_dev
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino) and ours.st_dev != host


def stop_at_random(pid, times, pause_s, then):
    """Stops a process at this number of moments; calls `then` while it is stopped."""
    for number in range(times):
        time.sleep(pause_s * (1 + number * 7 % 13) / 13)
        os.kill(pid, signal.SIGSTOP)
        try:
            then()
        finally:
            os.kill(pid, signal.SIGCONT)


def compiled(source, folder):
    out = pathlib.Path(folder) / (source.stem + ".so")
    command = ["gcc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", str(out), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    check(done.returncode == 0, done.stderr)
    return out


class Program:
    """`tasks.py` in a slice on the machine, spoken to line by line."""

    SCRIPT = str(HERE / "tasks.py")

    def __init__(self, cantle, *slice_flags, before=(), argument=()):
        command = [*before, CANTLE, "-q", "run", *slice_flags, "--", sys.executable, self.SCRIPT, *argument]
        pipe = subprocess.PIPE
        self.cantle = cantle
        self.child = subprocess.Popen(cantle.machine.command(*command), env=cantle.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.hello = self.child.stdout.readline().split()
        check(self.hello[2:] == ["code", "0"] or argument, lambda: f"{self.hello} {self.child.stderr.read()}")

    def ask(self, line):
        print(line, file=self.child.stdin, flush=True)
        return self.child.stdout.readline().strip()

    def pid(self):
        """Of the Python process, as the machine sees it."""
        (found,) = [pid for pid in processes_of(self.cantle, self.SCRIPT) if parent_is_not(pid, b"cantle")]
        return found

    def end(self):
        self.child.kill()
        self.child.communicate()


def parent_is_not(pid, word):
    return word not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
