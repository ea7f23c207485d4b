"""Pools, virtual memory management, arrays, graphs and IPC: what really leaves the device, and when it returns."""

import ctypes

import pytest

from conftest import GIB, LIB, MIB

CONTEXT = 416 * MIB


@pytest.fixture
def client(machine):
    client = machine.client()
    assert client("context()") == 0
    return client


def held(machine):
    """Bytes taken of GPU 0 beyond one context."""
    return machine.used() - CONTEXT


RESERVED, RESERVED_HIGH, USED, USED_HIGH = 5, 6, 7, 8


def default_pool(client):
    return client("number('cuDeviceGetDefaultMemPool', 0, kind=c_uint64)")[1]


def test_a_pool_keeps_freed_memory_until_synchronization(machine, client):
    pool = default_pool(client)
    code, address = client(f"alloc_async({3 * MIB})")
    assert code == 0 and held(machine) == 4 * MIB
    assert [client(f"pool_figure({pool}, {a})") for a in (RESERVED, USED)] == [4 * MIB, 3 * MIB]
    # The next one fits into what is reserved.
    assert client(f"alloc_async({MIB})")[0] == 0 and held(machine) == 4 * MIB
    assert client(f"free_async({address})") == 0
    assert held(machine) == 4 * MIB and client(f"pool_figure({pool}, {USED})") == MIB
    assert client("cu.cuStreamSynchronize(0)") == 0
    assert held(machine) == 2 * MIB
    assert [client(f"pool_figure({pool}, {a})") for a in (RESERVED_HIGH, USED_HIGH)] == [4 * MIB, 4 * MIB]
    assert client(f"set_pool({pool}, {RESERVED_HIGH}, 0)") == 0
    assert client(f"pool_figure({pool}, {RESERVED_HIGH})") == 2 * MIB


def test_release_threshold_and_trim(machine, client):
    pool = default_pool(client)
    assert client(f"set_pool({pool}, 4, {GIB})") == 0
    client(f"free_async(alloc_async({2 * GIB})[1])")
    assert held(machine) == 2 * GIB
    client("cu.cuCtxSynchronize()")
    assert held(machine) == GIB
    assert client(f"cu.cuMemPoolTrimTo(c_uint64({pool}), c_size_t({100 * MIB}))") == 0
    assert held(machine) == 100 * MIB
    assert client(f"alloc_async({50 * GIB})")[0] == 2 and held(machine) == 100 * MIB


def test_frees_may_cross(machine, client):
    _, from_pool = client(f"alloc_async({8 * MIB})")
    _, linear = client(f"alloc({8 * MIB})")
    assert client(f"[free({from_pool}), free_async({linear}), cu.cuCtxSynchronize()]") == [0, 0, 0]
    assert held(machine) == 0
    assert client(f"free_async({linear})") == 1


def test_own_pools(machine, client):
    pool = client("number('cuMemPoolCreate', properties(), kind=c_uint64)")[1]
    take = f"number('cuMemAllocFromPoolAsync', c_size_t({6 * MIB}), c_uint64({pool}), c_uint64(0), kind=c_uint64)"
    _, address = client(take)
    assert held(machine) == 6 * MIB and client(f"pool_figure({default_pool(client)}, {RESERVED})") == 0
    assert client(f"cu.cuDeviceSetMemPool(0, c_uint64({pool}))") == 0
    _, second = client(f"alloc_async({2 * MIB})")
    assert client(f"pool_figure({pool}, {USED})") == 8 * MIB
    # Destroyed while in use, it lives until its last allocation is freed.
    assert client(f"cu.cuMemPoolDestroy(c_uint64({pool}))") == 0
    assert client("number('cuDeviceGetMemPool', 0, kind=c_uint64)")[1] == default_pool(client)
    client(f"free_async({address})"), client(f"free_async({second})")
    assert held(machine) == 0 and client(f"pool_figure({pool}, {USED})") == -1
    assert client(f"cu.cuMemPoolDestroy(c_uint64({default_pool(client)}))") == 1


def test_pools_end_with_the_last_context(machine, client):
    client(f"set_pool({default_pool(client)}, 4, {40 * GIB})")
    client(f"[alloc_async({GIB}), free_async(alloc_async({GIB})[1])]")
    assert held(machine) == 2 * GIB
    current = client("number('cuCtxGetCurrent', kind=c_void_p)")[1]
    assert client(f"cu.cuCtxDestroy_v2(c_void_p({current}))") == 0 and machine.used() == 0


