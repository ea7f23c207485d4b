"""Debian for aarch64 on a machine of another architecture: its programs are started through qemu.

Since Linux 6.7 each user namespace has its own table of such interpreters (binfmt_misc), so nothing is registered on this machine.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from conftest import ROOT, System

sys.path.insert(0, str(ROOT / "packaging"))

from architecture import Architecture
from image import apt_get, apt_options

AARCH64 = Architecture("aarch64")
PACKAGES = ("python3", "python3-venv", "util-linux", "mount", "coreutils", "dash", "libc-bin")
# The beginning of an ELF program or library for aarch64, and which of its bits count.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


class Emulated(System):
    """As the systems of other tests, with a user namespace in addition."""

    def command(self, *words):
        # F: the kernel opens the interpreter now, so that it need not exist below the root of its own.
        table = f":aarch64:M::{MAGIC}:{MASK}:{shutil.which('qemu-aarch64-static')}:F"
        prepare = (
            'ip link set lo up && mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount -t binfmt_misc none proc/sys/fs/binfmt_misc'
            ' && printf %s "$1" >proc/sys/fs/binfmt_misc/register && shift && mount -t sysfs sysfs sys && mount -t tmpfs tmpfs run'
            ' && mount --rbind /dev dev && pivot_root . . && umount -l . && cd / && exec "$@"'
        )
        namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--net", "--fork", "--kill-child"]
        return ["unshare", *namespaces, "sh", "-c", prepare, self.tree, table, *words]


def fresh():
    """The packages are unpacked, not configured: a package's scripts would be half of the time."""
    folder = ROOT / "target/emulated-packages"
    folder.mkdir(parents=True, exist_ok=True)
    options = apt_options(folder, AARCH64)
    apt_get(folder, *options, "install", "--download-only", "--yes", "--no-install-recommends", *PACKAGES)
    tree = pathlib.Path(tempfile.mkdtemp(prefix="cantle-aarch64-", dir=ROOT / "target"))
    try:
        for name in ("bin", "sbin", "lib"):
            (tree / "usr" / name).mkdir(parents=True)
            (tree / name).symlink_to(f"usr/{name}")
        for package in (folder / "cache/archives").glob("*.deb"):
            files = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-C", tree, "-x", "--keep-directory-symlink"], input=files, check=True)
        for name in ("proc", "sys", "dev", "run", "tmp", "root"):
            (tree / name).mkdir(exist_ok=True)
        (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        tree.chmod(0o755)
        debian = Emulated(tree)
        # What a script of a package does everywhere.
        debian.run("ldconfig")
        yield debian
    finally:
        shutil.rmtree(tree, ignore_errors=True)
