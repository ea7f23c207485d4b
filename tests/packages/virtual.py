"""A virtual machine with Debian 12 (vm.sh). GPUs and driver are simulated, and there before its PID 1: nothing in it can tell when they
came. qemu emulates the processor, so all of it is about ten times slower than the machine that runs it."""

import pathlib
import shlex
import shutil
import socket
import subprocess
import time

import pytest

from booted import Booted
from conftest import ROOT

GPUS = "3xA100-40GB,1xA100-40GB:mig"
# One process keeps the simulated GPUs open, since systemd closes every file. The loader's cache is the system's own again, with the
# driver's libraries in it: package managers replace that file.
INIT = f"""#!/bin/sh
modprobe loop
exec /opt/gpus/bin/cantle --sim-dir /opt/gpus/state sim machine --gpus {GPUS} -- \\
    sh -c 'umount /etc/ld.so.cache && ldconfig; sleep infinity </dev/nvidiactl & exec /lib/systemd/systemd'
"""
MEMORY_MIB = 4096


class Virtual(Booted):
    """With a user `root`, reached by SSH."""

    # Of its services; version 2.
    mode = "v2"

    def __init__(self, made, dir):
        self.made, self.dir, self.booted = pathlib.Path(made), pathlib.Path(dir), None
        self.disk, self.init = self.dir / "disk.img", "/lib/systemd/systemd"
        # Blocks that nobody wrote take no room.
        subprocess.run(["cp", "--sparse=always", self.made / "disk.img", self.disk], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def machine(self):
        words = ["qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB)]
        words += ["-display", "none", "-no-reboot", "-serial", f"file:{self.dir / 'console'}", "-device", "virtio-rng-pci"]
        words += ["-kernel", self.made / "kernel", "-initrd", self.made / "initrd"]
        words += ["-append", f"console=ttyS0 root=/dev/vda rw init={self.init}"]
        words += ["-drive", f"file={self.disk},format=raw,if=virtio,cache=unsafe"]
        return [*words, "-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22", "-device", "virtio-net-pci,netdev=net"]

    def is_reachable(self):
        # Whether anyone answers, only a try shows. Until then each takes processor time from the boot.
        time.sleep(1)
        return True

    def ssh(self, program, *words):
        known = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=10"]
        return [program, "-q", "-i", str(self.made / "key"), *known, *words]

    def command(self, *words):
        return self.ssh("ssh", "-p", str(self.port), "root@127.0.0.1", shlex.join(map(str, words)))

    def bring(self, path, name=None):
        """Copies a file or a directory into /root."""
        there = f"/root/{name or pathlib.Path(path).name}"
        subprocess.run(self.ssh("scp", "-r", "-P", str(self.port), str(path), f"root@127.0.0.1:{there}"), check=True, timeout=600)
        return there

    def write(self, path, text):
        subprocess.run(self.command("sh", "-c", f"cat >{path}"), input=text, text=True, check=True, timeout=60)

    def prepare(self, package):
        """Installs a package, then inserts GPUs with their driver: the machine does not run yet. (In the running machine, what is written
        to the driver's directories is gone after a restart.)"""
        tree = self.dir / "tree"
        tree.mkdir()
        subprocess.run(["mount", "-o", "loop", self.disk, tree], check=True)
        try:
            shutil.copy(package, tree / "root")
            subprocess.run(["chroot", tree, "dpkg", "--install", f"/root/{package.name}"], check=True, stdout=subprocess.DEVNULL)
            shutil.copytree(ROOT / "dist", tree / "opt/gpus")
            init = tree / "opt/gpus/init"
            init.write_text(INIT)
            init.chmod(0o755)
        finally:
            subprocess.run(["umount", tree], check=True)
        self.init = "/opt/gpus/init"

    def off(self):
        super().off()
        self.disk.unlink(missing_ok=True)


def made():
    """The directory with its parts, or the reason why there is none."""
    found = subprocess.run([ROOT / "tests/packages/vm.sh"], capture_output=True, text=True)
    if found.returncode == 77:
        pytest.skip(found.stderr.strip().removeprefix("skipped: "))
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()