def test_physical_memory_lives_while_a_handle_or_a_mapping_does(machine, client):
    assert client("number('cuMemGetAllocationGranularity', properties(), 0, kind=c_size_t)") == [0, 2 * MIB]
    assert client(f"create({3 * MIB})")[0] == 1
    _, handle = client(f"create({6 * MIB})")
    _, address = client(f"reserve({16 * MIB})")
    assert held(machine) == 6 * MIB
    assert client(f"vmm_map({address + 2 * MIB}, {6 * MIB}, {handle})") == 0
    assert client(f"vmm_map({address + 4 * MIB}, {6 * MIB}, {handle})") == 1  # overlaps
    assert client(f"release({handle})") == 0
    assert held(machine) == 6 * MIB  # still mapped
    retained = client(f"number('cuMemRetainAllocationHandle', c_void_p({address + 3 * MIB}), kind=c_uint64)")
    assert retained == [0, handle]
    assert client(f"unmap({address + 2 * MIB}, {4 * MIB})") == 1  # not a whole mapping
    assert client(f"unmap({address + 2 * MIB}, {6 * MIB})") == 0
    assert held(machine) == 6 * MIB  # the retained handle
    assert client(f"release({handle})") == 0 and held(machine) == 0
    assert client(f"release({handle})") == 1
    assert client(f"cu.cuMemAddressFree(c_uint64({address}), c_size_t({16 * MIB}))") == 0


def test_physical_memory_is_refused_and_located(machine, client):
    assert client(f"create({41 * GIB})")[0] == 2 and held(machine) == 0
    assert client(f"create({GIB}, 2)")[0] == 0  # on a device without a context
    assert machine.used(2) == GIB and held(machine) == 0
    client.kill()
    assert machine.used(2) == 0


@pytest.mark.parametrize("location", [2, 3, 4])
def test_physical_memory_of_the_host_takes_nothing_of_a_device(machine, client, location):
    where = f"byref(Properties(1, 1, {location}, 0))"
    code, handle = client(f"number('cuMemCreate', c_size_t({8 * MIB}), {where}, c_uint64(0), kind=c_uint64)")
    assert code == 0 and held(machine) == 0
    _, address = client(f"reserve({8 * MIB})")
    assert client(f"vmm_map({address}, {8 * MIB}, {handle})") == 0
    assert client(f"[unmap({address}, {8 * MIB}), release({handle})]") == [0, 0] and held(machine) == 0


def test_expandable_segments(machine, client):
    """The use by PyTorch: one large reservation, grown and shrunk by mapping 20 MiB pieces."""
    _, address = client(f"reserve({40 * GIB})")
    piece = 20 * MIB
    client(
        f"[(lambda h: [vmm_map({address} + i * {piece}, {piece}, h), release(h)])(create({piece})[1]) for i in range(50)]"
    )
    assert held(machine) == 50 * piece
    assert client(f"cu.cuMemSetAccess(c_uint64({address}), c_size_t({50 * piece}), properties(), c_size_t(1))") == 0
    assert client(f"number('cuPointerGetAttribute', 9, c_uint64({address + piece}))") == [0, 0]
    assert client(f"unmap({address + 10 * piece}, {40 * piece})") == 0
    assert held(machine) == 10 * piece


def test_exported_memory_is_paid_once(machine, client):
    _, handle = client(f"create({4 * MIB})")
    export = f"number('cuMemExportToShareableHandle', c_uint64({handle}), 1, c_uint64(0))"
    code, descriptor = client(export)
    assert code == 0
    again = client(f"number('cuMemImportFromShareableHandle', c_void_p({descriptor}), 1, kind=c_uint64)")
    assert again == [0, handle]
    assert client(f"release({handle})") == 0 and held(machine) == 4 * MIB
    other = machine.client()
    other("context()")
    path = f"/proc/{client.pid}/fd/{descriptor}"
    imported = other(
        f"number('cuMemImportFromShareableHandle', c_void_p(os.open({path!r}, os.O_RDWR)), 1, kind=c_uint64)"
    )
    assert imported[0] == 0 and machine.used() == 2 * CONTEXT + 4 * MIB
    assert client(f"release({handle})") == 0
    # The owner of the descriptor could still import it, and another process has imported it.
    assert client("info()")[0] == 0 and machine.used() == 2 * CONTEXT + 4 * MIB
    assert client(f"os.close({descriptor})") is None
    assert client("info()")[0] == 0 and machine.used() == 2 * CONTEXT + 4 * MIB
    assert other(f"release({imported[1]})") == 0
    assert client("info()")[0] == 0 and machine.used() == 2 * CONTEXT


