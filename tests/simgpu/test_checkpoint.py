"""Checkpoints of processes: states, errors and figures of cuCheckpointProcess*, as NVIDIA documents them from driver 570 on."""

import ctypes
import json
import time

import pytest

from conftest import GIB, LIB, MIB

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, OPERATING_SYSTEM, ILLEGAL_STATE, NOT_READY, NOT_SUPPORTED = 1, 2, 3, 304, 401, 600, 801
RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
HELD = GIB


class Helper:
    """A process that checkpoints others."""

    SETUP = """
class Pair(ctypes.Structure):
    _fields_ = [("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16)]
class Restore(ctypes.Structure):
    _fields_ = [("pairs", ctypes.POINTER(Pair)), ("count", ctypes.c_uint), ("rest", ctypes.c_ubyte * 52)]
class Lock(ctypes.Structure):
    _fields_ = [("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7)]
def uuid_of(device):
    raw = (ctypes.c_ubyte * 16)()
    assert cu.cuDeviceGetUuid(raw, device) == 0
    return raw
def restore(pid, pairs):
    each = (Pair * max(len(pairs), 1))(*[Pair(uuid_of(old), uuid_of(new)) for old, new in pairs])
    return cu.cuCheckpointProcessRestore(pid, byref(Restore(each if pairs else None, len(pairs))))
def state(pid):
    found = ctypes.c_uint()
    return [cu.cuCheckpointProcessGetState(pid, byref(found)), found.value]
"""

    def __init__(self, machine, init=True):
        self.client = machine.client("busy.py")
        for part in self.SETUP.strip().replace("\nclass", "\0class").replace("\ndef", "\0def").split("\0"):
            self.client(f"exec({part!r}, globals())")
        if init:
            assert self.client("cu.cuInit(0)") == 0

    def lock(self, pid, timeout_ms=5000):
        return self.client(f"cu.cuCheckpointProcessLock({pid}, byref(Lock({timeout_ms})))")

    def checkpoint(self, pid):
        return self.client(f"cu.cuCheckpointProcessCheckpoint({pid}, None)")

    def restore(self, pid, *pairs):
        return self.client(f"restore({pid}, {list(pairs)})")

    def unlock(self, pid):
        return self.client(f"cu.cuCheckpointProcessUnlock({pid}, None)")

    def state(self, pid):
        code, state = self.client(f"state({pid})")
        return state if code == 0 else -code

    def out(self, pid):
        assert self.lock(pid) == 0 and self.checkpoint(pid) == 0


@pytest.fixture
def helper(machine):
    return Helper(machine)


def holder(machine, size=HELD, device=0, **env):
    client = machine.client(**env)
    assert client(f"context({device})") == 0 and client(f"alloc({size})")[0] == 0
    return client


def model(machine, *rows):
    (machine.folder / "sim/model").write_text("".join(f"{row}\n" for row in rows))


def checkpoints(machine):
    library = ctypes.CDLL(str(LIB / "libcuda.so.1"))
    library.cantle_sim_truth_json.restype = ctypes.c_ssize_t
    buffer = ctypes.create_string_buffer(1 << 20)
    assert library.cantle_sim_truth_json(machine.env["CANTLE_SIM_DIR"].encode(), buffer, ctypes.c_size_t(len(buffer))) > 0
    return json.loads(buffer.value)["checkpoints"]


def test_memory_leaves_the_gpu_and_comes_back(machine, helper):
    client = holder(machine)
    held = machine.used()
    assert held > HELD
    assert helper.state(client.pid) == RUNNING
    assert helper.lock(client.pid) == 0 and helper.state(client.pid) == LOCKED
    assert machine.used() == held, "a locked process still has its memory"
    assert helper.checkpoint(client.pid) == 0 and helper.state(client.pid) == CHECKPOINTED
    assert machine.used() == 0 and machine.truth()[0]["processes"] == []
    assert checkpoints(machine) == [{"pid": client.pid, "state": "checkpointed", "parked_bytes": held}]
    other = holder(machine, 30 * GIB)
    other.kill()
    assert helper.restore(client.pid) == 0 and helper.state(client.pid) == LOCKED
    assert machine.used() == held
    assert helper.unlock(client.pid) == 0 and helper.state(client.pid) == RUNNING
    assert client(f"alloc({GIB})")[0] == 0 and machine.used() == held + GIB
    assert checkpoints(machine) == []


def test_calls_block_until_the_process_is_unlocked(machine, helper):
    client = holder(machine)
    helper.out(client.pid)
    client.process.stdin.write("info()\n")
    client.process.stdin.flush()
    time.sleep(0.3)
    assert client.process.poll() is None and machine.used() == 0
    assert helper.restore(client.pid) == 0 and helper.unlock(client.pid) == 0
    code, free, total = json.loads(client.process.stdout.readline())
    assert code == 0 and free < total


def test_each_call_wants_its_state(machine, helper):
    client = holder(machine)
    pid = client.pid
    assert [helper.checkpoint(pid), helper.restore(pid), helper.unlock(pid)] == [ILLEGAL_STATE] * 3
    assert helper.lock(pid) == 0
    assert [helper.lock(pid), helper.restore(pid)] == [ILLEGAL_STATE] * 2
    assert helper.checkpoint(pid) == 0
    assert [helper.lock(pid), helper.checkpoint(pid), helper.unlock(pid)] == [ILLEGAL_STATE] * 3
    assert helper.restore(pid) == 0 and helper.unlock(pid) == 0


