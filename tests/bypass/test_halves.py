"""Slices of a GPU of which the driver reserves a part, as real drivers do: all of them can be allocated together."""

import sys

import pytest

from conftest import CANTLE, GRANULE, HERE, MIB
from test_hidden import Program

# What the driver takes for a context is part of it.
INSTALLED, RESERVED, CONTEXT = 23028 * MIB, 516 * MIB, (258 + 6) * MIB
USABLE = INSTALLED - RESERVED


def half(machine):
    program = Program.__new__(Program)
    program.running = machine.start([CANTLE, "run", "--gpu", "0.5", "--", sys.executable, HERE / "heap.py"], None)
    return program


@pytest.mark.parametrize("machine", ["1xA10-24GB:reserved"], indirect=True)
def test_two_halves_can_both_be_filled(machine):
    first, second = half(machine), half(machine)
    for program in (first, second):
        seen = program("fill")
        assert seen["total"] == seen["nvml"][0] == USABLE // 2 // GRANULE * GRANULE
        assert seen["granted"] == seen["total"] - CONTEXT, "not all of its slice"
    assert INSTALLED - RESERVED - 2 * GRANULE <= machine.used() <= USABLE
    for program in (first, second):
        assert program.running.end() == 0


@pytest.mark.parametrize("machine", ["1xA10-24GB:reserved"], indirect=True)
def test_halves_of_what_is_installed_can_not(machine):
    """The negative control: what two halves of NVML's total would be."""
    limit = INSTALLED // 2 // GRANULE * GRANULE
    refused = machine.start(["true"], 2 * limit)
    assert refused.child.wait(timeout=120) != 0, "more than can be had was given out"
    alone = machine.start([sys.executable, HERE / "heap.py"], None)
    alone.child.stdin.write("fill\n")
    alone.child.stdin.flush()
    record = alone.record()
    assert record["total"] == USABLE and record["granted"] == USABLE - CONTEXT < 2 * limit - CONTEXT
    alone.end()
