"""Memory that is taken or kept where one does not look for it, by the driver API alone: as long as its descriptors live (NCCL, NVSHMEM,
PyTorch's symmetric memory), or when a graph is uploaded."""

from conftest import GIB, TOTAL


def test_exported_memory_beyond_the_slice_is_refused_in_time(machine):
    """A descriptor keeps its memory charged: a quarter of 40 GiB has room for nine, and for a context."""
    running = machine.start("exported", "24", part=0.25)
    granted = running.record()["granted"]
    used = machine.used()
    assert granted == 9 and used <= TOTAL // 4, (granted, used)
    running.go_on()
    running.end()


def test_exported_memory_control(machine):
    running = machine.start("exported", "24", part=None)
    assert running.record()["granted"] == 24 and machine.used() > 24 * GIB
    running.go_on()
    running.end()


def test_a_graph_that_is_uploaded_is_refused_in_time(machine):
    running = machine.start("uploaded", "20", part=0.25)
    code = running.record()["code"]
    used = machine.used()
    assert code == 2 and used <= TOTAL // 4, (code, used)
    running.go_on()
    running.end()


def test_a_graph_that_is_uploaded_control(machine):
    running = machine.start("uploaded", "20", part=None)
    assert running.record()["code"] == 0 and machine.used() > 20 * GIB
    running.go_on()
    running.end()
