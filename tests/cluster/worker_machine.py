"""The machine that a worker node is: its file systems are fresh, and it gets other GPUs for each test while its kubelet and its
containerd run on."""

import os
import pathlib
import shutil
import subprocess
import sys

from processes import end_with_parent

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from machine import CANTLE, STATE, Machine, Witness, driver_files  # noqa: E402

# /run as distributions mount it; run.sh made the directories.
FRESH = """
set -e
mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs /run
for folder in /opt/cantle /var/lib/kubelet /var/lib/cantle; do mount -t tmpfs -o mode=755 tmpfs $folder; done
mkdir -p /run/cdi /var/lib/cantle/sim/driver /run/kernel/proc /run/kernel/sys
# The simulated driver covers parts of /proc and /sys. A real one covers nothing, and the kernel mounts both in a user namespace only where
# they are to be seen as they are.
mount -t proc proc /run/kernel/proc
mount -t sysfs sysfs /run/kernel/sys
mount --bind "$0" /var/lib/cantle/sim/driver
echo ready
exec sleep infinity
"""
GRAFT = pathlib.Path(__file__).with_name("graft.py")


class WorkerMachine(Machine):
    """Without GPUs at first."""

    def __init__(self):
        self.holder = self.hold(["unshare", "--mount", "--propagation", "private", "sh", "-c", FRESH, driver_files()])
        self.root = pathlib.Path(f"/proc/{self.holder.pid}/root")
        self._witness, self.gpus, self.grafted = None, None, []

    @staticmethod
    def hold(command):
        """Starts what keeps a machine there."""
        options = {"env": {"PATH": os.environ["PATH"]}, "preexec_fn": end_with_parent}
        holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options)
        if holder.stdout.readline().strip() != "ready":
            raise RuntimeError(f"no machine: {command} ended with {holder.wait()}")
        return holder

    def insert(self, gpus, layout="debian", driver=None):
        """Other GPUs than before, and nothing that cantle wrote down about those. No pod runs."""
        self.remove_gpus()
        hold = ["sh", "-c", "echo ready; exec sleep infinity"]
        version = ["--driver", driver] if driver else []
        self.gpus = self.hold(self.command(CANTLE, "sim", "machine", "--layout", layout, "--gpus", gpus, *version, "--", *hold))
        graft = [sys.executable, GRAFT, str(self.gpus.pid), str(self.holder.pid)]
        self.grafted = subprocess.run(graft, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.split()
        self._witness = Witness(self.root)

    def remove_gpus(self):
        if self._witness is not None:
            self.leave()
            self._witness = None
        if self.grafted:
            # A program that replaces a file of this machine, as ldconfig does with /etc/ld.so.cache, removes what is mounted
            # over it.
            lines = pathlib.Path(f"/proc/{self.holder.pid}/mountinfo").read_text().splitlines()
            mounted = {line.split()[4] for line in lines}
            still = [place for place in self.grafted if place in mounted]
            if still:
                subprocess.run(self.command("umount", "--lazy", *still), check=True, timeout=60)
            self.grafted = []
        if self.gpus is not None:
            end(self.gpus)
            self.gpus = None
        # The driver's files are the same for all GPUs.
        state, sim = self.path(STATE), self.path(STATE / "sim")
        for each in [*state.iterdir(), *sim.iterdir()]:
            if each not in (sim, sim / "driver"):
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()

    def stop(self):
        self.remove_gpus()
        end(self.holder)


def end(holder):
    holder.kill()
    holder.wait()
    holder.stdout.close()
