"""The usual tools show only the slice and its own processes inside a slice."""

import csv
import json
import re
import sys

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB, ROOT

HELD = 1000
CONTEXT_MIB = CONTEXT // MIB
TOOLS = ROOT / ".venv/bin"
HOLD = [sys.executable, HERE / "holder.py", HELD]


# Drivers whose nvidia-smi Debian or Ubuntu has, by branch.
DRIVERS = {"535": "535.261.03", "550": "550.163.01", "555": "555.58.02", "580": "580.178.04", "595": "595.99.02"}
every_nvidia_smi = pytest.mark.parametrize("machine, version", [({"driver": DRIVERS[version]}, version) for version in DRIVERS], ids=DRIVERS, indirect=["machine"])


@pytest.fixture
def neighbor(machine):
    """Another slice on the same GPU, with a process in it."""
    running = machine.start([sys.executable, HERE / "holder.py", 2000])
    assert running.child.stdout.readline() == "holding\n"
    yield running
    running.end()


def shown(machine, command):
    running = machine.start([*HOLD, *command])
    out, err = running.child.communicate(timeout=120)
    assert running.child.returncode == 0, err
    return out


def nvidia_smi(version):
    path = ROOT / f".cache/nvidia-smi/{version}/nvidia-smi"
    if not path.exists():
        pytest.skip(f"nvidia-smi {version} is not here: tests/setup-nvidia-smi.sh fetches it")
    return path


@pytest.mark.full
@every_nvidia_smi
def test_nvidia_smi(machine, neighbor, version):
    out = shown(machine, [nvidia_smi(version)])
    assert re.search(rf"{CONTEXT_MIB + HELD}MiB / +{LIMIT // MIB}MiB", out), out
    rows = [line for line in out.splitlines() if re.search(r"\d+MiB \|$", line) and " C " in line]
    assert len(rows) == 1 and f"{CONTEXT_MIB + HELD}MiB" in rows[0], out


@pytest.mark.full
@every_nvidia_smi
def test_nvidia_smi_queries(machine, neighbor, version):
    smi = nvidia_smi(version)
    query = [smi, "--format=csv,noheader,nounits"]
    assert shown(machine, [*query, "--query-gpu=memory.total,memory.used,memory.free"]).strip() == (
        f"{LIMIT // MIB}, {CONTEXT_MIB + HELD}, {LIMIT // MIB - CONTEXT_MIB - HELD}"
    )
    rows = list(csv.reader(shown(machine, [*query, "--query-compute-apps=pid,used_memory"]).splitlines()))
    assert len(rows) == 1 and rows[0][0] != str(neighbor.child.pid) and int(rows[0][1]) == CONTEXT_MIB + HELD
    assert shown(machine, [smi, "-L"]).count("GPU-") == 1


@pytest.mark.full
def test_outside_nvidia_smi_shows_the_whole_gpu(machine, neighbor):
    """The negative control."""
    running = machine.start([*HOLD, nvidia_smi("550")], slice_bytes=None)
    out = running.child.communicate(timeout=120)[0]
    assert "40960MiB" in out and len(re.findall(r" C  .*MiB \|", out)) == 2, out


