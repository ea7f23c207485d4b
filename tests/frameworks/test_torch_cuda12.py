"""PyTorch for CUDA 12 in slices, with the machine's stand-in for the runtime of CUDA 12; test_torch.py has the newest, for CUDA 13."""

import pytest

from conftest import CONTEXT, GIB, HALF, LONG, MIB, TORCH12, TOTAL
from test_torch import ALLOCATORS, close, figures

pytestmark = LONG
# The name of the variable in this version.
SETTINGS = {name: {"PYTORCH_CUDA_ALLOC_CONF": value for value in env.values()} for name, env in ALLOCATORS.items()}


@pytest.mark.parametrize("allocator", SETTINGS)
def test_fills_its_slice_and_goes_on(machine, neighbor, allocator):
    with neighbor() as other:
        running = machine.start("torch_fill", within=TORCH12, **SETTINGS[allocator])
        full = running.record()
        assert full["total"] == HALF and 18 <= full["gib"] <= 19, full
        if allocator != "async":
            capacity, free = figures(full["text"])
            assert close(capacity, HALF) and close(free, full["full"]), full
        used = machine.used() - (HALF - other["free"])
        assert used <= HALF and HALF - full["full"] == used, "what PyTorch is told is free is what the driver did not give"
        running.go_on()
        after = running.end()
    assert after["sizes"]["700"] >= 27 and after["sizes"]["50"] >= 395, after
    assert after["graph"] > 0 and after["fraction"][0] in (9, 10) and after["pool"], after


@pytest.mark.parametrize("allocator", SETTINGS)
def test_control_without_a_slice_takes_the_card(machine, allocator):
    running = machine.start("torch_fill", part=None, within=TORCH12, **SETTINGS[allocator])
    full = running.record()
    assert full["total"] == TOTAL and full["gib"] >= 38 and machine.used() > HALF + 10 * GIB, full
    running.go_on()
    running.end()


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_one_slice(machine, neighbor, count):
    with neighbor() as other:
        running = machine.start("torch_processes", str(count), within=TORCH12)
        full = running.record()
        used = machine.used() - (HALF - other["free"])
        assert used <= HALF and used == count * CONTEXT + full["granted"] * 256 * MIB > HALF - 256 * MIB, full
        running.go_on()
        assert running.end()["codes"] == [0] * count


def test_tensors_are_shared_between_processes(machine):
    running = machine.start("torch_share", within=TORCH12)
    seen = running.record()
    assert seen["numel"] == 2 * GIB and seen["code"] == 0 and seen["batches"] == 4, seen
    running.go_on()
    running.end()
    assert machine.used() == 0