def test_a_descriptor_keeps_memory_that_nobody_has_a_handle_of(machine, client):
    export = "number('cuMemExportToShareableHandle', c_uint64({}), 1, c_uint64(0))"
    kept = []
    for _ in range(39):
        _, handle = client(f"create({GIB})")
        kept.append(client(export.format(handle))[1])
        assert client(f"release({handle})") == 0
    assert held(machine) == 39 * GIB and client(f"create({GIB})")[0] == 2
    client(f"os.close({kept[0]})")
    code, handle = client(f"create({GIB})")
    assert code == 0 and held(machine) == 39 * GIB
    assert client(f"number('cuMemImportFromShareableHandle', c_void_p({kept[1]}), 1, kind=c_uint64)")[0] == 0


@pytest.mark.parametrize(
    "call, consumed",
    [
        ("array(1024, 1024, 0)", 16 * MIB),
        ("array(1 << 16, 0, 0)", 2 * MIB),  # 1 MiB: small
        ("array(256, 256, 17)", 18 * MIB),  # 17 MiB
        ("array(1024, 1024, 0, levels=11)", 22 * MIB),  # 16 + 4 + 1 + ... MiB
        ("array(1024, 1024, 6, levels=2, flags=1)", 120 * MIB),  # layers do not shrink
        ("array(1024, 1024, 0, flags=0x80)", 0),  # deferred mapping
    ],
)
def test_arrays(machine, client, call, consumed):
    code, handle = client(call)
    assert code == 0 and held(machine) == consumed
    destroy = "cuMipmappedArrayDestroy" if "levels" in call else "cuArrayDestroy"
    assert client(f"cu.{destroy}(c_uint64({handle}))") == 0 and held(machine) == 0
    assert client(f"cu.{destroy}(c_uint64({handle}))") == 400


def test_arrays_are_refused_and_end_with_their_context(machine, client):
    assert client("array(1 << 16, 1 << 16, 0)")[0] == 2 and held(machine) == 0
    assert client("array(1024, 1024, 0, channels=3)")[0] == 1
    client("array(1024, 1024, 0)")
    current = client("number('cuCtxGetCurrent', kind=c_void_p)")[1]
    assert client(f"cu.cuCtxDestroy_v2(c_void_p({current}))") == 0 and machine.used() == 0


def graph_figure(client, attribute):
    return client(f"(lambda v: [cu.cuDeviceGetGraphMemAttribute(0, {attribute}, byref(v)), v.value])(c_uint64())")[1]


def test_graph_memory_comes_at_launch_and_stays_until_trimmed(machine, client):
    executable, address = client(f"graph_with_allocation({4 * MIB})")
    assert held(machine) == 0
    assert client(f"launch({executable})") == 0 and held(machine) == 4 * MIB
    assert client(f"launch({executable})") == 1  # not freed yet
    assert client(f"free_async({address})") == 0 and held(machine) == 4 * MIB
    assert [graph_figure(client, a) for a in (0, 2)] == [0, 4 * MIB]
    assert client("[cu.cuCtxSynchronize(), cu.cuDeviceGraphMemTrim(0)]") == [0, 0] and held(machine) == 0
    assert client(f"launch({executable})") == 0 and held(machine) == 4 * MIB


def test_graph_that_frees_can_be_launched_again(machine, client):
    executable, _ = client(f"graph_with_allocation({4 * MIB}, then_free=True)")
    assert client(f"[launch({executable}) for _ in range(3)]") == [0, 0, 0]
    assert held(machine) == 4 * MIB and graph_figure(client, 0) == 0
    assert client(f"cu.cuGraphExecDestroy(c_uint64({executable}))") == 0


def test_graph_launch_is_refused_whole(machine, client):
    executable, _ = client(f"graph_with_allocation({41 * GIB})")
    assert client(f"launch({executable})") == 2 and held(machine) == 0


def test_an_upload_takes_what_a_launch_needs(machine, client):
    executable, _ = client(f"graph_with_allocation({4 * MIB})")
    assert client(f"cu.cuGraphUpload(c_uint64({executable}), c_uint64(0))") == 0 and held(machine) == 4 * MIB
    assert client(f"launch({executable})") == 0 and held(machine) == 4 * MIB
    assert client(f"graph_with_allocation({6 * MIB}, upload=True)[0]") > 0 and held(machine) == 10 * MIB
    assert client(f"graph_with_allocation({41 * GIB}, upload=True)") == 2 and held(machine) == 10 * MIB


