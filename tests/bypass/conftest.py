"""Programs that take GPU memory in every way we know, inside a slice and outside, on a machine with a driver that is the witness."""

import json
import os
import pathlib
import platform
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import machine as machines  # noqa: E402
from machine import CANTLE, ROOT  # noqa: E402

# The library that programs are linked with; they find the machine's own.
STUB = ROOT / "dist/lib/cantle/sim/libcuda.so.1"
# The directory of the machine's driver, as on Debian.
LIBCUDA = pathlib.Path(f"/usr/lib/{platform.machine()}-linux-gnu/libcuda.so.1")
MIB = 1 << 20
GRANULE = 2 * MIB
LIMIT = 4096 * MIB
GPU = "1xA100-40GB"
# An ordinary user.
NOBODY = 65534
# The memory of a context on it in the simulated driver.
CONTEXT = 416 * MIB
# NVIDIA's CUDA runtime, as tests/requirements.txt installs it; the package is for CUDA 12.
CUDART = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/lib"


def pytest_collection_modifyitems(items):
    machines.skip_unless_built(items, CANTLE, STUB)


@pytest.fixture(scope="session")
def programs():
    """The test programs, compiled. Not in pytest's own directory, which other sessions of it close to other users."""
    with tempfile.TemporaryDirectory(prefix="cantle-programs-") as folder:
        os.chmod(folder, 0o755)
        compile_into(pathlib.Path(folder))
        yield pathlib.Path(folder)


def compile_into(out):
    def compile(source, target, *flags, compiler="gcc"):
        command = [compiler, "-O1", "-Wall", "-Wextra", "-o", out / target, HERE / source, *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for name in ("access", "allocate", "churn", "processes"):
        compile(f"{name}.c", name, "-Wl,--no-as-needed", str(STUB), "-ldl", "-lpthread")
    compile("access.c", "access_unlinked", "-ldl", "-lpthread")
    if shutil.which("musl-gcc"):
        compile("musl.c", "musl", compiler="musl-gcc")
        compile("musl.c", "musl_static", "-static", compiler="musl-gcc")
    if CUDART.exists():
        # The runtime must find the program's dlsym, also if it is a shared library.
        exported, rpath = "-Wl,--export-dynamic-symbol=dlsym", f"-Wl,-rpath,{CUDART}"
        compile("runtime.c", "runtime_shared", exported, rpath, str(CUDART / "libcudart.so.12"), "-ldl")
        compile("runtime.c", "runtime_static", exported, str(CUDART / "libcudart_static.a"), "-ldl", "-lpthread", "-lrt")
    compile("self_calling_nvml.c", "libnvidia-ml.so.1", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1")
    compile("plugin.c", "looks_up.so", "-shared", "-fPIC", "-ldl")
    compile("plugin.c", "is_linked.so", "-shared", "-fPIC", "-DLINKED", str(STUB))


class Machine(machines.Machine):
    """A machine, and the programs that are started on it."""

    def __init__(self, home, gpus=GPU, **more):
        super().__init__(gpus, **more)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home)}

    def start(self, command, slice_bytes=LIMIT, env=None, user=None):
        """Starts a program, in a slice of this number of bytes or (None) with the whole GPU to itself."""
        if slice_bytes is not None:
            command = [CANTLE, "run", "--gpu-memory", f"{slice_bytes // MIB}Mi", "--", *command]
        pipe, env = subprocess.PIPE, {**self.env, **(env or {})}
        child = subprocess.Popen(self.command(*command, user=user), env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        return Running(child)


class Running:
    def __init__(self, child):
        self.child = child

    def record(self):
        """The program's one line. It stays alive, so that others can look, until `end`."""
        line = self.child.stdout.readline()
        if not line:
            code = self.child.wait()
            if code == 4:
                pytest.skip("the simulated driver does not have this function yet")
            raise AssertionError(f"exit {code}: {self.child.stderr.read()}")
        return json.loads(line)

    def has_line(self):
        return bool(select.select([self.child.stdout], [], [], 0.001)[0])

    def end(self):
        self.child.communicate(timeout=120)
        return self.child.returncode


@pytest.fixture
def machine(request, tmp_path):
    """A machine with one GPU, or what `@pytest.mark.parametrize("machine", …, indirect=True)` says: its GPUs, or named words."""
    asked = getattr(request, "param", GPU)
    machine = Machine(tmp_path, **asked) if isinstance(asked, dict) else Machine(tmp_path, asked)
    yield machine
    machine.stop()


@pytest.fixture
def home_of_nobody():
    """The directory of an ordinary user."""
    with tempfile.TemporaryDirectory(prefix="cantle-home-") as home:
        os.chown(home, NOBODY, NOBODY)
        yield home


def assert_held_to_its_slice(running, machine, limit=LIMIT, chunk=80 * MIB):
    """Refused with CUDA's own code, full to the last chunk that fits, and charged exactly what the driver gave."""
    record = running.record()
    assert record["refused"] == 2, record
    assert record["total"] == limit
    used = machine.used()
    assert used <= limit, f"{used} bytes of the GPU are in use in a slice of {limit}"
    assert record["free"] == limit - used, "what is charged is not what the driver gave"
    assert record["free"] < chunk, "refused although there was room"
    running.end()
    assert machine.used() == 0


def assert_not_held(running):
    """The negative control: the same program outside a slice."""
    record = running.record()
    assert record["refused"] == 0 and record["granted"] >= 2 * LIMIT, record
    running.end()