def test_processes_without_a_context_and_drivers_without_the_functions(machine, helper):
    assert helper.state(helper.client.pid) == -INVALID_VALUE
    client = holder(machine)
    assert Helper(machine, init=False).state(client.pid) == -NOT_INITIALIZED
    assert machine.set_driver("565.57.01")
    assert helper.lock(client.pid) == NOT_SUPPORTED and helper.state(client.pid) == -NOT_SUPPORTED
    assert machine.set_driver("570.86.10")
    assert helper.state(client.pid) == RUNNING


def test_a_lock_waits_for_work_and_gives_up(machine, helper):
    client = machine.client("busy.py")
    client("context()")
    client("f = busy(3_000_000)")
    assert client("launch(f)") == 0
    began = time.monotonic()
    assert helper.lock(client.pid, 300) == NOT_READY
    assert 0.25 < time.monotonic() - began < 2.5, "it gives up before the work has ended"
    assert helper.state(client.pid) == RUNNING and client("launch(busy(1))") == 0
    assert helper.lock(client.pid, 20000) == 0, "the negative control: it waits for the end"
    assert helper.unlock(client.pid) == 0


def test_a_restore_without_room_is_final(machine, helper):
    client = holder(machine, 20 * GIB)
    helper.out(client.pid)
    other = holder(machine, 30 * GIB)
    assert helper.restore(client.pid) == OUT_OF_MEMORY and helper.state(client.pid) == FAILED
    other.kill()
    assert helper.restore(client.pid) == OPERATING_SYSTEM and helper.unlock(client.pid) == ILLEGAL_STATE
    assert machine.used() == 0
    client.kill()
    assert checkpoints(machine) == []


@pytest.mark.gpus("2xA100-40GB,1xA100-80GB")
def test_another_gpu_of_the_same_kind(machine, helper):
    client = holder(machine, device=0)
    held = machine.used()
    helper.out(client.pid)
    assert helper.restore(client.pid, (0, 2)) == INVALID_VALUE, "another kind"
    assert helper.restore(client.pid, (1, 0)) == INVALID_VALUE, "its own GPU is not named"
    assert helper.restore(client.pid, (0, 1), (0, 1)) == INVALID_VALUE, "twice"
    assert helper.state(client.pid) == CHECKPOINTED
    assert helper.restore(client.pid, (0, 1)) == 0 and helper.unlock(client.pid) == 0
    assert (machine.used(0), machine.used(1)) == (0, held)
    assert client('number("cuDeviceGetUuid", 0, kind=c_uint64)') == helper.client('[0, made("cuDeviceGetUuid", 1).value]'), "first half of the UUID"
    assert client(f"alloc({GIB})")[0] == 0 and machine.used(1) == held + GIB
    client.kill()
    assert machine.used(1) == 0


def test_drivers_before_580_take_no_pairs(machine, helper):
    client = holder(machine)
    assert machine.set_driver("570.86.10")
    helper.out(client.pid)
    assert helper.restore(client.pid, (0, 1)) == INVALID_VALUE
    assert helper.restore(client.pid) == 0 and helper.unlock(client.pid) == 0


def test_managed_memory_fails_the_process(machine, helper):
    client = holder(machine)
    client(f"number('cuMemAllocManaged', c_size_t({MIB}), 1, kind=c_uint64)")
    assert helper.lock(client.pid) == 0
    assert helper.checkpoint(client.pid) == NOT_SUPPORTED and helper.state(client.pid) == FAILED


@pytest.mark.parametrize("driver, code", [("595.58.03", NOT_SUPPORTED), ("610.43.02", 0)])
def test_shared_memory_needs_driver_610(machine, helper, driver, code):
    assert machine.set_driver(driver)
    client = holder(machine)
    assert client(f"cu.cuIpcGetMemHandle(byref((c_uint64 * 8)()), c_uint64(alloc({GIB})[1]))") == 0
    assert helper.lock(client.pid) == 0 and helper.checkpoint(client.pid) == code


def test_clients_of_mps_are_refused(machine, helper):
    client = holder(machine)
    model(machine, "mps=1")
    assert helper.lock(client.pid) == NOT_SUPPORTED and helper.state(client.pid) == RUNNING


def test_a_transfer_takes_time_by_its_bytes(machine, helper):
    client = holder(machine, 4 * GIB)
    model(machine, "checkpoint_mib_per_s=8192")
    assert helper.lock(client.pid) == 0
    began = time.monotonic()
    assert helper.checkpoint(client.pid) == 0
    assert time.monotonic() - began >= 0.45
    assert helper.restore(client.pid) == 0 and helper.unlock(client.pid) == 0


def test_host_memory_is_limited(machine, helper):
    first, second = holder(machine), holder(machine)
    model(machine, "checkpoint_host_mib=2048")
    helper.out(first.pid)
    assert helper.lock(second.pid) == 0
    assert helper.checkpoint(second.pid) == OUT_OF_MEMORY and helper.state(second.pid) == FAILED


def test_the_death_of_either_side(machine, helper):
    first, second = holder(machine), holder(machine)
    helper.out(first.pid)
    first.kill()
    assert helper.state(first.pid) == -INVALID_VALUE
    assert helper.lock(second.pid) == 0
    helper.client.kill()
    again = Helper(machine)
    assert again.state(second.pid) == LOCKED, "the state is the process's"
    assert again.checkpoint(second.pid) == 0 and again.restore(second.pid) == 0 and again.unlock(second.pid) == 0