def test_captured_allocations_are_graph_memory(machine, client):
    stream = client("number('cuStreamCreate', 1, kind=c_uint64)")[1]
    assert client("cu.cuStreamBeginCapture_v2(c_uint64(0), 0)") == 900
    assert client(f"cu.cuStreamBeginCapture_v2(c_uint64({stream}), 0)") == 0
    code, address = client(f"alloc_async({4 * MIB}, {stream})")
    assert code == 0 and held(machine) == 0
    assert client(f"free_async({address}, {stream})") == 0
    graph = client("(lambda g: [cu.cuStreamEndCapture(c_uint64(%d), byref(g)), g.value])(c_uint64())" % stream)[1]
    executable = client(f"number('cuGraphInstantiateWithFlags', c_uint64({graph}), c_uint64(0), kind=c_uint64)")[1]
    assert client(f"launch({executable})") == 0 and held(machine) == 4 * MIB
    # The capture is over.
    assert client(f"alloc_async({2 * MIB}, {stream})")[0] == 0 and held(machine) == 6 * MIB


def test_ipc_memory_is_paid_once(machine, client):
    _, address = client(f"alloc({GIB})")
    get = f"(lambda h: [cu.cuIpcGetMemHandle(h, c_uint64({address})), h.raw.hex()])(ctypes.create_string_buffer(64))"
    code, handle = client(get)
    assert code == 0
    opened = (
        "(lambda H: number('cuIpcOpenMemHandle_v2', H.from_buffer_copy(bytes.fromhex(%r)), 1, kind=c_uint64))"
        "(type('H', (ctypes.Structure,), {'_fields_': [('b', ctypes.c_char * 64)]}))" % handle
    )
    assert client(opened)[0] == 201  # not in the exporting process
    other = machine.client()
    other("context()")
    code, there = other(opened)
    assert code == 0 and machine.used() == 2 * CONTEXT + GIB
    assert other(f"free({there})") == 1
    assert other(f"cu.cuIpcCloseMemHandle(c_uint64({there}))") == 0
    client.kill()
    assert other(opened)[0] == 205 and machine.used() == CONTEXT


def test_events_are_shared(machine, client):
    event = client("number('cuEventCreate', 0, kind=c_uint64)")[1]
    get = f"(lambda h: [cu.cuIpcGetEventHandle(h, c_uint64({event})), h.raw.hex()])(ctypes.create_string_buffer(64))"
    code, handle = client(get)
    other = machine.client()
    assert code == 0 and other("context()") == 0
    by_value = "type('Handle', (ctypes.Structure,), {'_fields_': [('raw', ctypes.c_byte * 64)]}).from_buffer_copy(bytes.fromhex(%r))" % handle
    code, imported = other(f"number('cuIpcOpenEventHandle', {by_value}, kind=c_uint64)")
    assert code == 0 and other(f"cu.cuEventQuery(c_uint64({imported}))") == 0
    assert client("cu.cuIpcGetEventHandle(ctypes.create_string_buffer(64), c_uint64(1))") == 400
    client.kill()
    assert other(f"number('cuIpcOpenEventHandle', {by_value}, kind=c_uint64)")[0] == 205


def test_modules_take_memory_when_a_function_of_theirs_is_looked_up(machine, client):
    """As the driver loads by default. No allocation mentions it."""
    load = "number('cuModuleLoadData', b'cantle_sim_module_mib_100', kind=c_uint64)"
    code, module = client(load)
    before = machine.used()
    assert code == 0 and client("number('cuModuleGetLoadingMode')") == [0, 2]
    for _ in range(2):
        assert client(f"number('cuModuleGetFunction', c_uint64({module}), b'kernel', kind=c_uint64)")[0] == 0
        assert machine.used() == before + (100 << 20)
    assert client(f"cu.cuModuleUnload(c_uint64({module}))") == 0
    assert machine.used() == before
    eager = machine.client(CUDA_MODULE_LOADING="EAGER")
    assert eager("context()") == 0
    before = machine.used()
    assert eager(load)[0] == 0 and machine.used() == before + (100 << 20)
    # One that does not fit is no module.
    assert eager(load.replace("100", "99999"))[0] == 2 and machine.used() == before + (100 << 20)
    assert eager("cu.cuCtxDestroy_v2(c_void_p(number('cuCtxGetCurrent', kind=c_uint64)[1]))") == 0
    assert machine.used() == CONTEXT


