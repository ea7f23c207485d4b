"""JAX on its real GPU plugin for CUDA 12, with the machine's stand-in for the CUDA runtime. It sizes its pool by what the driver tells it.
Nothing is compiled: without cuDNN XLA compiles no program."""

import pytest

from conftest import CONTEXT, HALF, JAX, LONG, MIB, TOTAL

CHUNK = 256 * MIB
ALL = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0"}
# Its default takes three quarters of the memory at once. The others take what is needed.
ALLOCATORS = {
    "default": {},
    "vmm": {"XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"},
    "cuda_async": {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", **ALL},
    "growing": {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", **ALL},
    "platform": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
}
POOLS = ["default", "vmm"]
# XLA waits ten seconds for memory before it gives up.
some_allocators = pytest.mark.parametrize(
    "allocator", [pytest.param(name, marks=LONG if name in ("growing", "platform") else ()) for name in ALLOCATORS]
)


def assert_full(full, allocator, total):
    """Three quarters of the memory, or all of it but the context and what a chunk does not fit into."""
    assert "RESOURCE_EXHAUSTED" in full["text"], full
    if allocator in POOLS:
        assert full["granted"] == total * 3 // 4 // CHUNK, full
    else:
        assert total - CONTEXT - 3 * CHUNK <= full["granted"] * CHUNK <= total - CONTEXT, full
    if allocator == "default":
        assert full["pool"] == full["in_use"] == total * 3 // 4, full


@some_allocators
def test_fills_its_slice_and_goes_on(machine, neighbor, allocator):
    with neighbor() as other:
        running = machine.start("jax_fill", within=JAX, **ALLOCATORS[allocator])
        full = running.record()
        assert_full(full, allocator, HALF)
        used = machine.used() - (HALF - other["free"])
        assert full["granted"] * CHUNK + CONTEXT <= used <= HALF, (full, used)
        running.go_on()
        assert running.end()["granted"] == full["granted"] - 3


@pytest.mark.parametrize("allocator", ["default", pytest.param("cuda_async", marks=LONG)])
def test_control_without_a_slice_takes_the_card(machine, allocator):
    running = machine.start("jax_fill", within=JAX, part=None, **ALLOCATORS[allocator])
    full = running.record()
    assert_full(full, allocator, TOTAL)
    assert machine.used() > HALF
    running.go_on()
    running.end()


def test_two_processes_share_one_slice(machine, neighbor):
    """The first has taken its three quarters; the second gets the rest, and reports it."""
    with neighbor() as other:
        running = machine.start("two", "jax_fill", within=JAX)
        first, second = running.record()["records"]
        used = machine.used() - (HALF - other["free"])
        assert first["granted"] * CHUNK == HALF * 3 // 4, first
        assert "RESOURCE_EXHAUSTED" in second["text"] and second["granted"] > 0, second
        assert (first["granted"] + second["granted"]) * CHUNK + 2 * CONTEXT <= used <= HALF
        running.go_on()
        assert running.end()["codes"] == [0, 0]
