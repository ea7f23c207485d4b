"""Who brings a driver library of his own goes past the shim, and who spoils his accounting past the limit: the watchdog sees it in the
driver's figures and ends the task."""

import os
import shutil
import sys
import time

import pytest

from conftest import CONTEXT, HERE, LIBCUDA, LIMIT, MIB

HELD = 2000
# Per process over the limit, in MiB.
TOLERATED = 64
CONTEXT_MIB = CONTEXT // MIB
REAL = "/run/cantle/real/libcuda.so.1"

@pytest.fixture
def copy(machine, tmp_path):
    """The driver's library, in the task's own files."""
    return shutil.copy(machine.path(LIBCUDA), tmp_path / "libcuda.so.1")


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
    """What a task takes after that counts as hidden memory, which is charged where the task can't write; or the task is ended."""
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
