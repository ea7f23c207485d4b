"""Calls that the driver itself refuses are refused with the same errors in a slice, and damage nothing."""

import sys

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

EARLY = [
    "cuDevicePrimaryCtxRetain",
    "cuCtxCreate_v2",
    "cuMemCreate",
    "cuDeviceTotalMem_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
]


@pytest.mark.parametrize("early", EARLY)
def test_before_the_driver_is_initialized(machine, early):
    """A call that comes too early gets the driver's own code, and all is right after that."""
    said = []
    for limit in (LIMIT, None):
        running = machine.start([sys.executable, HERE / "errors.py", early], limit)
        record = running.record()
        running.end()
        said.append(record["said"])
        if limit:
            assert record["total"] == LIMIT and record["free"] == LIMIT - CONTEXT - 4 * MIB, record
    assert said[0] == said[1], "not what the driver says"
    assert said[0]["early"] in (1, 3) and said[0]["allocate"] == 0
