"""A task that tries to have more than its slice: what it tries is prevented, or the watchdog sees it in the driver's figures and ends
the task in time. Its neighbor does not notice."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from conftest import CANTLE, CONTEXT, HERE, LIBCUDA, LIMIT, MIB, NOBODY

HELD = 2000
# Per process over the limit, in MiB.
TOLERATED = 64
CONTEXT_MIB = CONTEXT // MIB
REAL = "/run/cantle/real/libcuda.so.1"

@pytest.fixture
def copy(machine):
    """The driver's library, in a directory of the task's own that is a root directory with the machine's devices (and processes: the
    simulated driver has no other way to know who calls it). Not in pytest's own directory, which is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="cantle-jail-") as jail:
        os.chmod(jail, 0o755)
        jail = pathlib.Path(jail)
        for part in ("dev", "proc"):
            (jail / part).mkdir()
            subprocess.run(machine.command("mount", "--rbind", f"/{part}", jail / part), check=True)
        yield pathlib.Path(shutil.copy(machine.path(LIBCUDA), jail / "libcuda.so.1"))


def evader(way, programs, copy):
    by_path = [programs / "access_unlinked", "full_path", LIMIT]
    linked = [programs / "access", "linked", LIMIT, "unused", programs]
    by_name = [programs / "access_unlinked", "dlopen", LIMIT, "unused", programs]
    return {
        "the_real_file": [*by_path, REAL, programs],
        "a_copy": [*by_path, copy, programs],
        "a_copy_found_first": ["env", f"LD_LIBRARY_PATH={os.path.dirname(copy)}", *by_name],
        "a_copy_preloaded": ["env", f"LD_PRELOAD={copy}", *linked],
    }[way]


@pytest.fixture
def neighbor(machine):
    """Another task, which must not notice."""
    neighbor = machine.start([sys.executable, HERE / "holder.py", HELD])
    assert neighbor.child.stdout.readline() == "holding\n"
    yield neighbor
    # The last process of a task that was killed may be about to end.
    deadline = time.monotonic() + 60
    while machine.used() != (CONTEXT_MIB + HELD) * MIB and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    assert neighbor.child.poll() is None
    assert machine.used() == (CONTEXT_MIB + HELD) * MIB
    neighbor.end()


@pytest.mark.parametrize("way", ["the_real_file", "a_copy", "a_copy_found_first", "a_copy_preloaded"])
def test_is_ended_and_nobody_else(machine, programs, copy, neighbor, way):
    running = machine.start(evader(way, programs, copy))
    assert running.record()["granted"] >= 2 * LIMIT, "it was held: then it belongs among the access paths"
    code = running.child.wait(timeout=120)
    said = running.child.stderr.read()
    assert code == 137 and "the task is killed: process" in said, (code, said)


def test_wiping_its_accounting_is_of_no_avail(machine, neighbor):
    """Memory that a task takes after that counts as hidden memory, which is charged where the task can't write; or the task is killed."""
    running = machine.start([sys.executable, HERE / "heap.py"])
    running.child.stdin.write("fill\nwipe\n")
    running.child.stdin.flush()
    assert running.record()["granted"] == LIMIT - CONTEXT
    running.child.stdout.readline()  # empty if the task was ended before it could answer
    deadline = time.monotonic() + 60
    while running.child.poll() is None and machine.used() > LIMIT + (CONTEXT_MIB + HELD + TOLERATED) * MIB:
        assert time.monotonic() < deadline, "it keeps more than its slice"
        time.sleep(0.05)
    running.end()


# From the first byte over the limit to the end of the last process. SPECIFICATION.md promises less on a machine that is not busy
# with other suites. Where it is so busy that this test's own looks at the driver take twice their time, the watchdog's come late too.
WITHIN_S, WITHIN_S_IF_LATE, LOOK_S = 5, 120, 0.02

WAYS = {
    "copies": "ended",
    "memfd": "ended",
    "chroot": "ended",
    "deep": "ended",
    "nameless_deep_chroot": "ended",
    "deep_chroot": "ended",
    "orphan": "ended",
    "orphan_chroot": "ended",
    "own_mounts": "ended",
    "own_mounts_deep": "ended",
    "outside_process": "prevented",
    "outside_accomplice": "ended",
    "outside_accomplice_deep": "ended",
    "own_limits_process": "prevented",
    "own_limits_accomplice": "ended",
    "neighbors_usage": "prevented",
    "bursts": "ended",
    "kill_parent": "ended",
    "stop_parent": "ended",
    "signal": "prevented",
    "trace": "prevented",
    "other_cgroup_deep_chroot": "ended",
    "umount_deep": "ended",
    "lease": "prevented",
    "into_group": "prevented",
    "into_group_accomplice": "prevented",
}


