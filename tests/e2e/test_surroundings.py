"""Distributions, systemd and security modules change the environment of a program: cantle works there, or reports the
obstacle in one line. systemd itself does not run here; its options are made by the mounts and rights that it would make."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from machine import CANTLE, ROOT, Machine

USER = 20401
FILL = [sys.executable, str(ROOT / "examples/fill_slice.py")]
HALF = 20 << 30


@pytest.fixture(scope="module")
def machine():
    found = Machine("1xA100-40GB")
    yield found
    found.stop()


def run(machine, command, setup="", user=None, env=None):
    """Runs a command after `setup`, which changes a mount namespace of its own."""
    script = f'{setup}\nexec "$@"'
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", script, "sh"]
    other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"] if user else []
    env = {"PATH": os.environ["PATH"], "HOME": "/tmp"} if env is None else env
    return subprocess.run(
        machine.command(*private, *other, *command), env=env, capture_output=True, text=True, timeout=60, cwd="/"
    )


def assert_slice(done, enforced):
    assert done.returncode == 0, done.stderr
    assert enforced in done.stderr
    record = json.loads(done.stdout)
    assert (record["total_bytes"], record["refused_code"]) == (HALF, 2), record


IN_SLICE = [CANTLE, "run", "--gpu", "0.5", "--", *FILL]
HARDENED = f"""
{shlex.quote(str(ROOT / "tests/cover.sh"))} /tmp nosuid,nodev,noexec,mode=1777
mount -o remount,nosuid,nodev,noexec /dev/shm
mount -o remount,nosuid,nodev,noexec /run
"""
# ProtectSystem=strict with the two lines of docs/guide/first-card.md.
PROTECTED = """
mkdir -p /run/cantle /var/lib/cantle
mount --rbind /usr /usr; mount -o remount,bind,ro /usr; mount -o remount,bind,ro /usr/lib
mount --rbind /etc /etc; mount -o remount,bind,ro /etc
mount --rbind /run/cantle /run/cantle
mount -o remount,bind,ro /run
"""


@pytest.mark.parametrize("setup", ["", HARDENED, PROTECTED], ids=["plain", "noexec-and-private-tmp", "protect-system"])
def test_root(machine, setup):
    assert_slice(run(machine, IN_SLICE, setup), "enforced by mount namespace")


@pytest.mark.parametrize("setup", ["", HARDENED], ids=["plain", "noexec-and-private-tmp"])
def test_an_ordinary_user(machine, setup):
    """Also without a directory in /run/user, which a session without logind has not."""
    assert_slice(run(machine, IN_SLICE, setup, user=USER), "enforced by LD_PRELOAD")


def test_the_control_is_not_held(machine):
    record = json.loads(run(machine, FILL).stdout)
    assert record["total_bytes"] == 2 * HALF


def test_a_read_only_run_is_named(machine):
    """ProtectSystem=strict without the two lines."""
    done = run(machine, IN_SLICE, "umount -l /run/cantle; mount -o remount,bind,ro /run")
    assert done.returncode not in (0, 125) and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "/run/cantle" in line and "Read-only file system" in line


def test_mounts_that_are_denied_are_named(machine):
    """A stand-in for AppArmor and SELinux, which this kernel lacks: root without the right to mount gets the same refusal."""
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]
    done = run(machine, [*without, *IN_SLICE])
    assert_slice(done, "enforced by LD_PRELOAD, which a program can evade (no mount namespace: ")
    assert len([line for line in done.stderr.splitlines() if "mount namespace" in line]) == 1


def test_no_new_privileges(machine):
    assert_slice(run(machine, ["setpriv", "--no-new-privs", "--", *IN_SLICE]), "enforced by mount namespace")
