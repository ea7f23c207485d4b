"""Memory that processes share is charged once, to the process that allocated it."""

import sys

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

HELD = 3000
CONTEXT_MIB = CONTEXT // MIB


@pytest.mark.parametrize("way", ["ipc", "descriptor"])
def test_opening_a_neighbors_memory_costs_nothing(machine, way):
    """Two processes of one slice: 3000 MiB in one, opened by the other, is more than the slice if it counts twice."""
    running = machine.start([sys.executable, HERE / "share.py", way, HELD])
    record = running.record()
    assert record["opened"] == 0, "refused, although nothing new is taken"
    used = machine.used()
    assert used == (HELD + 2 * CONTEXT_MIB) * MIB
    assert LIMIT - record["free"] == used
    running.end()
