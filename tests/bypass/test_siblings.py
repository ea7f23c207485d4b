"""A sibling's memory is free again at the next query; frameworks size their pools by that number."""

import sys

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

HELD = 64
CAPACITY = 40960 * MIB


@pytest.mark.clock
@pytest.mark.parametrize("limit", [2 * LIMIT, None])
def test_it_is_free_at_once(machine, limit):
    """Without a slice (None) it is the driver's own answer: the same."""
    running = machine.start([sys.executable, HERE / "siblings.py", HELD], limit)
    seen = running.record()
    running.end()
    print(seen)
    room = (limit or CAPACITY) - CONTEXT
    assert seen.pop("before") == room
    assert seen.pop("with") == room - CONTEXT - HELD * MIB
    costs = {name: seen.pop(name) for name in ("alone_us", "of_eight_us")}
    assert set(seen.values()) == {room}, seen
    # The bound of a report: a few system calls for each living process of the slice. Wide, for a machine that does other things.
    assert costs["of_eight_us"] < 1000, costs
