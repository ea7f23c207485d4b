"""Memory that lives as long as its descriptors: what NCCL, NVSHMEM and PyTorch's symmetric memory do, by the driver API alone."""

import pytest

from conftest import GIB, TOTAL


@pytest.mark.xfail(strict=True, reason="E4: what was released is given back, though a descriptor keeps it")
def test_exported_memory_counts_until_its_descriptors_are_closed(machine):
    running = machine.start("exported", "24", part=0.25)
    full = running.record()
    used = machine.used()
    assert used <= TOTAL // 4 and full["granted"] == 9, (full, used)
    running.go_on()
    running.end()


def test_exported_memory_control(machine):
    running = machine.start("exported", "24", part=None)
    assert running.record()["granted"] == 24 and machine.used() > 24 * GIB
    running.go_on()
    running.end()
