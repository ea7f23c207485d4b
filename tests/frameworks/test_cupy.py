"""CuPy 12.3, the last whose packages ask for a CUDA runtime, with the machine's stand-in for it. Later ones contain NVIDIA's."""

import pytest

from conftest import CONTEXT, CUPY, HALF, LONG, MIB, TOTAL

CHUNK = 256 * MIB
pytestmark = LONG


def assert_full(full, total):
    assert "Out of memory allocating 268,435,456 bytes" in full["text"] or "cudaErrorMemoryAllocation" in full["text"], full
    assert full["total"] == total and total - CONTEXT - 2 * CHUNK < full["granted"] * CHUNK <= total - CONTEXT, full


@pytest.mark.parametrize("pool", ["default", "async", "managed"])
def test_fills_its_slice_and_goes_on(machine, neighbor, pool):
    with neighbor() as other:
        running = machine.start("cupy_fill", pool, within=CUPY)
        full = running.record()
        assert_full(full, HALF)
        used = machine.used() - (HALF - other["free"])
        # Managed memory is charged when it is allocated, and takes the GPU's when it is used.
        assert used <= HALF and (pool == "managed" or HALF - full["free"] == used), (full, used)
        running.go_on()
        assert running.end()["granted"] == full["granted"] - 3


@pytest.mark.parametrize("pool", ["default", "async"])
def test_control_without_a_slice_takes_the_card(machine, pool):
    running = machine.start("cupy_fill", pool, within=CUPY, part=None)
    assert_full(running.record(), TOTAL)
    running.go_on()
    running.end()


def test_two_processes_share_one_slice(machine, neighbor):
    """Each may have 60 % of what the driver tells it there is; the second gets what is left."""
    with neighbor() as other:
        running = machine.start("two", "cupy_fill", "default", "0.6", within=CUPY)
        first, second = running.record()["records"]
        used = machine.used() - (HALF - other["free"])
        assert first["granted"] == HALF * 6 // 10 // CHUNK, first
        assert (first["granted"] + second["granted"]) * CHUNK + 2 * CONTEXT == used > HALF - CHUNK, (first, second)
        assert used <= HALF and second["text"] and second["free"] == HALF - used
        running.go_on()
        assert running.end()["codes"] == [0, 0]
