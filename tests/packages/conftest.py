"""The packages of target/packages, made by tests/packages/run.sh, and systems to install them on."""

import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "target/packages"


def only(pattern):
    """The one package whose name fits."""
    (found,) = PACKAGES.glob(pattern)
    return found


class System:
    """A fresh Debian (debootstrap), in which commands run as in a container: its own mounts and processes, no service manager."""

    def __init__(self, tree):
        self.tree = tree

    def command(self, *words):
        # A root of its own, as containers and machines have: programs in it may make further ones.
        prepare = (
            'ip link set lo up && mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc && mount -t sysfs sysfs sys && mount -t tmpfs tmpfs run && mount --rbind /dev dev'
            ' && pivot_root . . && umount -l . && cd / && exec "$@"'
        )
        return ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", prepare, self.tree, *words]

    def run(self, *words, check=True, timeout=300):
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        done = subprocess.run(self.command(*words), env=env, capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def bring(self, path, name=None):
        """Copies a file into the system's /root; its path there."""
        shutil.copy(path, self.tree / "root" / (name or path.name))
        return f"/root/{name or path.name}"

    def files(self):
        return {str(path.relative_to(self.tree)) for path in self.tree.rglob("*")}


def fresh(*release):
    archive = subprocess.run([ROOT / "tests/rootfs.sh", *release], capture_output=True, text=True, check=True).stdout.strip()
    # Not below /tmp where that is small, and not with the files of the test's own user.
    tree = pathlib.Path(tempfile.mkdtemp(prefix="cantle-system-", dir=ROOT / "target"))
    try:
        subprocess.run(["tar", "-C", tree, "-xf", archive], check=True)
        tree.chmod(0o755)
        yield System(tree)
    finally:
        shutil.rmtree(tree, ignore_errors=True)


@pytest.fixture
def debian():
    """Debian 12."""
    yield from fresh("bookworm")


@pytest.fixture
def old_debian():
    """Debian 11: glibc 2.31 and Python 3.9."""
    yield from fresh("bullseye")
