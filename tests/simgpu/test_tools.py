"""The programs people look at GPUs with, unchanged, on the simulated driver."""

import json
import textwrap

import pytest

from conftest import GIB, MIB

CONTEXT_MIB = 416


@pytest.fixture
def busy(machine):
    """A process with 1 GiB on GPU 1."""
    client = machine.client()
    client("context(1)"), client(f"alloc({GIB})")
    return client


@pytest.mark.parametrize("branch", ["535", "550", "555"])
def test_nvidia_smi_table(machine, busy, nvidia_smi, branch):
    table = machine.run(nvidia_smi / branch / "nvidia-smi")
    memory = [line.split("|")[2].replace(" ", "") for line in table.splitlines() if "MiB /" in line]
    assert memory == ["0MiB/40960MiB", f"{CONTEXT_MIB + 1024}MiB/40960MiB", "0MiB/40960MiB"]
    rows = [line.split() for line in table.splitlines() if f" {busy.pid} " in line]
    assert len(rows) == 1 and rows[0][1] == "1" and rows[0][-2] == f"{CONTEXT_MIB + 1024}MiB"
    version = machine.run(nvidia_smi / branch / "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()[0]
    assert f"Driver Version: {version} " in table and "NVIDIA A100-SXM4-40GB" in table


@pytest.mark.parametrize("branch", ["535", "550", "555"])
def test_nvidia_smi_queries(machine, busy, nvidia_smi, branch):
    smi = nvidia_smi / branch / "nvidia-smi"
    gpus = machine.run(smi, "--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits")
    truth = machine.truth()
    expected = [f"{i}, {g['uuid']}, 40960, {g['used_bytes'] // MIB}" for i, g in enumerate(truth)]
    assert gpus.splitlines() == expected
    apps = machine.run(smi, "--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits")
    assert apps.splitlines() == [f"{busy.pid}, {CONTEXT_MIB + 1024}, {truth[1]['uuid']}"]
    assert machine.run(smi, "-L").count("NVIDIA A100-SXM4-40GB (UUID: GPU-") == 3


def test_nvidia_ml_py(machine, busy, python):
    script = textwrap.dedent("""
        import json, pynvml as n
        n.nvmlInit()
        h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
        memory = lambda d: [n.nvmlDeviceGetMemoryInfo(d).used, n.nvmlDeviceGetMemoryInfo(d, version=n.nvmlMemory_v2).used]
        print(json.dumps({
            "uuid": [n.nvmlDeviceGetUUID(d) for d in h],
            "used": [memory(d) for d in h],
            "processes": [[[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(d)] for d in h],
            "by_uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h[2]))),
            "pci": n.nvmlDeviceGetPciInfo(h[1]).busId,
            "mig": n.nvmlDeviceGetMigMode(h[0]),
        }))
        n.nvmlShutdown()
    """)
    seen = json.loads(machine.run(python, "-c", script))
    truth = machine.truth()
    assert seen["uuid"] == [g["uuid"] for g in truth]
    assert seen["used"] == [[g["used_bytes"]] * 2 for g in truth]
    assert seen["processes"] == [[[p["pid"], p["used_bytes"]] for p in g["processes"]] for g in truth]
    assert (seen["by_uuid"], seen["pci"], seen["mig"]) == (2, "00000000:11:00.0", [0, 0])


def test_gpustat(machine, busy, python):
    seen = json.loads(machine.run(python, "-m", "gpustat", "--json"))["gpus"]
    assert [g["memory.used"] for g in seen] == [0, CONTEXT_MIB + 1024, 0]
    assert [p["pid"] for p in seen[1]["processes"]] == [busy.pid]


def test_nvitop(machine, busy, python):
    table = machine.run(python, "-m", "nvitop", "-1", "--no-unicode")
    assert table.count("A100-SXM4-40GB") == 3
    assert f"{CONTEXT_MIB + 1024}MiB / 40.00GiB" in table
    assert any(str(busy.pid) in line and f"{CONTEXT_MIB + 1024}MiB" in line for line in table.splitlines())


def test_cuda_bindings(machine, python):
    script = textwrap.dedent("""
        import json
        from cuda.bindings import driver as d
        def call(result):
            assert result[0] == d.CUresult.CUDA_SUCCESS, result
            return result[1] if len(result) == 2 else result[1:]
        d.cuInit(0)
        context = call(d.cuCtxCreate(None, 0, 0))
        address = call(d.cuMemAlloc(1 << 30))
        free, total = call(d.cuMemGetInfo())
        refused = d.cuMemAlloc(free + 1)[0]
        d.cuMemFree(address)
        print(json.dumps([call(d.cuDeviceGetCount()), total - free, refused.name, call(d.cuMemGetInfo())[0] - free]))
    """)
    assert json.loads(machine.run(python, "-c", script)) == [3, CONTEXT_MIB * MIB + GIB, "CUDA_ERROR_OUT_OF_MEMORY", GIB]


@pytest.mark.gpus("1xA10-24GB:reserved")
def test_what_the_driver_keeps_for_itself(machine, python):
    """NVML's first version counts it as used, the second separately; CUDA does not count it at all."""
    script = textwrap.dedent("""
        import ctypes, json, pynvml as n
        n.nvmlInit()
        gpu = n.nvmlDeviceGetHandleByIndex(0)
        first, second = n.nvmlDeviceGetMemoryInfo(gpu), n.nvmlDeviceGetMemoryInfo(gpu, version=n.nvmlMemory_v2)
        cuda, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
        assert cuda.cuInit(0) == 0 and cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
        mib = lambda *figures: [figure / 2**20 for figure in figures]
        print(json.dumps([mib(first.total, first.used, first.free), mib(second.total, second.reserved, second.used, second.free),
                          mib(total.value)]))
    """)
    first, second, total = json.loads(machine.run(python, "-c", script))
    assert (first, second, total) == ([23028, 516, 22512], [23028, 516, 0, 22512], [22512])
    assert machine.used() == 0
