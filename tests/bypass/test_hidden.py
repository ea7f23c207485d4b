"""Memory that the driver takes on its own account is the slice's too, although no hook sees it."""

import json
import sys
import time

import pytest

from conftest import CANTLE, CONTEXT, HERE, LIMIT, MIB

HEAP_MIB = 40
CAPACITY = 40960 * MIB


class Program:
    """In a slice of which this is kept for modules (MiB)."""

    def __init__(self, machine, reserve=None):
        flags = ["--module-reserve", f"{reserve}Mi"] if reserve else []
        slice_of = [CANTLE, "run", "--gpu-memory", f"{LIMIT // MIB}Mi", *flags, "--"]
        self.running = machine.start([*slice_of, sys.executable, HERE / "heap.py"], None)

    def tell(self, command):
        print(command, file=self.running.child.stdin, flush=True)

    def __call__(self, command):
        self.tell(command)
        return self.running.record()


@pytest.fixture
def program(machine):
    program = Program(machine)
    yield program
    program.running.end()


def wait_until_charged(machine, program):
    """Until the program sees the driver's allocations. The driver is compared with the ledger twice a second."""
    deadline = time.monotonic() + 60
    used = min(LIMIT, machine.used())
    while (seen := program("look"))["free"] != LIMIT - used or seen["nvml"] != [LIMIT, LIMIT - used, used]:
        assert time.monotonic() < deadline, (seen, machine.used())
        time.sleep(0.05)


@pytest.mark.parametrize("what, mib", [("heap", 0), ("heap", HEAP_MIB), ("module", 600)])
def test_it_is_charged(machine, program, what, mib):
    """The memory of heap and modules is not available to allocations: a slice fits in its part of the GPU."""
    program(f"{what} {mib}")
    assert machine.used() == CONTEXT + mib * MIB
    wait_until_charged(machine, program)
    assert program("fill")["granted"] == LIMIT - CONTEXT - mib * MIB
    assert machine.used() == LIMIT


def test_a_little_over_the_limit_is_borne(machine, program):
    """A program that had used its slice up is not stopped for a module that it loads then; it gets no more until it is back inside."""
    program("fill")
    program(f"heap {HEAP_MIB}")
    assert machine.used() == LIMIT + HEAP_MIB * MIB
    wait_until_charged(machine, program)
    time.sleep(2)
    assert program("fill")["granted"] == 0


@pytest.mark.parametrize("what", ["heap", "module"])
def test_modules_of_a_full_slice_are_borne_while_nobody_is_hurt(machine, program, what):
    """A framework fills its slice and loads cuBLAS then. The rest of the GPU is unused: the slice gets no more, and
    continues. Its excess is not given to others meanwhile."""
    program("fill")
    program(f"{what} 600")
    assert machine.used() == LIMIT + 600 * MIB
    wait_until_charged(machine, program)
    time.sleep(3)
    assert program("fill")["granted"] == 0
    rest = machine.start(["true"], CAPACITY - LIMIT)
    assert rest.child.wait(timeout=120) == 6, rest.child.stderr.read()
    assert machine.start(["true"], CAPACITY - 2 * LIMIT).child.wait(timeout=120) == 0
    if what == "module":
        return
    program("heap 0")
    wait_until_charged(machine, program)
    assert machine.start(["true"], CAPACITY - LIMIT).child.wait(timeout=120) == 0


@pytest.fixture
def neighbor(machine):
    """Has all of the GPU that the test's slice leaves, and uses little of it."""
    neighbor = machine.start([sys.executable, HERE / "holder.py", 2], CAPACITY - LIMIT)
    assert neighbor.child.stdout.readline() == "holding\n"
    yield neighbor
    assert neighbor.child.poll() is None
    neighbor.end()


def test_a_neighbor_is_not_hurt(machine, neighbor):
    """An excess that is tolerated elsewhere is not tolerated where it would make a neighbor's slice smaller."""
    others = machine.used()
    program = Program(machine)
    program("fill")
    program.tell("heap 400")
    assert program.running.child.wait(timeout=120) == 137
    assert "it holds 4.39 GiB of GPU 0, its limit is 4 GiB" in program.running.child.stderr.read()
    assert machine.used() == others


def test_what_is_kept_for_modules_is_theirs(machine, neighbor):
    """On a card that is let to the last byte, a program fills its slice, then loads cuBLAS and cuDNN: there is room for them. Of more
    allocations it gets CUDA's own error."""
    others, reserve = machine.used(), 640
    program = Program(machine, reserve)
    assert program("look")["free"] == LIMIT - CONTEXT - reserve * MIB, "kept from the start"
    assert program("fill")["granted"] == LIMIT - CONTEXT - reserve * MIB
    program("module 600")
    assert machine.used() == others + LIMIT - 40 * MIB
    time.sleep(3)
    assert program("fill")["granted"] == 0
    assert program.running.end() == 0


def test_limits_show_what_is_kept_for_modules(machine):
    """At most half of a slice; nothing of a whole GPU, whose program hurts nobody."""
    limits = [CANTLE, "run", "--quiet", "--gpu", "0.5", "--module-reserve", "1Gi", "--", CANTLE, "--output", "json", "limits"]
    for part, expected in (("0.5", 1024 * MIB), ("0.025", 512 * MIB), ("1", 0)):
        command = [part if word == "0.5" else word for word in limits]
        out, err = machine.start(command, None).child.communicate(timeout=120)
        (item,) = json.loads(out)["items"]
        assert item["modules_bytes"] == expected <= item["memory_used_bytes"] and item["enforced"], (part, item, err)


def test_what_no_module_takes_is_not_borne(machine):
    program = Program(machine)
    program("fill")
    program.tell("heap 1500")
    assert program.running.child.wait(timeout=120) == 137
    assert "it holds 5.46 GiB of GPU 0, its limit is 4 GiB" in program.running.child.stderr.read()
    assert machine.used() == 0


@pytest.mark.parametrize("processes, mib, code", [(8, 60, None), (9, 60, 137)])
def test_a_task_has_no_more_tolerance_for_having_more_processes(machine, processes, mib, code):
    """Eight processes may exceed a slice by 64 MiB each though the neighbor could not have all of his then; nine may not."""
    limit = processes * (CONTEXT + HEAP_MIB * MIB)
    neighbor = machine.start([sys.executable, HERE / "holder.py", 2], CAPACITY - limit)
    assert neighbor.child.stdout.readline() == "holding\n"
    task = machine.start([sys.executable, HERE / "many.py", processes, HEAP_MIB, HEAP_MIB + mib], limit)
    assert task.child.stdout.readline() == "ready\n"
    time.sleep(1)
    print(file=task.child.stdin, flush=True)
    if code:
        assert task.child.wait(timeout=120) == code
        assert "its limit is" in task.child.stderr.read()
    else:
        assert task.child.stdout.readline() == "exceeded\n"
        time.sleep(4)
        assert task.child.poll() is None
        assert task.end() == 0
    assert neighbor.child.poll() is None
    neighbor.end()
