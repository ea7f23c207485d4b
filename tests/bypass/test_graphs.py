"""Graphs that allocate are charged what they take: no more, so that what fits runs, and no less."""

import sys

import pytest

from conftest import HERE, LIMIT

OUT_OF_MEMORY, NOT_SUPPORTED = 2, 801
# What each way does in a slice, and as well on a GPU without one.
ALIKE = {
    "reuse": [0, 0, 0],
    "together": [OUT_OF_MEMORY],
    "auto_free": [0, 0, 0, 0],
    "captured": [0, 0, 0],
    "freed_between": [0, 0, OUT_OF_MEMORY, 0],
    "freed_by_another": [0, 0, 0, OUT_OF_MEMORY],
    "on_host": [0, 0],
}


def codes(machine, way, limit=LIMIT):
    running = machine.start([sys.executable, HERE / "graphs.py", way], limit)
    record, used = running.record(), machine.used()
    running.end()
    assert limit is None or used <= limit, f"{used} bytes are in use"
    return record["codes"]


@pytest.mark.parametrize("way", ALIKE)
def test_a_graph_in_a_slice(machine, way):
    assert codes(machine, way)[: len(ALIKE[way])] == ALIKE[way]


@pytest.mark.parametrize("way", ALIKE)
def test_a_graph_without_a_slice(machine, way):
    """The control."""
    assert codes(machine, way, None)[: len(ALIKE[way])] == ALIKE[way]


def test_managed_memory_of_a_graph_is_refused(machine):
    """As that of a pool: it moves to a GPU without a call."""
    assert codes(machine, "managed") == [NOT_SUPPORTED]
    assert codes(machine, "managed", None) == [0]
