"""Real frameworks in slices of simulated GPUs. Stand-ins: the driver, and the CUDA runtime (`libcudart.so.13` of the machine), which
NVIDIA's libraries would not accept a simulated driver for. Allocators, errors, graphs and processes are the frameworks' own."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import machine as machines  # noqa: E402
from machine import CANTLE, DIST  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
GPU = "1xA100-40GB"
TOTAL = 40960 * MIB
HALF = TOTAL // 2
# What the simulated driver takes for a context on it.
CONTEXT = 416 * MIB
# The first driver of CUDA 13, which the frameworks of today are built for.
DRIVER = "580.95.05"
RUNTIME = "libcudart.so.13"


def pytest_collection_modifyitems(items):
    machines.skip_unless_built(items, CANTLE, DIST / "lib/cantle/sim" / RUNTIME)


class Machine(machines.Machine):
    """A machine with one GPU, and programs of `programs/` that run there, in a slice or (None) with the GPU to themselves."""

    def __init__(self, home):
        super().__init__(GPU, driver=DRIVER)
        self.home = home
        self.running = []

    def start(self, program, *words, part=0.5, **env):
        command = [sys.executable, HERE / "programs" / f"{program}.py", *words]
        command = ["env", f"LD_PRELOAD={RUNTIME}", *command]
        if part is not None:
            command = [CANTLE, "run", "--quiet", "--gpu", str(part), "--", *command]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), **env}
        pipe = subprocess.PIPE
        child = Running(subprocess.Popen(self.command(*command), env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        self.running.append(child)
        return child

    def run(self, program, *words, **more):
        """Runs it to its end and gives its last record."""
        return self.start(program, *words, **more).end()

    def stop(self):
        for running in self.running:
            running.child.kill()
        super().stop()


class Running:
    """Programs write one line of JSON at a time and wait, where the test is to look, for a line."""

    def __init__(self, child):
        self.child = child

    def record(self):
        line = self.child.stdout.readline()
        if not line:
            errors = self.child.stderr.read()
            raise AssertionError(f"exit {self.child.wait(timeout=60)}: {errors[-3000:]}")
        return json.loads(line)

    def go_on(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def end(self):
        """Lets it go on to its end, which has to be a good one."""
        out, errors = self.child.communicate(timeout=180)
        assert self.child.returncode == 0, f"exit {self.child.returncode}: {errors[-3000:]}"
        return json.loads(out.splitlines()[-1]) if out else None


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    yield machine
    machine.stop()


@pytest.fixture
def neighbor(machine):
    """Another task on the other half of the card that takes all of its own, and looks for changes of what it sees."""

    @contextlib.contextmanager
    def beside():
        child = machine.start("neighbor")
        before = child.record()
        yield before
        child.go_on()
        assert child.end() == before, "the neighbor noticed"

    return beside
