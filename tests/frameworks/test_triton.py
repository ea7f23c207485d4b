"""Triton's kernels, compiled by its own ptxas, in a full slice of a simulated GPU. The stand-in for the CUDA runtime is PyTorch's."""

from conftest import HALF, MIB, TOTAL

KERNELS = 6
GRANULE = 2 * MIB


def assert_goes_on(running, full):
    """A refusal of the driver is an error of Triton's own; after memory is freed, the rest is compiled and launched."""
    assert full["launched"] < KERNELS and "out of memory" in full["text"], full
    running.go_on()
    assert running.end() == {"launched": KERNELS, "text": ""}


def test_a_full_card_is_tritons_own_error(machine, neighbor):
    with neighbor():
        running = machine.start("triton_full")
        full = running.record()
        assert TOTAL - GRANULE < machine.used() <= TOTAL, full
        assert_goes_on(running, full)


def test_a_full_card_control(machine):
    running = machine.start("triton_full", part=None)
    full = running.record()
    assert TOTAL - GRANULE < machine.used() <= TOTAL, full
    assert_goes_on(running, full)


def test_modules_beyond_a_full_slice_are_charged(machine):
    """Nobody else needs the memory: the kernels run, and the slice gets nothing more until it is within its limit."""
    running = machine.start("triton_full")
    full = running.record()
    assert (full["launched"], full["text"], full["free"]) == (KERNELS, "", 0), full
    assert HALF < machine.used() <= HALF + KERNELS * GRANULE
    running.go_on()
    assert running.end() == {"launched": KERNELS, "text": ""}
