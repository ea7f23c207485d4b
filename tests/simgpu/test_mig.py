"""MIG: the life of instances through NVML's own Python binding, and CUDA inside an instance."""

import json
import sys
import textwrap
import time

import pytest

from conftest import MIB

CONTEXT = 416 * MIB

PRELUDE = textwrap.dedent("""
    import ctypes, json, pynvml as n
    n.nvmlInit()
    def gpu(i=0): return n.nvmlDeviceGetHandleByIndex(i)
    def place(start, size):
        p = n.c_nvmlGpuInstancePlacement_t(); p.start, p.size = start, size; return ctypes.byref(p)
    def make(profile, start, size, ci=None, i=0):
        "A GPU instance with one compute instance over all of it; its MIG device's UUID."
        g = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(i), profile, place(start, size))
        slices = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(i), {19: 0, 15: 9, 14: 1, 9: 2, 5: 3, 0: 4}[profile]).sliceCount
        c = n.nvmlGpuInstanceCreateComputeInstance(g, ci if ci is not None else {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[slices])
        return n.nvmlDeviceGetUUID(n.nvmlComputeInstanceGetInfo_v2(c).device)
    def instance(uuid):
        d = n.nvmlDeviceGetHandleByUUID(uuid)
        parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)
        return n.nvmlDeviceGetGpuInstanceById(parent, n.nvmlDeviceGetGpuInstanceId(d)), n.nvmlDeviceGetComputeInstanceId(d)
    def destroy(uuid):
        g, c = instance(uuid)
        n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(g, c))
        n.nvmlGpuInstanceDestroy(g)
    def code(call, *arguments):
        try: call(*arguments); return 0
        except n.NVMLError as error: return error.value
    def show(value): print(json.dumps(value))
""")


@pytest.fixture
def nvml(machine):
    """Runs a script over nvidia-ml-py and returns what it shows."""
    return lambda script: json.loads(machine.run(sys.executable, "-c", PRELUDE + textwrap.dedent(script)))


@pytest.mark.gpus("1xA100-40GB:mig")
def test_life_cycle(machine, nvml):
    seen = nvml("""
        info = n.nvmlDeviceGetGpuInstanceProfileInfo(gpu(), 1)
        g = n.nvmlDeviceCreateGpuInstanceWithPlacement(gpu(), info.id, place(2, 2))
        before = n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu(), 14)
        c = n.nvmlGpuInstanceCreateComputeInstance(g, 1)
        d = n.nvmlComputeInstanceGetInfo_v2(c).device
        gi = n.nvmlGpuInstanceGetInfo(g)
        attributes = n.nvmlDeviceGetAttributes(d)
        show({
            "profile": [info.id, info.sliceCount, info.instanceCount, info.memorySizeMB, info.multiprocessorCount],
            "placement": [gi.placement.start, gi.placement.size, gi.profileId, gi.id], "remaining": before,
            "name": n.nvmlDeviceGetName(d), "uuid": n.nvmlDeviceGetUUID(d), "is_mig": bool(n.nvmlDeviceIsMigDeviceHandle(d)),
            "memory": n.nvmlDeviceGetMemoryInfo(d).total, "attributes": [attributes.memorySizeMB, attributes.multiprocessorCount],
            "by_index": n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 0)),
            "max": n.nvmlDeviceGetMaxMigDeviceCount(gpu()),
            "busy": code(n.nvmlGpuInstanceDestroy, g), "overlap": code(make, 9, 0, 4), "size": code(make, 14, 0, 4),
        })
    """)
    assert seen["profile"] == [14, 2, 3, 9856, 28]
    assert seen["placement"] == [2, 2, 14, 4] and seen["remaining"] == 2
    assert seen["name"] == "NVIDIA A100-SXM4-40GB MIG 2g.10gb" and seen["is_mig"]
    assert seen["memory"] == 9856 * MIB and seen["attributes"] == [9856, 28]
    assert seen["by_index"] == seen["uuid"] and seen["max"] == 7
    assert (seen["busy"], seen["overlap"], seen["size"]) == (19, 23, 2)
    mig = machine.truth()[0]["mig"]
    assert mig == [
        {"profile": "2g.10gb", "start": 2, "size": 2, "uuid": seen["uuid"], "gi": 4, "ci": 0, "processes": []}
    ]
    again = nvml(f"""
        uuid = {seen["uuid"]!r}
        destroy(uuid)
        gone = code(n.nvmlDeviceGetHandleByUUID, uuid)
        show([gone, make(14, 2, 2)])
    """)
    assert again == [6, seen["uuid"]]  # a UUID names a place


