"""Programs that take GPU memory in every way we know, inside a slice and outside, with the simulated driver as witness."""

import ctypes
import json
import os
import pathlib
import select
import shutil
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
CANTLE = ROOT / "dist/bin/cantle"
SIM = ROOT / "dist/lib/cantle/sim"
MIB = 1 << 20
GRANULE = 2 * MIB
LIMIT = 4096 * MIB
GPU = "1xA100-40GB"
# What the simulated driver takes for a context on it.
CONTEXT = 416 * MIB
# NVIDIA's CUDA runtime, as tests/requirements.txt installs it; the package is for CUDA 12.
CUDART = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia/cuda_runtime/lib"


def pytest_collection_modifyitems(items):
    missing = [str(path) for path in (CANTLE, SIM / "libcuda.so.1") if not path.exists()]
    if missing:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"not built: {', '.join(missing)}"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The test programs, compiled."""
    out = tmp_path_factory.mktemp("programs")
    libcuda = str(SIM / "libcuda.so.1")

    def compile(source, target, *flags, compiler="gcc"):
        command = [compiler, "-O1", "-Wall", "-Wextra", "-o", out / target, HERE / source, *flags]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for name in ("access", "allocate", "churn", "processes"):
        compile(f"{name}.c", name, "-Wl,--no-as-needed", libcuda, "-ldl", "-lpthread")
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
    compile("plugin.c", "is_linked.so", "-shared", "-fPIC", "-DLINKED", libcuda)
    return out


class Machine:
    """A simulated machine of one GPU in a private folder."""

    def __init__(self, home):
        self.sim = home / "sim"
        self.sim.mkdir()
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "CANTLE_STATE_DIR": str(home / "state"),
            "CANTLE_SIM_DIR": str(self.sim),
            "CANTLE_SIM_GPUS": GPU,
        }

    def boot(self):
        """Makes the simulated GPUs; else the first program that uses them does, which another user may not."""
        code = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).cuInit(0))"
        subprocess.run(["python3", "-c", code, str(SIM / "libcuda.so.1")], env=self.env, check=True)

    def truth(self):
        """What the simulated driver itself holds of the one GPU, asked outside of any slice."""
        return self.truths()[0]

    def truths(self):
        """The same of all GPUs."""
        code = (
            "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); f = lib.cantle_sim_truth_json; f.restype = ctypes.c_ssize_t\n"
            "d = sys.argv[2].encode(); n = f(d, None, 0); b = ctypes.create_string_buffer(n + 1); f(d, b, n + 1)\n"
            "print(b.value.decode())"
        )
        done = subprocess.run(
            ["python3", "-c", code, str(SIM / "libcuda.so.1"), str(self.sim)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)["gpus"]

    def used(self):
        """Bytes that the simulated driver has given out of the one GPU: as `truth`, fast enough to look on."""
        if not (self.sim / "state").exists():
            return 0
        lib, text = ctypes.CDLL(str(SIM / "libcuda.so.1")), ctypes.create_string_buffer(1 << 20)
        lib.cantle_sim_truth_json.restype = ctypes.c_ssize_t
        length = lib.cantle_sim_truth_json(str(self.sim).encode(), text, len(text))
        assert 0 < length < len(text), length
        return json.loads(text.value)["gpus"][0]["used_bytes"]

    def start(self, command, slice_bytes=LIMIT, env=None):
        """Starts a program, in a slice of so many bytes or (None) with the whole GPU to itself."""
        command = [str(word) for word in command]
        env = {**self.env, **(env or {})}
        if slice_bytes is None:
            env["LD_LIBRARY_PATH"] = str(SIM)
        else:
            command = [str(CANTLE), "run", "--gpu-memory", f"{slice_bytes // MIB}Mi", "--", *command]
        pipe = subprocess.PIPE
        return Running(subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True), self)


class Running:
    def __init__(self, child, machine):
        self.child, self.machine = child, machine

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
        self.child.communicate(timeout=30)
        return self.child.returncode


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def open_to_all(machine, programs):
    """Lets programs of other users reach the machine's files and the test programs."""
    machine.boot()
    for folder in (machine.sim, programs):
        for private in [folder, *folder.parents][:4]:
            private.chmod(private.stat().st_mode | 0o055)


def assert_held_to_its_slice(running, machine, limit=LIMIT):
    """Refused with CUDA's own code, full to the last chunk that fits, and charged exactly what the driver gave."""
    record = running.record()
    assert record["refused"] == 2, record
    assert record["total"] == limit
    used = machine.truth()["used_bytes"]
    assert used <= limit, f"{used} bytes of the GPU are in use in a slice of {limit}"
    assert record["free"] == limit - used, "what is charged is not what the driver gave"
    assert record["free"] < 80 * MIB, "refused although there was room"
    running.end()
    assert machine.truth()["used_bytes"] == 0


def assert_not_held(running):
    """The negative control: the same program outside a slice."""
    record = running.record()
    assert record["refused"] == 0 and record["granted"] >= 2 * LIMIT, record
    running.end()
