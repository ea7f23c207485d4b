"""Every kind of memory that a program takes is charged exactly."""

import sys
import time

import pytest

from conftest import CONTEXT, GPU, GRANULE, HERE, LIMIT, MIB, assert_held_to_its_slice, assert_not_held
from paths import KINDS, LOCAL_KINDS

# The first driver of CUDA 13.5.
NEW_DRIVER = {"gpus": GPU, "driver": "620.35.02"}

# Never more than the slice at a time, so never refused, however much in sum.
GIVEN_BACK = ["host", "physical_on_host", "crosswise", "context_after_context", "primary_context_reset"]


@pytest.mark.parametrize("kind", KINDS)
def test_is_held_to_the_slice(machine, programs, kind):
    # Managed memory comes in chunks of 128 MiB.
    chunk = {"managed": 128 * MIB}.get(kind, 80 * MIB)
    assert_held_to_its_slice(machine.start([programs / "allocate", kind, LIMIT]), machine, chunk=chunk)


@pytest.mark.parametrize("kind", KINDS)
def test_is_not_outside(machine, programs, kind):
    assert_not_held(machine.start([programs / "allocate", kind, LIMIT], slice_bytes=None))


@pytest.mark.parametrize("machine", [NEW_DRIVER], indirect=True)
@pytest.mark.parametrize("kind", LOCAL_KINDS)
def test_a_locality_domain_is_held_to_the_slice(machine, programs, kind):
    assert_held_to_its_slice(machine.start([programs / "allocate", kind, LIMIT]), machine)


@pytest.mark.parametrize("machine", [NEW_DRIVER], indirect=True)
@pytest.mark.parametrize("kind", LOCAL_KINDS)
def test_a_locality_domain_is_not_outside(machine, programs, kind):
    assert_not_held(machine.start([programs / "allocate", kind, LIMIT], slice_bytes=None))


@pytest.mark.parametrize("kind", GIVEN_BACK)
def test_is_given_back(machine, programs, kind):
    running = machine.start([programs / "allocate", kind, LIMIT])
    record = running.record()
    assert record["refused"] == 0 and record["granted"] >= 2 * LIMIT, record
    used = machine.used()
    assert record["free"] == LIMIT - used and used < LIMIT // 2, "something stays charged"
    running.end()


def test_the_last_granule_is_given_and_no_more(machine, programs):
    """A slice of the context and three granules: three are given."""
    running = machine.start([programs / "allocate", "odd", LIMIT], slice_bytes=CONTEXT + 3 * GRANULE)
    record = running.record()
    assert record["granted"] == 2 * GRANULE and record["refused"] == 2 and record["free"] == GRANULE
    running.end()


@pytest.mark.parametrize("rest, in_use, given", [("full", {LIMIT}, 0), ("spare", {LIMIT - GRANULE, LIMIT}, 1)])
def test_room_in_pieces_is_no_room(machine, rest, in_use, given):
    """The driver would make a new slab. In a full slice it is not asked, so not even for a moment is there more than the limit. The negative
    control is a slice with room for one more slab: the witness sees that slab come and go."""
    running = machine.start([sys.executable, HERE / "holes.py", rest])
    running.record()
    seen, looks, deadline = set(), 0, time.monotonic() + 60
    while looks < 500 or (seen < in_use and time.monotonic() < deadline):
        seen.add(machine.used())
        looks += 1
    assert seen == in_use
    print(file=running.child.stdin, flush=True)
    record = running.record()
    assert record["asked"] > 100 and record["given"] == given * record["asked"], record
    running.end()