@pytest.mark.gpus("1xA100-40GB:mig")
def test_cuda_in_an_instance_has_its_memory_and_no_more(machine, nvml):
    small, large = nvml("show([make(19, 0, 1), make(9, 4, 4)])")
    first, second = machine.client(CUDA_VISIBLE_DEVICES=small), machine.client(CUDA_VISIBLE_DEVICES=large)
    assert first("context()") == 0 and second("context()") == 0
    assert first("info()")[1:] == [4864 * MIB - CONTEXT, 4864 * MIB]
    assert first("number('cuDeviceGetAttribute', 16, 0)") == [0, 14]
    assert first(f"alloc({4864 * MIB - CONTEXT})")[0] == 0
    assert first("alloc(1)")[0] == 2
    assert second("info()")[1] == 19968 * MIB - CONTEXT  # a neighbor notices nothing
    by_uuid = {m["uuid"]: m["processes"] for m in machine.truth()[0]["mig"]}
    assert by_uuid[small] == [{"pid": first.pid, "used_bytes": 4864 * MIB, "migrated_bytes": 0, "gpu_time_us": 0}]
    assert by_uuid[large] == [{"pid": second.pid, "used_bytes": CONTEXT, "migrated_bytes": 0, "gpu_time_us": 0}]
    seen = nvml(f"""
        d = n.nvmlDeviceGetHandleByUUID({small!r})
        processes = [[p.pid, p.usedGpuMemory, p.gpuInstanceId] for p in n.nvmlDeviceGetComputeRunningProcesses(d)]
        show([n.nvmlDeviceGetMemoryInfo(d).free, processes, code(destroy, {small!r}), code(n.nvmlDeviceSetMigMode, gpu(), 0),
              len(n.nvmlDeviceGetComputeRunningProcesses(gpu())), n.nvmlDeviceGetMigMode(gpu())])
    """)
    assert seen[0] == 0 and seen[1] == [[first.pid, 4864 * MIB, 7]]
    assert seen[2:] == [19, 0, 2, [1, 0]]  # in use; pending; both processes; still on, off asked for
    first.kill()
    assert nvml(f"destroy({small!r}); show(0)") == 0
    assert machine.truth()[0]["mig"][0]["uuid"] == large


@pytest.mark.gpus("1xT4-16GB,1xA100-80GB:mig")
def test_visible_mig_devices(machine, nvml):
    uuid = nvml("show(make(19, 3, 1, i=1))")
    name = "(lambda t: [init(), cu.cuDeviceGetName(t, 96, 0), t.value.decode()])(ctypes.create_string_buffer(96))"
    gpu = machine.truth()[1]["uuid"]
    gi = machine.truth()[1]["mig"][0]["gi"]
    for setting in (uuid, f"MIG-{gpu}/{gi}/0", "1"):
        assert machine.client(CUDA_VISIBLE_DEVICES=setting)(name) == [0, 0, "NVIDIA A100-SXM4-80GB MIG 1g.10gb"]
    assert machine.client()(name)[2] == "Tesla T4"
    assert machine.client(CUDA_VISIBLE_DEVICES="MIG-nothing")(name)[0] == 100


@pytest.mark.gpus("1xA100-40GB,1xT4-16GB")
def test_mode(machine, nvml):
    assert nvml("""
        off = [code(n.nvmlDeviceCreateGpuInstance, gpu(), 19), n.nvmlDeviceGetMigMode(gpu()), code(n.nvmlDeviceGetMigMode, gpu(1))]
        n.nvmlDeviceSetMigMode(gpu(), 1)
        show(off + [n.nvmlDeviceGetMigMode(gpu()), code(n.nvmlDeviceCreateGpuInstance, gpu(), 19)])
    """) == [3, [0, 0], 3, [1, 1], 0]


@pytest.mark.gpus("1xRTX-PRO-6000-96GB:mig,1xA30-24GB:mig")
def test_other_grids(machine, nvml):
    placements = nvml("""
        def places(i, profile):
            count, found = ctypes.c_uint(16), (n.c_nvmlGpuInstancePlacement_t * 16)()
            n.nvmlDeviceGetGpuInstancePossiblePlacements(gpu(i), profile, found, ctypes.byref(count))
            return [[p.start, p.size] for p in found[:count.value]]
        show([places(0, 14), places(0, 5), places(0, 0), places(1, 14), places(1, 5)])
    """)
    assert placements == [
        [[0, 3], [3, 3], [6, 3], [9, 3]],
        [[0, 6], [6, 6]],
        [[0, 12]],
        [[0, 1], [1, 1], [2, 1], [3, 1]],
        [[0, 2], [2, 2]],
    ]


