"""A machine with GPUs, as an installed driver makes them appear: nothing that a test starts on it is told that they are simulated.

Each has its own file systems where a machine is fresh: `/run` (as distributions mount it) and `/var/lib/cantle`. What cantle
keeps is where it keeps it at a customer's."""

import atexit
import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
CANTLE = DIST / "bin/cantle"
STATE = pathlib.Path("/var/lib/cantle")

# The driver's files are the same in all machines of a test run: they are laid out once.
_driver_files = None

FRESH = """
set -e
mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
mkdir -p /run/lock && chmod 1777 /run/lock
mkdir -p /var/lib/cantle
mount -t tmpfs -o mode=755 tmpfs /var/lib/cantle
mkdir -p /var/lib/cantle/sim/driver
mount --bind "$1" /var/lib/cantle/sim/driver
shift
exec "$@"
"""


def driver_files():
    global _driver_files
    if _driver_files is None:
        _driver_files = tempfile.mkdtemp(prefix="cantle-driver-")
        atexit.register(shutil.rmtree, _driver_files, ignore_errors=True)
    return _driver_files


class Machine:
    def __init__(self, gpus, layout="debian", driver=None):
        version = ["--driver", driver] if driver else []
        machine = [str(CANTLE), "sim", "machine", "--layout", layout, "--gpus", gpus, *version, "--"]
        hold = ["sh", "-c", "echo ready; exec sleep infinity"]
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", FRESH, "sh", driver_files(), *machine, *hold]
        env = {name: value for name, value in os.environ.items() if not name.startswith("CANTLE_")}
        self.holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)
        if self.holder.stdout.readline().strip() != "ready":
            raise RuntimeError(f"no machine with {gpus}: exit code {self.holder.wait()}")
        # The same namespace from outside.
        self.root = pathlib.Path(f"/proc/{self.holder.pid}/root")
        # The witness reads the GPUs' memory through the machine's own device node.
        self.outside = pathlib.Path(tempfile.mkdtemp(prefix="cantle-machine-"))
        (self.outside / "state").symlink_to(f"/proc/{self.holder.pid}/root{self.control_node(layout)}")

    @staticmethod
    def control_node(layout):
        return "/dev/dxg" if layout == "wsl" else "/dev/nvidiactl"

    def command(self, *words, user=None):
        """The command line that runs `words` on this machine, as root or as another user."""
        enter = ["nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "--"]
        other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
        return [*enter, *other, *map(str, words)]

    def path(self, inside):
        """Where a file of the machine is, seen from the test."""
        return self.root / str(inside).lstrip("/")

    def faults(self, script):
        """What the driver does wrong from now on; see crates/simgpu/src/nvml/faults.rs."""
        path = self.path(STATE / "sim/faults")
        if script:
            path.write_text(script)
        else:
            path.unlink(missing_ok=True)

    def truth(self):
        """What the driver itself holds of each GPU, asked outside of any slice and without anything of cantle's."""
        lib = ctypes.CDLL(str(DIST / "lib/cantle/sim/libcuda.so.1"))
        ask = lib.cantle_sim_truth_json
        ask.restype = ctypes.c_ssize_t
        size = 1 << 20
        text = ctypes.create_string_buffer(size)
        length = ask(str(self.outside).encode(), text, ctypes.c_size_t(size))
        assert 0 < length < size, length
        return json.loads(text.value)["gpus"]

    def stop(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        shutil.rmtree(self.outside, ignore_errors=True)