def test_streams_of_green_contexts_have_no_context_to_tell(machine):
    client = machine.client()
    assert client("context()") == 0
    code, green = client("number('cuGreenCtxCreate', c_uint64(1), 0, 1, kind=c_uint64)")
    assert code == 0
    code, stream = client(f"number('cuGreenCtxStreamCreate', c_uint64({green}), 1, 0, kind=c_uint64)")
    assert code == 0
    ask = "(lambda out: [cu.{}(c_uint64(%d), byref(out)), out.value])(c_uint64())" % stream
    assert client(ask.format("cuStreamGetCtx"))[0] == 201
    assert client(ask.format("cuStreamGetDevice")) == [0, 0]
    assert client(ask.format("cuStreamGetGreenCtx")) == [0, green]
    before = machine.used()
    assert client(f"alloc_async(64 << 20, {stream})")[0] == 0 and machine.used() == before + (64 << 20)
    assert client(f"cu.cuGreenCtxDestroy(c_uint64({green}))") == 0
    assert client(f"cu.cuGreenCtxDestroy(c_uint64({green}))") == 400


@pytest.mark.parametrize("driver, code", [("550.163.01", 1), ("580.95.05", 0)])
def test_pools_of_host_and_managed_memory(machine, client, driver, code):
    """Managed pools came with CUDA 13."""
    assert machine.set_driver(driver)
    create = "number('cuMemPoolCreate', byref(Properties({}, 0, {}, 0)), kind=c_uint64)"
    take = "number('cuMemAllocFromPoolAsync', c_size_t(64 << 20), c_uint64({}), None, kind=c_uint64)"
    before = machine.used()
    created, pool = client(create.format(1, 2))
    assert created == 0
    taken, address = client(take.format(pool))
    assert taken == 0 and machine.used() == before
    assert client(f"free_async({address})") == 0
    assert client(f"cu.cuMemPoolTrimTo(c_uint64({pool}), c_size_t(0))") == 0 and machine.used() == before
    assert client(create.format(2, 1))[0] == code


def chain(*steps, **more):
    """A graph of steps in a row, as `graph_of_steps` of client.py takes them."""
    return f"graph_of_steps({list(steps)!r}, **{more!r})"


def test_a_graph_reuses_the_addresses_of_what_it_has_freed(machine, client):
    """NVIDIA's sample graphMemoryFootprint: two allocations, one after the other, take what one takes."""
    executable, addresses = client(chain(("alloc", "a", 6 * MIB), ("free", "a"), ("alloc", "b", 4 * MIB), ("free", "b")))
    assert addresses["a"] == addresses["b"]
    assert client(f"cu.cuGraphLaunch(c_uint64({executable}), None)") == 0
    assert held(machine) == 6 * MIB and graph_figure(client, 0) == 0


def test_a_graph_reuses_no_address_of_what_may_be_in_use(machine, client):
    """The negative controls: not freed, freed on another branch, or too small."""
    live = client(chain(("alloc", "a", 4 * MIB), ("alloc", "b", 4 * MIB), ("free", "a"), ("free", "b")))
    apart = client(chain(("alloc", "a", 4 * MIB), ("free", "a"), ("alloc", "b", 4 * MIB), ("free", "b"), joined=False))
    larger = client(chain(("alloc", "a", 4 * MIB), ("free", "a"), ("alloc", "b", 6 * MIB), ("free", "b")))
    for (executable, addresses), most in ((live, 8), (apart, 8), (larger, 10)):
        assert addresses["a"] != addresses["b"]
        assert client(f"cu.cuGraphLaunch(c_uint64({executable}), None)") == 0
        assert held(machine) == most * MIB
        assert client("cu.cuDeviceGraphMemTrim(0)") == 0


def test_a_capture_reuses_addresses_in_the_order_of_its_streams(machine, client):
    stream = client("number('cuStreamCreate', 0, kind=c_uint64)")[1]
    assert client(f"cu.cuStreamBeginCapture_v2(c_uint64({stream}), 0)") == 0
    first = client(f"alloc_async({6 * MIB}, {stream})")[1]
    assert client(f"free_async({first}, {stream})") == 0
    assert client(f"alloc_async({6 * MIB}, {stream})") == [0, first]
    assert client(f"free_async({first}, {stream})") == 0
    graph = client("(lambda g: [cu.cuStreamEndCapture(c_uint64(%d), byref(g)), g.value])(c_uint64())" % stream)[1]
    executable = client(f"number('cuGraphInstantiateWithFlags', c_uint64({graph}), c_uint64(0), kind=c_uint64)")[1]
    assert client(f"cu.cuGraphLaunch(c_uint64({executable}), None)") == 0 and held(machine) == 6 * MIB