@pytest.mark.gpus("1xA100-40GB:mig,1xT4-16GB")
def test_scripted_faults(machine, nvml):
    script = machine.folder / "sim/faults"
    nvml("show(0)")
    script.write_text(
        "nvmlGpuInstanceCreateComputeInstance gpu=0 error=20 once\nnvmlGpuInstanceDestroy error=19\n"
        "* gpu=1 error=15\nnvmlDeviceGetMigMode delay_ms=300\nxid gpu=0 code=79 once\n"
    )
    started = time.monotonic()
    answers = nvml("""
        g = n.nvmlDeviceCreateGpuInstance(gpu(), 19)
        n.nvmlDeviceGetMigMode(gpu())
        show([code(n.nvmlGpuInstanceCreateComputeInstance, g, 0), code(n.nvmlGpuInstanceCreateComputeInstance, g, 0),
              code(n.nvmlDeviceGetName, gpu(1)) if code(gpu, 1) == 0 else code(gpu, 1), code(n.nvmlDeviceGetName, gpu(0))])
    """)
    assert answers == [20, 0, 15, 0] and time.monotonic() - started >= 0.3
    assert "once" not in script.read_text().split("xid")[0]
    event = nvml("""
        s = n.nvmlEventSetCreate()
        unheard = code(n.nvmlEventSetWait_v2, s, 10)
        n.nvmlDeviceRegisterEvents(gpu(), n.nvmlEventTypeXidCriticalError, s)
        e = n.nvmlEventSetWait_v2(s, 1000)
        show([unheard, e.eventType, e.eventData, code(n.nvmlEventSetWait_v2, s, 10)])
    """)
    assert event == [10, 8, 79, 10]


@pytest.mark.gpus("1xA100-40GB")
def test_a_mode_that_needs_a_reset_stays_pending(machine, nvml):
    set_mode = """
        activation = ctypes.c_int()
        code = n._nvmlGetFunctionPointer("nvmlDeviceSetMigMode")(gpu(), 1, ctypes.byref(activation))
        show([code, activation.value, n.nvmlDeviceGetMigMode(gpu())])
    """
    nvml("show(0)")
    (machine.folder / "sim/faults").write_text("nvmlDeviceSetMigMode gpu=0 activation=16 once\n")
    assert nvml(set_mode) == [0, 16, [0, 1]]
    assert nvml(set_mode) == [0, 0, [1, 1]]


@pytest.mark.gpus("1xA100-40GB:mig")
def test_nvidia_smi_lists_mig_devices(machine, nvml, nvidia_smi):
    uuids = nvml("show([make(19, 0, 1), make(14, 2, 2)])")
    client = machine.client(CUDA_VISIBLE_DEVICES=uuids[1])
    client("context()"), client(f"alloc({1024 * MIB})")
    for branch in ("535", "550"):
        listed = machine.run(nvidia_smi / branch / "nvidia-smi", "-L")
        assert [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines() if "MIG " in line] == uuids[::-1]  # by instance id
        table = machine.run(nvidia_smi / branch / "nvidia-smi")
        assert "1440MiB / 9856MiB" in " ".join(table.split()), table
        if branch == "550":  # manages instances as well as it lists them
            profiles = machine.run(nvidia_smi / branch / "nvidia-smi", "mig", "-lgip")
            free = {line.split()[3]: line.split()[5] for line in profiles.splitlines() if "MIG " in line}
            assert (free["1g.5gb"], free["2g.10gb"], free["3g.20gb"], free["7g.40gb"]) == ("4/7", "1/3", "1/2", "0/1")
        rows = [line.split() for line in table.splitlines() if f" {client.pid} " in line]
        assert len(rows) == 1 and rows[0][1:5] == ["0", "4", "0", str(client.pid)], table


@pytest.mark.gpus("1xA100-40GB:mig")
def test_nvitop_shows_mig_devices(machine, nvml):
    nvml("show([make(19, 0, 1), make(14, 2, 2)])")
    table = machine.run(sys.executable, "-m", "nvitop", "-1", "--no-unicode")
    assert "1g.5gb" in table and "2g.10gb" in table and "0B / 9856MiB" in " ".join(table.split())
