"""Real frameworks in slices of simulated GPUs. Stand-ins: the driver, and the CUDA runtime (`libcudart.so.13` and `libcudart.so.12` of
the machine), as NVIDIA's own would not accept a simulated driver. Allocators, errors, graphs and processes are the frameworks' own."""

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
from machine import CANTLE, DIST, ROOT  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
GPU = "1xA100-40GB"
TOTAL = 40960 * MIB
HALF = TOTAL // 2
# The memory of a context on it in the simulated driver.
CONTEXT = 416 * MIB
RUNTIME = "libcudart.so.13"


class Environment:
    """An environment of run.sh, and the stand-in for the runtime that its packages ask for."""

    def __init__(self, python, runtime, **env):
        self.python, self.runtime, self.env = python, runtime, env


CUDA13 = Environment(sys.executable, RUNTIME)
TORCH12 = Environment(ROOT / ".venv-frameworks-torch12/bin/python", "libcudart.so.12")
# JAX asks cuDNN for its version; without one, a variable turns that off.
JAX = Environment(
    ROOT / ".venv-frameworks-jax/bin/python",
    "libcudart.so.12",
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
    TF_CPP_MIN_LOG_LEVEL="3",
)
# CuPy looks for CUDA's libraries where a toolkit is installed; these are in packages. With NVIDIA's runtime among them, that would be
# preloaded.
CUPY_LIBRARIES = (ROOT / ".venv-frameworks-cupy").glob("lib/python3*/site-packages/nvidia/*/lib")
CUPY = Environment(
    ROOT / ".venv-frameworks-cupy/bin/python",
    "libcudart.so.12",
    LD_LIBRARY_PATH=":".join(sorted(str(path) for path in CUPY_LIBRARIES if path.parent.name != "cuda_runtime")),
)
LONG = pytest.mark.skipif(not os.environ.get("CANTLE_TEST_ALL"), reason="long; with CANTLE_TEST_ALL=yes")


def pytest_collection_modifyitems(items):
    machines.skip_unless_built(items, CANTLE, DIST / "lib/cantle/sim" / RUNTIME)


class Machine(machines.Machine):
    """A machine with one GPU, and programs of `programs/` that run there, in a slice or (None) with the GPU to themselves."""

    def __init__(self, home):
        super().__init__(GPU)
        self.home = home
        self.running = []

    def start(self, program, *words, part=0.5, within=CUDA13, **env):
        command = [within.python, HERE / "programs" / f"{program}.py", *words]
        command = ["env", f"LD_PRELOAD={within.runtime}", *command]
        if part is not None:
            command = [CANTLE, "run", "--quiet", "--gpu", str(part), "--", *command]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), **within.env, **env}
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
            raise AssertionError(f"exit {self.child.wait(timeout=180)}: {errors[-3000:]}")
        return json.loads(line)

    def go_on(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def end(self):
        """Lets it go on to its end, which has to be a good one."""
        out, errors = self.child.communicate(timeout=900)
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
