"""PyTorch on simulated GPUs, with the machine's stand-in for the CUDA runtime: its allocators, errors, graphs and processes are real."""

import re

import pytest

from conftest import CONTEXT, GIB, HALF, LONG, MIB, TOTAL

ALLOCATORS = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "async": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
}


def bytes_of(amount, unit):
    return float(amount) * {"MiB": MIB, "GiB": GIB}[unit]


def figures(text):
    """Capacity and free memory, as PyTorch's own error has them."""
    capacity = re.search(r"total capacity of ([\d.]+) (\w+)", text)
    free = re.search(r"of which ([\d.]+) (\w+) is free", text)
    return bytes_of(*capacity.groups()), bytes_of(*free.groups())


def close(figure, size_bytes):
    # PyTorch writes two decimals.
    return abs(figure - size_bytes) <= GIB // 100


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_fills_its_slice_and_goes_on(machine, neighbor, allocator):
    with neighbor() as other:
        running = machine.start("torch_fill", **ALLOCATORS[allocator])
        full = running.record()
        assert full["total"] == HALF and full["free"] == HALF - CONTEXT
        assert 18 <= full["gib"] <= 19, full
        if allocator != "async":
            capacity, free = figures(full["text"])
            assert close(capacity, HALF) and close(free, full["full"]), full
        used_by_other = HALF - other["free"]
        used = machine.used() - used_by_other
        assert used <= HALF and HALF - full["full"] == used, "what PyTorch is told is free is what the driver did not give"
        running.go_on()
        after = running.end()
    # All of it came back, in larger and smaller pieces: 700 MiB, 50 MiB.
    assert after["sizes"]["700"] >= 27 and after["sizes"]["50"] >= 395, after
    assert after["graph"] > 0 and after["fraction"][0] in (9, 10) and after["pool"], after


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_control_without_a_slice_takes_the_card(machine, allocator):
    running = machine.start("torch_fill", part=None, **ALLOCATORS[allocator])
    full = running.record()
    assert full["total"] == TOTAL and full["gib"] >= 38, full
    assert machine.used() > HALF + 10 * GIB
    running.go_on()
    assert running.end()["fraction"][0] in (19, 20)


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_one_slice(machine, neighbor, count):
    with neighbor() as other:
        running = machine.start("torch_processes", str(count))
        full = running.record()
        used = machine.used() - (HALF - other["free"])
        assert used <= HALF
        # Full: what is left is less than each would have taken next.
        assert used == count * CONTEXT + full["granted"] * 256 * MIB > HALF - 256 * MIB, full
        assert all(close(figures(text)[0], HALF) for text in full["texts"]), full
        running.go_on()
        after = running.end()
    assert after["codes"] == [0] * count


def test_processes_control(machine):
    running = machine.start("torch_processes", "2", part=None)
    assert running.record()["granted"] * 256 * MIB > HALF
    running.go_on()
    running.end()


@pytest.mark.parametrize("start", ["set_device", "pinned"])
def test_a_job_may_begin_with_a_context(machine, start):
    assert machine.run("torch_start", start, part=0.25)["shape"] == [1 << 20]


@pytest.mark.parametrize("start", ["set_device", "pinned"])
def test_a_job_may_begin_with_a_context_control(machine, start):
    assert machine.run("torch_start", start, part=None)["shape"] == [1 << 20]


@pytest.mark.parametrize("end", ["return", "kill"])
def test_free_memory_is_right_after_a_sibling_has_ended(machine, end):
    seen = machine.run("torch_sibling", end, part=0.25)
    assert seen["before"] - seen["beside"] == 6 * GIB + CONTEXT, seen
    assert seen["after"] == seen["before"], seen


def test_free_memory_after_a_sibling_control(machine):
    seen = machine.run("torch_sibling", "return", part=None)
    assert seen["beside"] < seen["before"] == seen["after"], seen


@pytest.mark.parametrize("allocator", ["native", "expandable"])
def test_tensors_are_shared_between_processes(machine, allocator):
    running = machine.start("torch_share", **ALLOCATORS[allocator])
    seen = running.record()
    assert seen["numel"] == 2 * GIB and seen["code"] == 0 and seen["batches"] == 4, seen
    # The exporter paid; the importer had a context only.
    assert HALF - seen["free"] < 2 * GIB + 2 * CONTEXT + 64 * MIB
    running.go_on()
    running.end()
    assert machine.used() == 0


def test_two_ranks_train_in_one_slice(machine, neighbor):
    """DistributedDataParallel over gloo."""
    with neighbor() as other:
        running = machine.start("torch_ranks", "gloo")
        full = running.record()
        used = machine.used() - (HALF - other["free"])
        assert full["granted"] > 0 and HALF - 512 * MIB < used <= HALF, (full, used)
        assert all(close(figures(text)[0], HALF) for text in full["texts"]), full
        running.go_on()
        assert running.end()["codes"] == [0, 0]


@LONG
@pytest.mark.parametrize("part", [0.5, None], ids=["in_a_slice", "control"])
def test_nccl_needs_the_real_runtime(machine, part):
    """NCCL contains NVIDIA's runtime, which takes no simulated driver, with cantle or without."""
    running = machine.start("torch_ranks", "nccl", part=part)
    full = running.record()
    assert full["granted"] == 0 and all("NCCL" in text for text in full["texts"]), full
