"""Memory that the driver takes on its own account is the slice's too, although no hook sees it."""

import sys
import time

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

HEAP_MIB = 40
CAPACITY = 40960 * MIB


class Program:
    def __init__(self, machine):
        self.running = machine.start([sys.executable, HERE / "heap.py"])

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
    """Until the program sees what the driver has given out. The driver is compared with the ledger twice a second."""
    deadline = time.monotonic() + 30
    used = min(LIMIT, machine.used())
    while (seen := program("look"))["free"] != LIMIT - used or seen["nvml"] != [LIMIT, LIMIT - used, used]:
        assert time.monotonic() < deadline, (seen, machine.used())
        time.sleep(0.05)


@pytest.mark.parametrize("heap_mib", [0, HEAP_MIB])
def test_it_is_charged(machine, program, heap_mib):
    """What the heap takes, allocations can't have: a slice fits in its part of the card."""
    program(f"heap {heap_mib}")
    assert machine.used() == CONTEXT + heap_mib * MIB
    wait_until_charged(machine, program)
    assert program("fill")["granted"] == LIMIT - CONTEXT - heap_mib * MIB
    assert machine.used() == LIMIT


def test_a_little_over_the_limit_is_borne(machine, program):
    """A program that had used its slice up is not stopped for a module that it loads then; it gets no more until it is back inside."""
    program("fill")
    program(f"heap {HEAP_MIB}")
    assert machine.used() == LIMIT + HEAP_MIB * MIB
    wait_until_charged(machine, program)
    time.sleep(2)
    assert program("fill")["granted"] == 0


def test_modules_of_a_full_slice_are_borne_while_nobody_is_hurt(machine, program):
    """A framework fills its slice and loads cuBLAS then. The rest of the GPU is nobody's: the slice gets no more, and goes on. What it
    took is not given to others meanwhile."""
    program("fill")
    program("heap 600")
    assert machine.used() == LIMIT + 600 * MIB
    wait_until_charged(machine, program)
    time.sleep(3)
    assert program("fill")["granted"] == 0
    rest = machine.start(["true"], CAPACITY - LIMIT)
    assert rest.child.wait(timeout=60) == 6, rest.child.stderr.read()
    assert machine.start(["true"], CAPACITY - 2 * LIMIT).child.wait(timeout=60) == 0
    program("heap 0")
    wait_until_charged(machine, program)
    assert machine.start(["true"], CAPACITY - LIMIT).child.wait(timeout=60) == 0


@pytest.fixture
def neighbor(machine):
    """Has all of the GPU that the test's slice leaves, and uses little of it."""
    neighbor = machine.start([sys.executable, HERE / "holder.py", 2], CAPACITY - LIMIT)
    assert neighbor.child.stdout.readline() == "holding\n"
    yield neighbor
    assert neighbor.child.poll() is None
    neighbor.end()


def test_a_neighbor_is_not_hurt(machine, neighbor):
    """What is borne elsewhere is not where a neighbor's slice would be the smaller for it."""
    others = machine.used()
    program = Program(machine)
    program("fill")
    program.tell("heap 400")
    assert program.running.child.wait(timeout=60) == 137
    assert "it holds 4.39 GiB of GPU 0, its limit is 4 GiB" in program.running.child.stderr.read()
    assert machine.used() == others


def test_what_no_module_takes_is_not_borne(machine):
    program = Program(machine)
    program("fill")
    program.tell("heap 1500")
    assert program.running.child.wait(timeout=60) == 137
    assert "it holds 5.46 GiB of GPU 0, its limit is 4 GiB" in program.running.child.stderr.read()
    assert machine.used() == 0
