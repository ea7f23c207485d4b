"""`cantle sim machine`: the simulated driver as an installed one, found by the loader and reached through nodes in /dev."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import pytest

from conftest import MIB, ROOT, Client

sys.path.insert(0, str(ROOT / "tests"))

from machine import CANTLE, UNKNOWN_TO_LOADER  # noqa: E402
from machine import LIBRARIES as LAYOUTS  # noqa: E402
from machine import Machine as Installed  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
NOBODY = 65534
CONTEXT = 104 * MIB  # of a T4

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not CANTLE.exists(), reason="needs root, and a built cantle")


@pytest.fixture
def home_of_nobody():
    with tempfile.TemporaryDirectory(prefix="cantle-home-") as home:
        os.chown(home, NOBODY, NOBODY)
        yield home


# A place in which cantle has not run yet.
FRESH = """
mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
mkdir -p /var/lib/cantle
mount -t tmpfs -o mode=755 tmpfs /var/lib/cantle
exec "$@"
"""


def in_fresh_place(*words, user=None, **env):
    other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", FRESH, "sh", *other, *words]
    env = {"PATH": os.environ["PATH"], "HOME": "/root", **env}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, env=env, timeout=180, stdin=subprocess.DEVNULL)


def sim_machine(*words, **more):
    """Runs `cantle sim machine …` where no machine is yet."""
    return in_fresh_place(CANTLE, "sim", "machine", *words, **more)


LOOK = """
import ctypes, json, os, sys
cu, nvml, found = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1"), {}
number, text = ctypes.c_int(), ctypes.create_string_buffer(96)
found["cuda"] = [cu.cuInit(0), cu.cuDriverGetVersion(ctypes.byref(number)), number.value]
found["cuda_gpus"] = [cu.cuDeviceGetCount(ctypes.byref(number)), number.value]
def uuid(gpu):
    raw = ctypes.create_string_buffer(16)
    assert cu.cuDeviceGetUuid_v2(raw, gpu) == 0
    return raw.raw.hex()