@pytest.fixture
def outsider():
    """A process that no task may reach, of another user: so root needs no more than its user id to look into it."""
    child = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sleep", "600"])
    yield child.pid
    assert child.poll() is None, "it was ended"
    with open(f"/proc/{child.pid}/status") as status:
        assert "stopped" not in status.read()
    child.kill()
    child.wait()


@pytest.fixture
def accomplice(machine, tmp_path):
    """Gives each client the root directory of the machine, outside of any slice."""
    path = str(tmp_path / "accomplice")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    os.chmod(path, 0o777)
    server.listen()

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            root = os.open(machine.root, os.O_RDONLY)
            with connection:
                socket.send_fds(connection, [b"x"], [root])
            os.close(root)

    threading.Thread(target=serve, daemon=True).start()
    yield path
    server.shutdown(socket.SHUT_RDWR)
    server.close()


@pytest.mark.clock
@pytest.mark.parametrize("way", WAYS)
def test_who_tries(machine, copy, neighbor, outsider, accomplice, way):
    """Each way: prevented, or ended in time with the neighbor unharmed (the fixture sees to that)."""
    step, how = way, []
    if way.endswith("_process"):
        step, how = way.removesuffix("_process"), ["proc", outsider, LIMIT]
    elif "_accomplice" in way:
        step, how = way.replace("_accomplice", ""), ["unix", accomplice, LIMIT]
    elif way == "neighbors_usage":
        how = ["proc", neighbors_task(neighbor)]
    elif way in ("signal", "trace"):
        how = ["proc", outsider]
    if step == "into_group":
        how = [*(how or ["path", "/"])[:2], neighbors_group(neighbor)]
    as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if way.startswith("own_mounts") else []
    running = machine.start([*as_user, sys.executable, HERE / "evade.py", step, copy, 2 * LIMIT, *how])
    record = running.record()
    if WAYS[way] == "prevented":
        assert "prevented" in record, record
        running.end()
        return
    assert record.get("granted"), record
    assert_ended_in_time(running, machine)


@pytest.mark.clock
def test_nobody_is_ended_for_a_process_that_was_put_into_its_group(machine, neighbor, copy):
    """A program of root moves the evader into the neighbor's group. It descends from its own task, which is ended for it."""
    running = machine.start([sys.executable, HERE / "evade.py", "when_told", copy, 2 * LIMIT])
    assert running.record() == {"waiting": True}
    evader = next(pid for pid in processes_of("evade.py") if pid != running.child.pid and descends_from(pid, running.child.pid) and is_program(pid))
    with open(f"{neighbors_group(neighbor)}/cgroup.procs", "w") as group:
        group.write(str(evader))
    running.child.stdin.write("\n")
    running.child.stdin.flush()
    assert running.record()["granted"] == 2 * LIMIT
    assert_ended_in_time(running, machine)
    said = running.child.stderr.read()
    assert "is in the control group of" in said and "it counts for" in said, said


def test_pages_that_somebody_cuts_short_end_no_cantle(machine):
    """A program of root outside shortens the files of compute shares, again and again. `cantle run`, which arbitrates, goes on; its task, too."""
    command = [CANTLE, "run", "--gpu", "0.25", "--compute", "fair", "--", "sh", "-c", "echo here; read line; exit 7"]
    running = machine.start(command, slice_bytes=None)
    assert running.child.stdout.readline() == "here\n"
    (slice_dir,) = machine.path("/run/cantle/node/slices").iterdir()
    length = (slice_dir / "grant").stat().st_size
    for _ in range(50):
        for name in ("grant", "launches"):
            os.truncate(slice_dir / name, 0)
        time.sleep(0.01)
    deadline = time.monotonic() + 10
    while (slice_dir / "grant").stat().st_size != length and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (slice_dir / "grant").stat().st_size == length, "the arbiter writes its page again"
    running.child.stdin.write("go on\n")
    running.child.stdin.flush()
    assert running.child.wait(timeout=60) == 7, running.child.stderr.read()


