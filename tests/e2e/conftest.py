"""A whole cantle on a machine of its own: `cantle up` as root where everything lies where it lies at a customer's, and the
commands a user would type."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from machine import Machine, own_port  # noqa: E402, F401  the port for tests

CANTLE = ROOT / "dist/bin/cantle"
FILL = [sys.executable, str(ROOT / "examples/fill_slice.py")]
# An ordinary user.
NOBODY = 65534
FOUR_QUEUES = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]
# Sets the hard limit of a group on GPU 0, as another program of root does.
SET_LIMIT = """
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Limits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64)]
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceSetMemoryLimits_v1(device, ctypes.byref(Limits(sys.argv[1].encode(), 0, int(sys.argv[2])))) == 0
"""


def hold_until(path, *flags):
    """Fills its slice and keeps it until this file is there, then ends well: a test that looks at it meanwhile may take its time."""
    fill = " ".join(map(str, [*FILL, *flags, "--hold", "3600"]))
    return ["sh", "-c", f"{fill} & until [ -e {path} ]; do sleep 0.2; done; kill $!; wait"]


class Cantle:
    """One installation: its own machine, its own server; a private directory for logs and as the user's home."""

    def __init__(self, home, gpus="3xA100-40GB", driver=None):
        self.home = home
        self.machine = Machine(gpus, driver=driver)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home)}
        self.background = []

    def program(self, *words, user=None, **options):
        """Runs any program on this machine to its end, alone: no cantle is between it and the GPUs."""
        command = self.machine.command(*words, user=user)
        options = {"timeout": 180, "env": self.env} | options
        return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)

    def cli(self, *words, code=0, timeout=180):
        """Runs one command to its end and returns it; its exit code must be `code` (None: any)."""
        done = self.program(CANTLE, *words, timeout=timeout)
        assert code is None or done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words):
        answer = json.loads(self.cli("-o", "json", *words).stdout)
        assert answer["version"] == 1
        return answer["items"]

    def start(self, *words, log="cantle.log"):
        """Starts a command that stays; it is stopped at the end of the test."""
        out = open(self.home / log, "wb")
        child = subprocess.Popen(
            self.machine.command(CANTLE, *words), env=self.env, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        self.background.append(child)
        return child

    def up(self, *words, port=0):
        child = self.start("up", "--listen", f"127.0.0.1:{port}", *words, log="up.log")
        wait_until(lambda: "cantle is up" in self.log("up.log") or child.poll() is not None, 60, "cantle up")
        assert child.poll() is None, self.log("up.log")
        return child

    def log(self, name="up.log"):
        return (self.home / name).read_text(errors="replace")

    def submit(self, queue, *command, flags=()):
        task = self.cli("submit", "--queue", queue, *flags, "--", *command).stdout.strip()
        assert re.fullmatch(r"[0-9a-f]{32}", task), task
        return task

    def task(self, task):
        (found,) = self.json("tasks", task)
        return found

    def wait_state(self, task, *states, seconds=60):
        wait_until(lambda: self.task(task)["state"] in states, seconds, lambda: f"{task} in {states}: {self.task(task)}")
        return self.task(task)

    def output(self, task):
        return self.cli("logs", task).stdout

    def filled(self, task):
        """The output of examples/fill_slice.py in this task, one record per GPU."""
        return [json.loads(line) for line in self.output(task).splitlines() if line.startswith("{")]

    def truth(self):
        """The driver's own record of each GPU, independent of cantle."""
        return self.machine.truth()

    def used(self):
        return [gpu["used_bytes"] for gpu in self.truth()]

    def end(self):
        """Ends the commands that stay. The machine stays, with all that they leave behind."""
        for child in self.background:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.background:
            try:
                child.wait(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def stop(self):
        self.end()
        self.machine.stop()


def wait_until(true, seconds, what):
    """Asks until the answer is yes; fails with `what` after `seconds`: a minute, where no promise sets it. Other suites use the cores too."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(0.1)


@pytest.fixture
def cantle(tmp_path):
    """An installation with three GPUs."""
    found = Cantle(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def home_of_nobody():
    """The home of an ordinary user. Not in pytest's own directory, which other sessions of it close to other users."""
    with tempfile.TemporaryDirectory(prefix="cantle-home-") as home:
        os.chown(home, NOBODY, NOBODY)
        yield pathlib.Path(home)


@pytest.fixture
def make_cantle(tmp_path):
    """Installations with other GPUs."""
    made = []

    def make(gpus, *more, **named):
        home = tmp_path / str(len(made))
        home.mkdir()
        made.append(Cantle(home, gpus, *more, **named))
        return made[-1]

    yield make
    for each in made:
        each.stop()