found["uuids"] = [uuid(gpu) for gpu in range(number.value)] if found["cuda_gpus"][0] == 0 else []
nvml.nvmlInit_v2()
found["nvml_gpus"] = [nvml.nvmlDeviceGetCount_v2(ctypes.byref(number)), number.value]
found["driver"] = [nvml.nvmlSystemGetDriverVersion(text, 96), text.value.decode()]
found["files"] = sorted({line.split()[-1] for line in open("/proc/self/maps") if "libcuda" in line or "libnvidia" in line})
found["nodes"] = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia") or name == "dxg")
found["variables"] = [name for name in os.environ if name.startswith("CANTLE")]
found["user"] = os.geteuid()
print(json.dumps(found))
"""


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, user, home_of_nobody):
    """An ordinary user makes it in a user namespace."""
    names_it = ["env", f"LD_LIBRARY_PATH={LAYOUTS[layout]}"] if layout in UNKNOWN_TO_LOADER else []
    options = ["--layout", layout, "--gpus", "2xT4-16GB"]
    env = {"HOME": home_of_nobody} if user else {}
    done = sim_machine(*options, "--", *names_it, sys.executable, "-c", LOOK, user=user, **env, CANTLE_SIM_X="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cuda"][:2] == [0, 0] and found["cuda_gpus"] == [0, 2] and found["nvml_gpus"] == [0, 2]
    # As the kernel names them: the files themselves, not their links.
    code, version = found["driver"]
    files = [f"{LAYOUTS[layout]}/{name}.so.{version}" for name in ("libcuda", "libnvidia-ml")]
    assert code == 0 and found["files"] == files
    own = ["nvidia-caps", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert found["nodes"] == (["dxg"] if layout == "wsl" else own)
    assert found["variables"] == [] and found["user"] == (user or 0)


@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_nothing_of_it_is_outside(user, home_of_nobody):
    """The negative control of the test above: the place without the machine."""
    done = in_fresh_place(sys.executable, "-c", LOOK, user=user, HOME=home_of_nobody)
    assert done.returncode == 1 and "libcuda.so.1: cannot open shared object file" in done.stderr
    assert not list(pathlib.Path("/dev").glob("nvidia*")) and not pathlib.Path("/proc/driver/nvidia").exists()


def test_what_is_in_run_stays_reachable_for_others_than_root(home_of_nobody):
    """A driver container's directory is in /run, where an ordinary user makes none: he gets another /run with the same contents."""
    serve = (
        "import os, socket, subprocess, sys; os.mkdir('/run/there', 0o755); s = socket.socket(socket.AF_UNIX);"
        "s.bind('/run/there/socket'); os.chmod('/run/there/socket', 0o666); s.listen(1); open('/run/file', 'w').write('text');"
        "os.symlink('file', '/run/link'); sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    )
    # Another directory there is mount(8)'s own.
    look = (
        "import os, socket; socket.socket(socket.AF_UNIX).connect('/run/there/socket');"
        "print(open('/run/link').read(), sorted({*os.listdir('/run')} - {'mount'}), os.access('/run', os.W_OK))"
    )
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    words = [CANTLE, "sim", "machine", "--layout", "driver-container", "--", sys.executable, "-c", look]
    done = in_fresh_place(sys.executable, "-c", serve, *user, *words, HOME=home_of_nobody)
    assert (done.stderr, done.stdout) == ("", "text ['cantle', 'file', 'link', 'nvidia', 'there'] False\n")


@pytest.mark.parametrize(
    "words, code, said",
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 42"], 42, ""),
        (["sh", "-c", "kill -9 $$"], -9, ""),
        (["/nowhere/program"], 127, "cantle: cannot start /nowhere/program: No such file or directory (os error 2)\n"),
        (["nowhere-in-path"], 127, "cantle: cannot start nowhere-in-path: No such file or directory (os error 2)\n"),
        (["/etc/passwd"], 126, "cantle: cannot start /etc/passwd: Permission denied (os error 13)\n"),
    ],
)
def test_exit_codes(words, code, said):
    done = sim_machine("--", *words)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--layout", "suse"], '--layout: "suse" is not a layout of a driver; known: debian, rhel, driver-container, wsl, flatcar, cos, nixos'),
        (["--gpus", "1xA1000"], "simulated GPUs: unknown simulated GPU model `A1000`; known: V100-16GB"),
        (["--driver", "12"], '"12" is not a driver that can be simulated; expected a version such as '),
        (["--driver", "390.157"], '"390.157" is not a driver that can be simulated'),
    ],
)
def test_what_can_not_be_had(options, said):
    done = sim_machine(*options, "--", "echo", "started")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"cantle: {said}")


def test_another_driver(nvidia_smi):
    """Its version is wherever programs look for it."""
    version = "535.104.05"
    done = sim_machine("--driver", version, "--", sys.executable, "-c", LOOK)
    found = json.loads(done.stdout)
    assert found["driver"] == [0, version] and found["cuda"] == [0, 0, 12020]
    assert [path.rpartition(".so.")[2] for path in found["files"]] == [version] * 2
    for branch in ("535", "550"):
        table = sim_machine("--driver", version, "--", nvidia_smi / branch / "nvidia-smi").stdout
        assert re.search(rf"Driver Version: {version} +CUDA Version: 12\.2 ", table), table
    assert f"Kernel Module  {version}  " in sim_machine("--driver", version, "--", "cat", "/proc/driver/nvidia/version").stdout


@pytest.mark.full
def test_one_machine_for_all_who_enter_it():
    """Other GPUs only when no process is in it any more."""
    script = """
        machine() { "$0" sim machine "$@"; }
        mkfifo /run/in /run/out
        machine --gpus 2xT4-16GB -- sh -c 'echo ready >/run/out; cat /run/in' &
        read ready </run/out
        machine -- nvidia-smi -L | wc -l
        machine --gpus 2xT4-16GB -- nvidia-smi -L | wc -l
        machine --gpus 1xA100-40GB -- nvidia-smi -L; echo "code $?"
        : >/run/in
        wait
        machine --gpus 1xA100-40GB -- nvidia-smi -L
    """
    done = in_fresh_place("sh", "-c", script, CANTLE)
    lines = done.stdout.splitlines()
    assert lines[:3] == ["2", "2", "code 2"] and lines[3].startswith("GPU 0: NVIDIA A100-SXM4-40GB (") and len(lines) == 4
    assert done.stderr.count("\n") == 1 and "already simulates 2xT4-16GB, not 1xA100-40GB" in done.stderr


