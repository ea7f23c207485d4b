"""A machine with GPUs, as an installed driver makes them appear: nothing that a test starts on it knows that they are simulated.

Each has its own file systems where a machine is fresh: `/run` (as distributions mount it) and `/var/lib/cantle`. What cantle
keeps is where it keeps it at a customer's."""

import atexit
import contextlib
import json
import os
import pathlib
import platform
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
CANTLE = DIST / "bin/cantle"
STATE = pathlib.Path("/var/lib/cantle")

_ARCH = f"{platform.machine()}-linux-gnu"
# The library directory of each layout of a driver, and the layouts that the loader does not find by itself.
LIBRARIES = {
    "debian": f"/usr/lib/{_ARCH}",
    "rhel": "/usr/lib64",
    "driver-container": f"/run/nvidia/driver/usr/lib/{_ARCH}",
    "wsl": "/usr/lib/wsl/lib",
    "flatcar": "/opt/nvidia/current/usr/lib64",
    "cos": "/home/kubernetes/bin/nvidia/lib64",
    "nixos": "/run/opengl-driver/lib",
}
UNKNOWN_TO_LOADER = ("driver-container", "cos", "nixos")

# The driver's files are the same in all machines of a test run: they are laid out once.
_driver_files = None

# A process that has opened the device keeps it open until its end: a process of its own, that the machine can go away
# with its test.
WITNESS = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
ask = driver.cantle_sim_truth_json
ask.restype = ctypes.c_ssize_t
text = ctypes.create_string_buffer(1 << 20)
for line in sys.stdin:
    if line.strip() == "reload":
        print(driver.cantle_sim_reload(sys.argv[2].encode()), flush=True)
        continue
    length = ask(sys.argv[2].encode(), text, ctypes.c_size_t(len(text)))
    assert 0 < length < len(text), length
    print(text.value.decode(), flush=True)
"""


def driver_files():
    global _driver_files
    if _driver_files is None:
        _driver_files = tempfile.mkdtemp(prefix="cantle-driver-")
        atexit.register(shutil.rmtree, _driver_files, ignore_errors=True)
    return _driver_files


def skip_unless_built(items, *files):
    """For `pytest_collection_modifyitems` of a suite that runs on a machine: without these files, or without root, its tests are skipped."""
    import pytest  # noqa: PLC0415  the programs of tests/bench use machines without it

    missing = [str(path) for path in files if not path.exists()]
    reason = f"not built: {', '.join(missing)}" if missing else "needs root, to make a machine" if os.geteuid() != 0 else None
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


def own_port():
    """A port for a server that is started again on it. It is outside of the range from which the kernel gives ports, to others too."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(20000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def ahead_of_others():
    """Meanwhile, this process and what it starts run before all other programs of the machine, if it may: where the cores are taken, a program
    whose times are compared would wake up late, and leave its GPU idle."""
    policy, parameter = os.sched_getscheduler(0), os.sched_getparam(0)
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameter)


class Witness:
    """Reads the GPUs' memory through the device node of a machine whose files are below `root`."""

    def __init__(self, root, layout="debian"):
        node = "/dev/dxg" if layout == "wsl" else "/dev/nvidiactl"
        self.outside = pathlib.Path(tempfile.mkdtemp(prefix="cantle-machine-"))
        (self.outside / "state").symlink_to(f"{str(root).rstrip('/')}{node}")
        self._child, self._asking = None, threading.Lock()

    def truth(self):
        return self.ask()["gpus"]

    def ask(self, line=""):
        with self._asking:
            if self._child is None:
                command = [sys.executable, "-c", WITNESS, str(DIST / "lib/cantle/sim/libcuda.so.1"), str(self.outside)]
                self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            print(line, file=self._child.stdin, flush=True)
            return json.loads(self._child.stdout.readline())

    def end(self):
        if self._child is not None:
            self._child.communicate()
        shutil.rmtree(self.outside, ignore_errors=True)


class Machine:
    """With `gpus` None there are none, and no driver. $CANTLE_TEST_DRIVER is the driver of tests that do not name one. `under` are words before
    the command that makes it, for what the machine needs besides."""

    def __init__(self, gpus, layout="debian", driver=None, under=()):
        driver = driver or os.environ.get("CANTLE_TEST_DRIVER")
        version = ["--driver", driver] if driver else []
        options = ["--layout", layout, "--gpus", gpus, *version] if gpus else []
        command = [*under, ROOT / "tests/machine.sh", driver_files(), *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith("CANTLE_")}
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        if self.holder.stdout.readline().strip() != "ready":
            raise RuntimeError(f"no machine with {gpus}: exit code {self.holder.wait()}")
        # The same namespace from outside.
        self.root = pathlib.Path(f"/proc/{self.holder.pid}/root")
        self._witness = Witness(self.root, layout)

    def command(self, *words, user=None):
        """The command line that runs `words` on this machine, as root or as another user."""
        enter = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]
        return [*enter, *self.as_user(user), *map(str, words)]

    @staticmethod
    def as_user(user):
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []

    def path(self, inside):
        """The path of a file of the machine, seen from the test."""
        return self.root / str(inside).lstrip("/")

    def faults(self, script):
        """The faults of the driver from now on; see crates/sim/simgpu/src/nvml/faults.rs."""
        path = self.path(STATE / "sim/faults")
        if script:
            path.write_text(script)
        else:
            path.unlink(missing_ok=True)

    def model(self, *rows):
        """What is different about the driver from now on; see crates/sim/simgpu/README.md."""
        self.path(STATE / "sim/model").write_text("".join(f"{row}\n" for row in rows))

    def checkpoints(self):
        """The processes that the driver has locked or checkpointed, or lost."""
        return self._witness.ask()["checkpoints"]

    def driver(self):
        """The version of its driver, as the kernel's part of it tells."""
        return re.search(r"Kernel Module +(\S+)", self.path("/proc/driver/nvidia/version").read_text())[1]

    def truth(self):
        """The driver's own record of each GPU, read outside of any slice and without cantle."""
        return self._witness.truth()

    def reload(self):
        """The driver is loaded again; False if a process uses it."""
        return self._witness.ask("reload") == 0

    def used(self, gpu=0):
        """Bytes that the driver has allocated on one GPU."""
        return self.truth()[gpu]["used_bytes"]

    def leave(self):
        self._witness.end()

    def stop(self):
        self.leave()
        self.holder.kill()
        self.holder.wait()
        self.holder.stdin.close()
        self.holder.stdout.close()


class Here(Machine):
    """The machine that the test itself runs on: the program that started the test made it, and ends it."""

    def __init__(self, layout="debian"):
        self.root = pathlib.Path("/")
        self._witness = Witness(self.root, layout)

    def command(self, *words, user=None):
        return [*self.as_user(user), *map(str, words)]

    def stop(self):
        self.leave()
