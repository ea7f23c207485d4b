"""The memory that allocations consume, and their refusal. The figures are the rule in crates/sim/simgpu/src/lib.rs."""

import subprocess

import pytest

from conftest import GIB, LIB, MIB

CONTEXT = 416 * MIB  # of an A100
TOTAL = 40960 * MIB


def test_c_program(machine, tmp_path):
    source = __file__.replace("test_memory.py", "driver_api.c")
    program = tmp_path / "driver_api"
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", program, source, LIB / "libcuda.so.1"], check=True)
    version, count, *name, major, total, free, pitch = machine.run(program).split()
    assert (count, " ".join(name), major) == ("3", "NVIDIA A100-SXM4-40GB", "8")
    assert machine.client()("number('cuDriverGetVersion')") == [0, int(version)]
    # The pitched array is 4096 rows of 1024 bytes.
    assert (int(total), int(pitch)) == (TOTAL, 1024)
    assert int(free) == TOTAL - CONTEXT - GIB - 4 * MIB
    assert [gpu["used_bytes"] for gpu in machine.truth()] == [0, 0, 0]


def test_large_allocations_take_whole_granules(machine):
    client = machine.client()
    assert client("context()") == 0
    assert machine.used() == CONTEXT
    code, address = client(f"alloc({MIB + 1})")
    assert code == 0 and machine.used() == CONTEXT + 2 * MIB
    assert client(f"free({address})") == 0
    assert client(f"free({address})") == 1
    assert machine.used() == CONTEXT


def test_small_allocations_share_slabs(machine):
    client = machine.client()
    client("context()")
    blocks = client("[alloc(700)[1] for _ in range(2048)]")  # 1024 bytes each: exactly one slab
    assert len(set(blocks)) == 2048 and machine.used() == CONTEXT + 2 * MIB
    _, one_more = client("alloc(1)")
    assert machine.used() == CONTEXT + 4 * MIB
    client(f"free({one_more})")
    assert machine.used() == CONTEXT + 2 * MIB
    client(f"[free(b) for b in {blocks}]")
    assert machine.used() == CONTEXT


def test_the_last_granule_is_granted_and_the_next_refused(machine):
    first, second = machine.client(), machine.client()
    first("context()"), second("context()")
    _, free, _ = first("info()")
    assert free == TOTAL - 2 * CONTEXT
    assert first(f"alloc({free + 1})")[0] == 2
    assert first(f"alloc({free - 2 * MIB})")[0] == 0
    assert second(f"alloc({2 * MIB})")[0] == 0
    assert [c("alloc(1)")[0] for c in (first, second)] == [2, 2]
    assert machine.used() == TOTAL
    assert first("info()")[1] == 0
    # No room for a third context; a refusal takes nothing.
    assert machine.client()("context()") == 2
    assert machine.used() == TOTAL


def test_each_context_costs_and_frees_its_memory(machine):
    client = machine.client()
    assert client("[context(0), context(0), context(1)]") == [0, 0, 0]
    client(f"alloc({GIB})")
    assert [machine.used(0), machine.used(1)] == [2 * CONTEXT, CONTEXT + GIB]
    current = client("number('cuCtxGetCurrent', kind=c_void_p)")[1]
    assert client(f"cu.cuCtxDestroy_v2(c_void_p({current}))") == 0
    assert [machine.used(0), machine.used(1)] == [2 * CONTEXT, 0]
    # The context below it on the stack is current again.
    assert client("number('cuCtxGetDevice')") == [0, 0]


def test_primary_context_lives_while_retained(machine):
    client = machine.client()
    client("init()")
    active = "(lambda a: [cu.cuDevicePrimaryCtxGetState(0, byref(c_int()), byref(a)), a.value])(c_int())"
    assert client(active) == [0, 0]
    handles = client("[number('cuDevicePrimaryCtxRetain', 0, kind=c_void_p) for _ in range(2)]")
    assert handles[0] == handles[1] and machine.used() == CONTEXT
    assert client(active) == [0, 1]
    client(f"cu.cuCtxSetCurrent(c_void_p({handles[0][1]}))")
    assert client(f"alloc({GIB})")[0] == 0
    assert client("cu.cuDevicePrimaryCtxRelease_v2(0)") == 0
    assert machine.used() == CONTEXT + GIB
    assert client("cu.cuDevicePrimaryCtxRelease_v2(0)") == 0
    assert machine.used() == 0
    assert client("cu.cuDevicePrimaryCtxRelease_v2(0)") == 201
    assert client("alloc(1)")[0] == 709  # the current context is gone


def test_pointers_are_recognized_from_inside(machine):
    client = machine.client()
    client("context(1)")
    _, address = client(f"alloc({5 * MIB})")
    inside = address + 5 * MIB - 1
    ranged = f"(lambda b, s: [cu.cuMemGetAddressRange_v2(byref(b), byref(s), c_uint64({inside})), b.value, s.value])"
    assert client(ranged + "(c_uint64(), c_size_t())") == [0, address, 5 * MIB]
    assert client(f"number('cuPointerGetAttribute', 2, c_uint64({inside}))") == [0, 2]
    assert client(f"number('cuPointerGetAttribute', 9, c_uint64({inside}))") == [0, 1]
    assert client(f"number('cuPointerGetAttribute', 2, c_uint64({address + 5 * MIB}))")[0] == 1


def test_host_memory_is_not_counted(machine):
    client = machine.client()
    client("context()")
    code, pointer = client(f"number('cuMemHostAlloc', c_size_t({64 * MIB}), 0, kind=c_void_p)")
    assert code == 0 and machine.used() == CONTEXT
    assert client(f"ctypes.memset(c_void_p({pointer}), 1, {64 * MIB}) and 0") == 0
    assert client(f"cu.cuMemFreeHost(c_void_p({pointer}))") == 0
    assert client(f"cu.cuMemFreeHost(c_void_p({pointer}))") == 1


def test_limits_of_a_context_take_memory_that_no_allocation_mentions(machine):
    client = machine.client()
    client("context()")
    heap, stack = 2, 0
    assert client(f"cu.cuCtxSetLimit({heap}, c_size_t({1032 * MIB}))") == 0  # 8 MiB are in the context's cost
    assert machine.used() == CONTEXT + GIB
    # 4 KiB more for each of 108 * 2048 threads.
    assert client(f"cu.cuCtxSetLimit({stack}, c_size_t(5120))") == 0
    assert machine.used() == CONTEXT + GIB + 864 * MIB
    assert client(f"number('cuCtxGetLimit', {stack}, kind=c_size_t)") == [0, 5120]
    assert client(f"cu.cuCtxSetLimit({heap}, c_size_t({50 * GIB}))") == 2
    assert client(f"cu.cuCtxSetLimit({heap}, c_size_t(0))") == 0
    assert machine.used() == CONTEXT + 864 * MIB
    current = client("number('cuCtxGetCurrent', kind=c_void_p)")[1]
    assert client(f"cu.cuCtxDestroy_v2(c_void_p({current}))") == 0 and machine.used() == 0


@pytest.mark.parametrize("call, code", [("alloc(0)", 1), ("free(4096)", 1), ("free(0)", 0), (f"alloc({1 << 62})", 2)])
def test_odd_arguments(machine, call, code):
    client = machine.client()
    client("context()")
    answer = client(call)
    assert (answer[0] if isinstance(answer, list) else answer) == code
    assert machine.used() == CONTEXT


def test_calls_out_of_order(machine):
    client = machine.client()
    assert client("number('cuDeviceGetCount')")[0] == 3
    assert client("init()") == 0
    assert client("alloc(1)")[0] == 201
    assert client("context(3)") == 101
