"""cuGetProcAddress in a slice: the driver's own answer, in which exactly the hooked functions are replaced by their hooks."""

import sys

from conftest import HERE, ROOT

NAMES = ROOT / "crates/sim/simgpu/data/cuda-symbols.txt"


def test_every_function_at_every_version(machine):
    running = machine.start([sys.executable, HERE / "lookup.py", NAMES])
    found = running.record()
    assert found["wrong"] == [] == found["unexported"]
    # Both happen, so that this shows something: also per-thread streams have hooks of their own.
    assert {"cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuGraphLaunch_ptsz", "cuGetProcAddress"} <= set(found["substituted"])
    assert found["hooked"] > 60 and found["untouched"] > 5000, found
    running.end()
