"""A simulated machine in a private directory, and processes that use its driver."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import machine as machines  # noqa: E402

LIB = pathlib.Path(os.environ.get("CANTLE_LIB_DIR", ROOT / "dist/lib/cantle")) / "sim"
DATA = ROOT / "crates/sim/simgpu/data"
MIB = 1 << 20
GIB = 1 << 30


def pytest_collection_modifyitems(items):
    if not (LIB / "libcuda.so.1").exists():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"no simulated driver in {LIB}: run `make build`"))


@pytest.fixture(autouse=True, scope="session")
def ahead_of_others():
    with machines.ahead_of_others():
        yield


class Client:
    """A process with the driver loaded that evaluates Python expressions over it, see client.py."""

    def __init__(self, env, argv):
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def __call__(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the client died on {expression!r}"
        return json.loads(answer)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0


class Machine:
    def __init__(self, folder, spec):
        self.folder = folder
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LD_LIBRARY_PATH": str(LIB),
            "CANTLE_SIM_DIR": str(folder / "sim"),
            "CANTLE_SIM_GPUS": spec,
        }
        self.clients = []

    def client(self, program="client.py", **env):
        client = Client({**self.env, **env}, [sys.executable, str(pathlib.Path(__file__).parent / program)])
        self.clients.append(client)
        return client

    def run(self, *argv, code=0, **env):
        """Runs a program on this machine and returns its output."""
        done = subprocess.run(
            list(map(str, argv)), env={**self.env, **env}, capture_output=True, text=True, timeout=180
        )
        assert done.returncode == code, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def truth(self):
        """The driver's own record."""
        library = ctypes.CDLL(str(LIB / "libcuda.so.1"))
        library.cantle_sim_truth_json.restype = ctypes.c_ssize_t
        buffer = ctypes.create_string_buffer(1 << 20)
        length = library.cantle_sim_truth_json(
            self.env["CANTLE_SIM_DIR"].encode(), buffer, ctypes.c_size_t(len(buffer))
        )
        assert 0 < length < len(buffer)
        return json.loads(buffer.value)["gpus"]

    def reload(self):
        """The driver is loaded again, unless a process uses it."""
        library = ctypes.CDLL(str(LIB / "libcuda.so.1"))
        return library.cantle_sim_reload(self.env["CANTLE_SIM_DIR"].encode()) == 0

    def set_driver(self, version):
        """Another version of the driver, from now on."""
        library = ctypes.CDLL(str(LIB / "libcuda.so.1"))
        return library.cantle_sim_set_driver(self.env["CANTLE_SIM_DIR"].encode(), version.encode()) == 0

    def used(self, gpu=0):
        return self.truth()[gpu]["used_bytes"]


@pytest.fixture
def machine(request, tmp_path):
    """Three A100-40GB, or what `@pytest.mark.gpus(...)` says."""
    mark = request.node.get_closest_marker("gpus")
    machine = Machine(tmp_path, mark.args[0] if mark else "3xA100-40GB")
    yield machine
    for client in machine.clients:
        client.kill()


@pytest.fixture
def python():
    return sys.executable


@pytest.fixture(scope="session")
def nvidia_smi():
    done = subprocess.run([ROOT / "tests/setup-nvidia-smi.sh"], capture_output=True, text=True, timeout=300)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return ROOT / ".cache/nvidia-smi"
