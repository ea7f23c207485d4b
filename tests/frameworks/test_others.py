"""numba, cuda-bindings and NVML's tools on simulated GPUs. They use the driver without the CUDA runtime."""

import pytest

from conftest import CONTEXT, HALF, MIB, TOTAL
from machine import ROOT

CHUNK = 256 * MIB
POOLS = ["numba", "bindings"]
NVTOP = ROOT / ".cache/nvidia-smi/nvtop/nvtop"


@pytest.mark.parametrize("framework", POOLS)
def test_fills_its_slice_and_goes_on(machine, neighbor, framework):
    with neighbor() as other:
        running = machine.start("pools", framework)
        full = running.record()
        assert full["total"] == HALF and full["text"], full
        assert full["granted"] >= (HALF - CONTEXT) // CHUNK - 2, full
        used = machine.used() - (HALF - other["free"])
        assert used <= HALF and HALF - full["free"] == used, full
        running.go_on()
        assert running.end()["granted"] == full["granted"]


@pytest.mark.parametrize("framework", POOLS)
def test_control_without_a_slice_takes_the_card(machine, framework):
    running = machine.start("pools", framework, part=None)
    full = running.record()
    assert full["total"] == TOTAL and full["granted"] * CHUNK > HALF, full
    running.go_on()
    running.end()


def test_tools_show_the_slice(machine):
    """NVIDIA's own nvidia-smi where tests/setup.sh could have it."""
    assert machine.path("/usr/bin/nvidia-smi").exists(), "no nvidia-smi: run tests/setup.sh"
    seen = machine.run("tools", part=0.25)
    total = TOTAL // 4 // MIB
    for tool in ("nvml", "gpustat", "nvitop", "nvidia-smi"):
        assert seen[tool] == [0, total], (tool, seen)


def test_nvtop_shows_the_slice(machine):
    """Debian's nvtop, where tests/setup.sh could have it."""
    if not NVTOP.exists():
        pytest.skip("no nvtop: tests/setup-nvidia-smi.sh fetches it")
    assert machine.run("tools", NVTOP, part=0.25)["nvtop"] == [0, 10]
    assert machine.run("tools", NVTOP, part=None)["nvtop"] == [0, 40], "the control"
