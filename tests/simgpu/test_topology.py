"""How simulated GPUs are connected, as NVIDIA's own programs read it."""

import json
import textwrap

import pytest

MESH = ["- NV1 NV1 NV2 NV2", "NV1 - NV2 NV1 - NV2", "NV1 NV2 - NV2 - - NV1", "NV2 NV1 NV2 - - - - NV1"]


def cells(machine, smi):
    """The matrix, without the cells that have no NVLinks: for those nvidia-smi asks no function of NVML's header."""
    printed = machine.run(smi, "topo", "-m").splitlines()
    rows = [line.split() for line in printed if line.startswith("GPU")]
    return [[cell if cell.startswith("NV") else "-" for cell in row[1 : len(rows) + 1]] for row in rows]


@pytest.mark.gpus("8xV100-32GB")
@pytest.mark.parametrize("branch", ["535", "550", "580"])
def test_nvidia_smi_prints_the_nvlinks(machine, nvidia_smi, branch):
    found = cells(machine, nvidia_smi / branch / "nvidia-smi")
    assert len(found) == 8
    for row, expected in zip(found, MESH):
        # It repeats a former cell where there is no NVLink.
        assert all(cell == wanted for cell, wanted in zip(row, expected.split()) if wanted != "-"), row


@pytest.mark.gpus("4xT4-16GB,topology=pcie")
def test_without_nvlink_it_prints_none(machine, nvidia_smi):
    assert cells(machine, nvidia_smi / "550" / "nvidia-smi") == [["-"] * 4] * 4


SCRIPT = textwrap.dedent("""
    import json, pynvml as n
    n.nvmlInit()
    gpus = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    buses = [n.nvmlDeviceGetPciInfo(gpu).busId for gpu in gpus]
    def links(gpu):
        ends = []
        for link in range(n.NVML_NVLINK_MAX_LINKS):
            try:
                if n.nvmlDeviceGetNvLinkState(gpu, link) == n.NVML_FEATURE_ENABLED:
                    bus = n.nvmlDeviceGetNvLinkRemotePciInfo(gpu, link).busId
                    ends.append(buses.index(bus) if bus in buses else "switch")
            except n.NVMLError_NotSupported:
                break
        return ends
    def level(one, other):
        try:
            return n.nvmlDeviceGetTopologyCommonAncestor(one, other)
        except n.NVMLError_NotSupported:
            return None
    print(json.dumps([[links(gpu), [level(gpu, other) for other in gpus]] for gpu in gpus]))
""")


@pytest.mark.parametrize(
    ("links", "levels"),
    [
        pytest.param([1, 1, 1, 1], [0, 10, 40, 40], marks=pytest.mark.gpus("4xA40-48GB,topology=nvlink-bridge")),
        pytest.param([1, 2, 3, 3, 4, 4], [0, 10, 40, 40, 50], marks=pytest.mark.gpus("5xV100-16GB")),
        pytest.param(["switch"] * 18, [0, 40, 40, 40, 50], marks=pytest.mark.gpus("5xH100-80GB")),
        pytest.param([], [0, 50], marks=pytest.mark.gpus("2xT4-16GB")),
        pytest.param([], [None, None], marks=pytest.mark.gpus("2xA40-48GB,topology=unknown")),
    ],
)
def test_nvidia_ml_py_reads_links_and_levels(machine, python, links, levels):
    assert json.loads(machine.run(python, "-c", SCRIPT))[0] == [links, levels]
