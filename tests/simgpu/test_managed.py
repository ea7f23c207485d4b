"""Memory that migrates: managed memory, and the host's where a GPU reads it by itself (HMM)."""

import pytest

from conftest import GIB, MIB

TOTAL, CONTEXT = 40960 * MIB, 416 * MIB
ROOM = TOTAL - CONTEXT
HOST = -1


def managed(client, size):
    code, address = client(f"number('cuMemAllocManaged', c_size_t({size}), 1, kind=c_uint64)")
    assert code == 0
    return address


def prefetch(client, address, size, device=0):
    return client(f"cu.cuMemPrefetchAsync(c_uint64({address}), c_size_t({size}), {device}, c_void_p())")


def held(machine):
    """The driver's figures of the only process: what it holds, and what of its memory is on the GPU for the moment."""
    (process,) = machine.truth()[0]["processes"]
    return process["used_bytes"], process["migrated_bytes"]


def test_it_takes_nothing_until_the_gpu_uses_it(machine):
    client = machine.client()
    client("context()")
    address = managed(client, 8 * GIB)
    assert machine.used() == CONTEXT
    assert client(f"ctypes.memset(c_void_p({address + 8 * GIB - 1}), 7, 1) and 0") == 0
    assert client(f"number('cuPointerGetAttribute', 8, c_uint64({address}))") == [0, 1]
    assert prefetch(client, address, 2 * GIB) == 0 and held(machine) == (CONTEXT, 2 * GIB)
    assert prefetch(client, address, GIB) == 0 and machine.used() == CONTEXT + 2 * GIB, "it is there already"
    assert client(f"cu.cuMemsetD8_v2(c_uint64({address + 4 * GIB}), 0, c_size_t({GIB}))") == 0
    assert held(machine) == (CONTEXT, 3 * GIB) and client("info()")[1] == ROOM - 3 * GIB
    assert prefetch(client, address, 8 * GIB, HOST) == 0 and held(machine) == (CONTEXT, 0)
    assert prefetch(client, address, 8 * GIB) == 0
    assert client(f"free({address})") == 0 and machine.used() == CONTEXT


def test_a_program_may_use_more_than_the_gpu_has(machine):
    client = machine.client()
    client("context()")
    address = managed(client, 60 * GIB)
    assert prefetch(client, address, 60 * GIB) == 0 and held(machine) == (CONTEXT, ROOM)
    assert client(f"alloc({GIB})")[0] == 0 and held(machine) == (CONTEXT + GIB, ROOM - GIB), "its own pages leave"


def test_an_allocation_of_another_process_evicts_it(machine):
    one, other = machine.client(), machine.client()
    one("context()")
    address = managed(one, 60 * GIB)
    assert prefetch(one, address, 60 * GIB) == 0
    other("context()")
    code, held_by_other = other(f"alloc({30 * GIB})")
    assert code == 0 and machine.used() == TOTAL
    migrated = {process["used_bytes"]: process["migrated_bytes"] for process in machine.truth()[0]["processes"]}
    assert migrated == {CONTEXT: ROOM - 30 * GIB - CONTEXT, CONTEXT + 30 * GIB: 0}
    assert other(f"alloc({10 * GIB})")[0] == 2 and machine.used() == TOTAL, "a refusal evicts nothing"
    assert other(f"free({held_by_other})") == 0 and machine.used() == TOTAL - 30 * GIB
    assert prefetch(one, address, 60 * GIB) == 0 and machine.used() == TOTAL, "what was evicted comes back"
    one.kill()
    assert machine.used() == CONTEXT


def mapped(client, size):
    return client(f"(lambda m: (globals().setdefault('kept', m), ctypes.addressof(c_int.from_buffer(m)))[1])(__import__('mmap').mmap(-1, {size}))")


@pytest.mark.gpus("1xA100-40GB:hmm,1xA100-40GB")
def test_a_gpu_with_hmm_takes_the_host_s_memory(machine):
    client = machine.client()
    client("context()")
    pageable = "[number('cuDeviceGetAttribute', 88, device)[1] for device in (0, 1)]"
    assert client(pageable) == [1, 0]
    address = mapped(client, 4 * GIB)
    assert prefetch(client, address, 4 * GIB) == 0 and held(machine) == (CONTEXT, 4 * GIB)
    assert prefetch(client, address, 4 * GIB, 1) == 1, "the other GPU has no HMM"
    assert prefetch(client, address, 4 * GIB, HOST) == 0 and held(machine) == (CONTEXT, 0)
    _, block = client(f"alloc({GIB})")
    assert prefetch(client, block, GIB) == 1, "what cuMemAlloc gives does not migrate"