def test_who_fills_the_memory_of_the_node_is_ended(machine, neighbor, copy):
    running = machine.start([sys.executable, HERE / "evade.py", "grow", copy, 0])
    assert running.record() == {"granted": 0}
    assert running.child.wait(timeout=120) == 137
    assert "fills the memory of the node" in running.child.stderr.read()


@pytest.mark.clock
def test_who_nobody_watches_any_more_is_watched_by_the_others(machine, copy, neighbor):
    """Its `cantle run` is killed from outside; the neighbor's sees to it."""
    running = machine.start([sys.executable, HERE / "evade.py", "when_told", copy, 2 * LIMIT])
    assert running.record() == {"waiting": True}
    running.child.kill()
    running.child.wait()
    running.child.stdin.write("\n")
    running.child.stdin.flush()
    assert running.record()["granted"] == 2 * LIMIT
    assert_is_gone_in_time(machine)


@pytest.mark.clock
@pytest.mark.parametrize("way", ["deep_chroot", "nameless_deep_chroot"])
@pytest.mark.parametrize("hidden", ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"])
def test_who_tries_with_older_control_groups_or_none(machine, copy, neighbor, hidden, way):
    """A machine with version 1 only, and one where no group can be made: there the kernel's other signs count. (On a machine with version 2
    only, the first case is the second.)"""
    hidden = hidden if os.path.isdir(hidden) else "/sys/fs/cgroup"
    subprocess.run(machine.command("mount", "-t", "tmpfs", "tmpfs", hidden), check=True)
    running = machine.start([sys.executable, HERE / "evade.py", way, copy, 2 * LIMIT])
    assert running.record().get("granted")
    assert_ended_in_time(running, machine)


@pytest.mark.clock
def test_a_spoiled_lease_hides_no_task(machine, copy, neighbor):
    """A process that may write the store damages the task's lease."""
    running = machine.start([sys.executable, HERE / "evade.py", "watched_when_told", copy, 2 * LIMIT])
    assert running.record() == {"waiting": True}
    leases = machine.path("/run/cantle/node/leases")
    (lease,) = [path for path in leases.glob("*.json") if json.loads(path.read_text())["owner"]["pid"] == running.child.pid]
    lease.write_text("{")
    running.child.stdin.write("\n")
    running.child.stdin.flush()
    assert running.record()["granted"] == 2 * LIMIT
    assert_is_gone_in_time(machine)
    running.child.wait(timeout=120)


def processes_of(word):
    found = subprocess.run(["pgrep", "-f", word], capture_output=True, text=True, check=True).stdout.split()
    return [int(pid) for pid in found]


def neighbors_task(neighbor):
    """The first process of the neighbor's task: below its `cantle run`."""
    return next(pid for pid in processes_of("holder.py") if pid != neighbor.child.pid and descends_from(pid, neighbor.child.pid))


def neighbors_group(neighbor):
    """The directory of its task's group, of version 2."""
    with open(f"/proc/{neighbors_task(neighbor)}/cgroup") as groups:
        group = next(line.strip().removeprefix("0::") for line in groups if line.startswith("0::"))
    with open("/proc/self/mountinfo") as mounts:
        mount = next((line.split()[4] for line in mounts if " - cgroup2 " in line), None)
    if mount is None or group == "/":
        pytest.skip("no group of version 2 can be made here")
    return mount + group


def is_program(pid):
    """The task's own, not one of cantle's that has its command line among its words."""
    return "python" in os.readlink(f"/proc/{pid}/exe")


def descends_from(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            # Another suite's, which has ended.
            return False
    return False


def assert_ended_in_time(running, machine):
    assert_is_gone_in_time(machine)
    assert running.child.wait(timeout=120) == 137, running.child.stderr.read()


def assert_is_gone_in_time(machine):
    looks, began = 0, time.monotonic()
    while machine.used() > LIMIT + (CONTEXT_MIB + HELD + TOLERATED) * MIB:
        time.sleep(LOOK_S)
        looks, passed_s = looks + 1, time.monotonic() - began
        is_late = passed_s > 2 * looks * LOOK_S
        assert passed_s < (WITHIN_S_IF_LATE if is_late else WITHIN_S), f"it keeps more than its slice after {passed_s:.1f} s and {looks} looks"
    print(f"gone after {time.monotonic() - began:.1f} s, {looks} looks")