NVML = """
import json, pynvml as n
n.nvmlInit()
count = n.nvmlDeviceGetCount()
device = n.nvmlDeviceGetHandleByIndex(0)
old, new = n.nvmlDeviceGetMemoryInfo(device), n.nvmlDeviceGetMemoryInfo(device, version=n.nvmlMemory_v2)
bar1 = n.nvmlDeviceGetBAR1MemoryInfo(device)
try:
    n.nvmlDeviceGetHandleByIndex(1)
    second = "found"
except n.NVMLError as error:
    second = error.value
lists = [(n.nvmlDeviceGetComputeRunningProcesses, 1), (n.nvmlDeviceGetComputeRunningProcesses_v2, 1), (n.nvmlDeviceGetComputeRunningProcesses_v3, 1),
         (n.nvmlDeviceGetGraphicsRunningProcesses, 0), (n.nvmlDeviceGetMPSComputeRunningProcesses, 0)]
lists += [(lambda d, kind=kind: n.nvmlDeviceGetRunningProcessDetailList(d, n.nvmlProcessDetailList_v1, kind), kind in (0, 3)) for kind in range(4)]
samples = n.nvmlDeviceGetProcessUtilization(device, 1)
infos = n.nvmlDeviceGetProcessesUtilizationInfo(device, 1)
uuid = n.nvmlDeviceGetUUID(device)
binary = bytes.fromhex(uuid[4:].replace("-", ""))
found = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByUUIDV(uuid.encode(), 1), n.nvmlDeviceGetHandleByUUIDV(binary, 2)]
print(json.dumps({
    "count": count, "second": second, "index": n.nvmlDeviceGetIndex(device),
    "old": [old.total, old.used, old.free], "new": [new.total, new.used, new.free], "bar1": bar1.bar1Total,
    "lists": [[[p.usedGpuMemory for p in f(device)], want] for f, want in lists],
    "busy": [[row.smUtil for row in rows] for rows in (samples, infos)],
    "by_uuid": [n.nvmlDeviceGetUUID(handle) == uuid for handle in found],
}))
"""


def test_every_figure_of_nvml(machine, neighbor):
    seen = json.loads(shown(machine, [TOOLS / "python", "-c", NVML]))
    used = (CONTEXT_MIB + HELD) * MIB
    figures = [LIMIT, used, LIMIT - used]
    assert seen["count"] == 1 and seen["index"] == 0 and seen["second"] == 2 and seen["by_uuid"] == [True] * 3
    assert seen["old"] == figures and seen["new"] == figures and seen["bar1"] <= LIMIT
    assert seen["busy"] == [[50], [50]], "one process of two on the GPU is the slice's"
    for processes, wanted in seen["lists"]:
        assert processes == [used] * wanted


FIND = """
import pynvml as n, sys
n.nvmlInit()
uuid = sys.argv[1]
binary = bytes.fromhex(uuid[4:].replace("-", ""))
for find, words in [(n.nvmlDeviceGetHandleByUUID, [uuid]), (n.nvmlDeviceGetHandleByUUIDV, [uuid.encode(), 1]),
                    (n.nvmlDeviceGetHandleByUUIDV, [binary, 2])]:
    try:
        print(n.nvmlDeviceGetUUID(find(*words)))
    except n.NVMLError as error:
        print(error.value)
"""
NOT_FOUND = "6"


@pytest.mark.parametrize("machine", ["2xA100-40GB"], indirect=True)
@pytest.mark.parametrize("slice_bytes", [LIMIT, None])
def test_a_gpu_outside_of_the_slice_has_no_handle(machine, slice_bytes):
    uuids = [gpu["uuid"] for gpu in machine.truth()]
    python = [TOOLS / "python", "-c", FIND]
    seen = [machine.start([*python, uuid], slice_bytes).child.communicate(timeout=120)[0].split() for uuid in uuids]
    visible = [[uuid] * 3 for uuid in uuids]
    if slice_bytes is None:
        assert seen == visible
    else:
        assert seen in ([visible[0], [NOT_FOUND] * 3], [[NOT_FOUND] * 3, visible[1]])


@pytest.mark.parametrize("tool", [["gpustat", "--no-color"], ["nvitop", "-1"]])
def test_tools_show_the_slice(machine, neighbor, tool):
    out = shown(machine, [TOOLS / tool[0], *tool[1:]])
    assert re.search(rf"{CONTEXT_MIB + HELD}(MiB)? / +{LIMIT // MIB}", out), out
    assert str(neighbor.child.pid) not in out


def test_the_neighbor_is_there(machine, neighbor):
    """The outside witness of the tests above: two slices share the GPU."""
    assert len(machine.truth()[0]["processes"]) == 1
    running = machine.start(HOLD)
    assert running.child.stdout.readline() == "holding\n"
    assert sorted(p["used_bytes"] // MIB for p in machine.truth()[0]["processes"]) == [CONTEXT_MIB + HELD, CONTEXT_MIB + 2000]
    running.end()
