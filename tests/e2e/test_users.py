"""Several users on one machine, each with their own cantle, at default directories: no user gets memory of another."""

import json
import os
import subprocess
import sys
import time

import pytest

from machine import CANTLE, Machine

ALICE, BOB, ROOT = 20101, 20102, None
ENV = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}
HOLD = "import time, ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0); print('here', flush=True); time.sleep(600)"


@pytest.fixture
def machine(tmp_path):
    found = Machine("1xA100-40GB")
    found.started = []
    yield found
    for child in found.started:
        child.terminate()
        child.wait()
    found.stop()


def start(machine, user, *words):
    """A task that holds its slice until the test ends."""
    command = machine.command(CANTLE, "run", *words, "--", sys.executable, "-c", HOLD, user=user)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, cwd="/")
    machine.started.append(child)
    return child


def holds(child):
    line = child.stdout.readline()
    assert line == "here\n", child.communicate(timeout=60)
    return child


def run(machine, user, *words):
    command = machine.command(CANTLE, "run", *words, "--", "true", user=user)
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=ENV, cwd="/")


def end(*children):
    for child in children:
        child.terminate()
        child.communicate()


@pytest.mark.parametrize("first, second", [(ALICE, BOB), (ROOT, BOB), (ALICE, ROOT)], ids=["users", "root-first", "user-first"])
def test_two_users_are_not_given_the_same_memory(machine, first, second):
    one = holds(start(machine, first, "--gpu", "0.6"))
    refused = run(machine, second, "--gpu", "0.6")
    assert refused.returncode == 6, refused.stderr
    # The rest can be allocated.
    two = holds(start(machine, second, "--gpu", "0.4"))
    assert run(machine, first, "--gpu", "0.125").returncode == 6
    end(one)
    # The control: without the other user, the same request is granted.
    deadline = time.monotonic() + 60
    while (done := run(machine, second, "--gpu", "0.6")).returncode == 6 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert done.returncode == 0, done.stderr
    end(two)


def test_many_users_at_once(machine):
    """Eight start in the same moment and each asks for a quarter: four get one, four are refused for lack of room."""
    users = [20200 + number for number in range(8)]
    children = [start(machine, user, "--gpu", "0.25") for user in users]
    got = [child.stdout.readline() for child in children]
    assert sorted(got) == [""] * 4 + ["here\n"] * 4, [child.communicate() for child, line in zip(children, got) if not line]
    for child, line in zip(children, got):
        if not line:
            assert child.wait(timeout=60) == 6
    end(*children)


def test_a_user_cannot_take_by_writing_nonsense(machine):
    """A store that is not its user's, and one that holds no leases, count for nothing."""
    forged = machine.path(f"/dev/shm/cantle-{ALICE}/node/leases")
    forged.mkdir(parents=True)
    lease = {"id": "x", "task": "x", "name": "x", "slices": [], "placed_ms": 0, "owner": {"pid": 1, "start_ticks": 0}}
    (forged / "x.json").write_text(json.dumps(lease))
    subprocess.run(machine.command("chown", "-R", str(BOB), f"/dev/shm/cantle-{ALICE}"), check=True)
    own = machine.path("/dev/shm/cantle-20300/node/leases")
    own.mkdir(parents=True)
    (own / "y.json").write_text("nonsense")
    subprocess.run(machine.command("chown", "-R", "20300", "/dev/shm/cantle-20300"), check=True)
    done = run(machine, ROOT, "--gpu", "1")
    assert done.returncode == 0, done.stderr
    assert "cannot read the leases of another user" in done.stderr


@pytest.mark.parametrize("component", ["parent", "node"])
def test_nothing_is_emptied_through_somebody_elses_link(machine, tmp_path, component):
    """Alice makes Bob's store first, as a link to what is Bob's own."""
    store = machine.path(f"/dev/shm/cantle-{BOB}")
    bobs = tmp_path / "bob"
    precious = bobs / ("node/leases" if component == "parent" else "leases") / "precious.json"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    subprocess.run(["chown", "-R", str(BOB), bobs], check=True)
    for folder in (bobs, *tmp_path.parents[:2], tmp_path):
        os.chmod(folder, 0o711)
    mode = bobs.stat().st_mode
    if component == "node":
        store.mkdir()
        store = store / "node"
    store.symlink_to(bobs)
    subprocess.run(machine.command("chown", "-hR", str(ALICE), f"/dev/shm/cantle-{BOB}"), check=True)
    done = run(machine, BOB, "--gpu", "0.25")
    assert done.returncode == 1 and f"/dev/shm/cantle-{BOB}" in done.stderr, done
    assert precious.read_text() == "mine" and bobs.stat().st_mode == mode


def test_a_user_cannot_hold_root_up_or_keep_what_he_does_not_use(machine):
    """A lease that blocks its readers, and one that names the machine's first process: neither counts."""
    held = holds(start(machine, ALICE, "--gpu", "0.25"))
    leases = machine.path(f"/dev/shm/cantle-{ALICE}/node/leases")
    (real,) = leases.glob("*.json")
    lease = json.loads(real.read_text())
    end(held)
    # Field 22: when it started. A lease names its holder by both.
    ticks = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19])
    lease |= {"owner": {"pid": 1, "start_ticks": ticks}, "leader": None}
    lease["slices"][0]["memory_limit_bytes"], lease["slices"][0]["milli"] = 40 << 30, 1000
    (leases / "forged.json").write_text(json.dumps(lease))
    done = run(machine, ROOT, "--gpu", "1")
    assert done.returncode == 0 and "cannot read" not in done.stderr, "it was read, and nobody uses it"
    os.mkfifo(leases / "pipe.json")
    done = run(machine, ROOT, "--gpu", "1")
    assert done.returncode == 0 and "cannot read the leases of another user" in done.stderr


def test_root_does_not_wait_for_a_user_who_holds_the_lock(machine):
    assert run(machine, ALICE, "--gpu", "0.5").returncode == 0
    # One process, which ends with the test.
    hold = machine.command("sh", "-c", "exec 9</dev/shm/cantle.lock; flock 9; echo held; exec sleep 600", user=ALICE)
    holder = subprocess.Popen(hold, cwd="/", stdout=subprocess.PIPE, text=True)
    machine.started.append(holder)
    assert holder.stdout.readline() == "held\n"
    done = run(machine, ROOT, "--gpu", "0.5")
    assert done.returncode == 0 and holder.poll() is None, done.stderr
    assert "somebody holds /dev/shm/cantle.lock" in done.stderr
    other = run(machine, BOB, "--gpu", "0.5")
    assert other.returncode != 0 and "/dev/shm/cantle.lock" in other.stderr
    end(holder)
