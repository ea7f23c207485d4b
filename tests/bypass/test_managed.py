"""Memory that migrates: managed memory is charged in full or refused; what the host has and a GPU reads by itself (HMM) is not charged,
and leaves the GPU when a neighbor allocates."""

import sys
import time

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

TOTAL = 40960 * MIB
HMM = pytest.mark.parametrize("machine", ["1xA100-40GB:hmm"], indirect=True)


class Program:
    def __init__(self, machine, slice_bytes):
        self.running = machine.start([sys.executable, HERE / "managed.py"], slice_bytes)

    def __call__(self, command):
        print(command, file=self.running.child.stdin, flush=True)
        return self.running.record()


@pytest.fixture
def programs_of(machine):
    started = []

    def start(slice_bytes=LIMIT):
        started.append(Program(machine, slice_bytes))
        return started[-1]

    yield start
    assert [program.running.end() for program in started] == [0] * len(started), "one was ended"


def assert_the_rest_can_be_had(machine, start):
    """A neighbor in the rest of the GPU gets all of it."""
    rest = TOTAL - LIMIT
    assert start(rest)("fill")["answer"] == rest - CONTEXT
    time.sleep(3)
    assert machine.used() <= TOTAL


def test_more_than_the_slice_is_refused_in_full(machine, programs_of):
    program = programs_of()
    seen = program(f"managed {2 * LIMIT // MIB}")
    assert seen["answer"] == 2 and seen["free"] == LIMIT - CONTEXT and machine.used() == CONTEXT
    # It comes in chunks of 128 MiB.
    most = (LIMIT - CONTEXT) // (128 * MIB) * 128 * MIB
    assert program(f"managed {most // MIB + 1}")["answer"] == 2
    seen = program(f"managed {most // MIB}")
    assert seen["answer"] == 0 and seen["free"] == LIMIT - CONTEXT - most and machine.used() == CONTEXT + most
    assert program("fill")["answer"] == LIMIT - CONTEXT - most


def test_outside_a_slice_it_is_not(machine, programs_of):
    program = programs_of(None)
    assert program(f"managed {2 * TOTAL // MIB}")["answer"] == 0 and machine.used() == TOTAL


def test_pages_that_are_elsewhere_are_charged(machine, programs_of):
    """As the driver has it, they take nothing until they are used: a program that uses them late has them all the same."""
    program = programs_of()
    assert program(f"managed {LIMIT // 2 // MIB}")["free"] == LIMIT // 2 - CONTEXT
    assert program("fill")["answer"] == LIMIT // 2 - CONTEXT
    assert_the_rest_can_be_had(machine, programs_of)


def test_what_is_taken_unseen_beside_it_takes_no_neighbor_s_memory(machine, programs_of):
    """The driver's figures of a process have no managed memory, so as much of what was taken unseen is not noticed. What can't be
    evicted stays within the slice all the same."""
    program = programs_of()
    assert program("managed 3000")["answer"] == 0
    assert program("heap 3000")["answer"] == 0
    assert machine.used() == CONTEXT + 6000 * MIB > LIMIT
    assert_the_rest_can_be_had(machine, programs_of)


def test_without_managed_memory_it_is_noticed(machine):
    """The negative control."""
    program = Program(machine, LIMIT)
    program("heap 6000")
    assert program.running.child.wait(timeout=120) == 137


@HMM
def test_the_host_s_memory_comes_uncharged_and_leaves_for_a_neighbor(machine, programs_of):
    """Not enforced, as docs/security.md says: no call shows it."""
    program = programs_of()
    size = 2 * LIMIT
    seen = program(f"malloc {size // MIB}")
    assert seen["answer"] == 0 and seen["free"] == LIMIT - CONTEXT, seen
    assert machine.used() == CONTEXT + size > LIMIT
    assert_the_rest_can_be_had(machine, programs_of)
    assert machine.used() <= TOTAL


def test_without_hmm_the_host_s_memory_stays(machine, programs_of):
    assert programs_of()("malloc 64")["answer"] == 1 and machine.used() == CONTEXT