@pytest.fixture
def installed():
    machine = Installed("2xT4-16GB")
    yield machine
    machine.stop()


@pytest.fixture
def client(installed):
    """Starts processes with the driver loaded, on the machine; with words that start them otherwise."""
    clients = []

    def start(*words, user=None):
        command = installed.command(*words, sys.executable, HERE / "client.py", user=user)
        clients.append(Client({"PATH": os.environ["PATH"]}, command))
        return clients[-1]

    yield start
    for one in clients:
        one.kill()


def look(installed, user=None):
    done = subprocess.run(installed.command(sys.executable, "-c", LOOK, user=user), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return found["uuids"], found["nvml_gpus"]


def test_a_gpu_whose_node_can_not_be_opened_is_not_there(installed):
    first, second = (gpu["uuid"].removeprefix("GPU-").replace("-", "") for gpu in installed.truth())
    assert look(installed) == look(installed, NOBODY) == ([first, second], [0, 2])
    installed.path("/dev/nvidia0").chmod(0o600)
    assert look(installed) == ([first, second], [0, 2])
    assert look(installed, NOBODY) == ([second], [0, 1])
    installed.path("/dev/nvidia1").chmod(0o600)
    assert look(installed, NOBODY) == ([], [0, 0])
    installed.path("/dev/nvidia0").unlink()
    assert look(installed) == ([second], [0, 1])


def test_nodes_are_real_ones(installed):
    """Of a device, so that container engines pass them on."""
    nodes = [installed.path(f"/dev/{name}") for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm")]
    assert all(node.is_block_device() for node in nodes) and len({node.stat().st_rdev for node in nodes}) == 1


IN_ANOTHER_PID_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def pids(installed, *words):
    smi = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    done = subprocess.run(installed.command(*words, *smi), capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text())


@pytest.mark.full
def test_processes_have_the_pids_of_who_asks(installed, client, nvidia_smi):
    here, there = client(), client(*IN_ANOTHER_PID_NAMESPACE)
    assert here("context()") == 0 and there("context()") == 0
    seen_from_here = child_of(there.pid)
    assert sorted(pids(installed)) == sorted([here.pid, seen_from_here])
    assert sorted(process["pid"] for process in installed.truth()[0]["processes"]) == sorted([here.pid, seen_from_here])
    # The asker there is the first process of its namespace; a call with it sees that number.
    assert there("os.getpid()") == 1
    enter = ["nsenter", f"--pid=/proc/{seen_from_here}/ns/pid", f"--mount=/proc/{seen_from_here}/ns/mnt"]
    assert 1 in pids(installed, *enter) and seen_from_here not in pids(installed, *enter)


@pytest.mark.parametrize("words", [[], IN_ANOTHER_PID_NAMESPACE], ids=["here", "in_another_pid_namespace"])
@pytest.mark.parametrize("user", [None, NOBODY], ids=["root", "nobody"])
def test_memory_of_the_killed_comes_back(installed, client, words, user):
    if words and user:
        # A /proc of his own is not for everybody everywhere.
        words = ["unshare", "--user", "--map-current-user", *words[1:-1]]
    survivor = client()
    survivor("context()")
    for _ in range(3):
        one = client(*words, user=user)
        one("context()"), one(f"alloc({8 << 30})")
        assert installed.used() == 2 * CONTEXT + (8 << 30)
        assert survivor(f"alloc({8 << 30})")[0] == 2
        one.kill()
        # Its end is its parent's, where it is in a namespace of its own; the kernel sees to it a moment later.
        deadline = time.monotonic() + 60
        while installed.used() != CONTEXT and time.monotonic() < deadline:
            time.sleep(0.01)
        assert installed.used() == CONTEXT
        code, address = survivor(f"alloc({8 << 30})")
        assert code == 0 and survivor(f"free({address})") == 0
