"""Programs of the harness: each with a log, ended by its own pid and never left behind."""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)


def wait_until(condition, seconds, what):
    """Waits for a truth and returns it."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


def free_ports(count):
    """Free ports of the loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def end_with_parent():
    """In the child: the child never outlives the test run."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A program that stays."""

    def __init__(self, name, folder, argv, env=None):
        self.name, self.argv, self.env = name, [str(word) for word in argv], env
        self.log_path = folder / f"{name}.log"
        self.child = None

    def start(self):
        with open(self.log_path, "ab") as log:
            self.child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.env,
                preexec_fn=end_with_parent,
            )
        return self

    def log(self):
        return self.log_path.read_text(errors="replace")

    def check(self):
        assert self.child.poll() is None, f"{self.name} ended with {self.child.returncode}:\n{self.log()[-3000:]}"

    def kill(self):
        """kill -9"""
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def stop(self, seconds=60):
        """What a program does at its end is a part of what is tested: it has the time for that, however busy the machine is."""
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()


def kill_with(text):
    """Ends the processes with this text in their command line, without any grace."""
    for pid in pids_with(text):
        # One may have ended since.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def pids_with(text):
    """Processes with this text in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if any(text.encode() in word for word in words) and int(pid) != os.getpid():
            found.append(int(pid))
    return found
