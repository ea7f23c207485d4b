"""Memory limits of control groups, which drivers from 615 on enforce below their libraries. The calls and their errors are those of NVML's header
for r615."""

import os
import pathlib
import shutil
import sys

import pytest

from conftest import LIB, MIB

CONTEXT = 416 * MIB  # of an A100
TOTAL = 40960 * MIB
UNLIMITED = (1 << 64) - 1
LIMIT = 1024 * MIB
NOBODY = 65534
OUT_OF_MEMORY = 2
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, OPERATING_SYSTEM = 2, 3, 4, 17

# The calls of a process of root or, with `--user`, of another one: words are the path, then the soft and the hard limit to set.
CALLS = """
import ctypes, json, os, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Limits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64), ("used", ctypes.c_uint64)]
class Memory(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("total", ctypes.c_uint64), ("reserved", ctypes.c_uint64), ("free", ctypes.c_uint64),
                ("used", ctypes.c_uint64)]
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
what, *words = sys.argv[1:]
if what == "memory":
    memory = Memory(ctypes.sizeof(Memory) | 2 << 24)
    code = nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(memory))
    print(json.dumps([code, memory.total, memory.free, memory.used]))
elif what == "null":
    print(json.dumps([nvml.nvmlDeviceSetMemoryLimits_v1(device, None), nvml.nvmlDeviceGetMemoryLimits_v1(device, None),
                      nvml.nvmlDeviceSetMemoryLimits_v1(device, ctypes.byref(Limits(None, 0, 1 << 30, 0)))]))
elif what == "set":
    limits = Limits(words[0].encode(), int(words[1]), int(words[2]), 0)
    if words[3:]:
        os.setuid(int(words[3]))
    print(json.dumps(nvml.nvmlDeviceSetMemoryLimits_v1(device, ctypes.byref(limits))))
else:
    limits = Limits(words[0].encode(), 7, 7, 7)
    code = nvml.nvmlDeviceGetMemoryLimits_v1(device, ctypes.byref(limits))
    print(json.dumps([code, limits.soft, limits.hard, limits.used]))
"""


def hierarchy():
    """The unified hierarchy of this machine, if a test may make groups in it and the kernel reports the group of a process (Linux 6.14)."""
    mounts = pathlib.Path("/proc/mounts").read_text().splitlines()
    found = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
    new_enough = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 14)
    return pathlib.Path(found[0]) if found and new_enough and os.geteuid() == 0 else None


pytestmark = pytest.mark.skipif(hierarchy() is None, reason="needs root, control groups of version 2 and Linux 6.14")


@pytest.fixture
def group(machine):
    assert machine.client()("init()") in (0, 100), "which makes the machine"
    assert machine.set_driver("615.71.09")
    path = hierarchy() / f"cantle-test-{os.getpid()}"
    path.mkdir()
    yield path
    for client in machine.clients:
        client.kill()
    below = [folder for folder in path.rglob("*") if folder.is_dir()] if path.exists() else []
    for folder in [*reversed(below), path]:
        if folder.exists():
            folder.rmdir()


@pytest.fixture
def calls(machine):
    def call(what, *words, inside=None):
        enter = ["sh", "-c", f'echo 0 >{inside}/cgroup.procs && exec "$@"', "sh"] if inside else []
        return eval(machine.run(*enter, sys.executable, "-c", CALLS, what, *words))

    return call


def member(machine, group, **env):
    """A process in the group."""
    client = machine.client(**env)
    (group / "cgroup.procs").write_text(str(client.pid))
    assert client("context()") == 0
    return client


def test_the_error_table(machine, group, calls):
    assert calls("null") == [INVALID_ARGUMENT] * 3
    assert calls("set", group, 2 * MIB, MIB) == INVALID_ARGUMENT
    assert calls("set", group, 0, TOTAL + 1) == INVALID_ARGUMENT
    assert calls("set", group, 1, UNLIMITED) == INVALID_ARGUMENT
    assert calls("set", group, 0, LIMIT, NOBODY) == NO_PERMISSION
    assert calls("set", group / "none", 0, LIMIT) == OPERATING_SYSTEM
    assert calls("set", "/tmp", 0, LIMIT) == OPERATING_SYSTEM
    assert calls("get", group / "none")[0] == OPERATING_SYSTEM
    assert calls("get", group) == [0, 0, UNLIMITED, 0]
    assert calls("set", group, 0, TOTAL) == 0
    assert calls("get", group) == [0, 0, TOTAL, 0]
    assert calls("set", group, 0, UNLIMITED) == 0
    assert calls("get", group) == [0, 0, UNLIMITED, 0]


def test_an_older_driver_has_none(machine, group, calls):
    assert machine.set_driver("610.43.02")
    assert calls("set", group, 0, LIMIT) == NOT_SUPPORTED
    assert calls("get", group)[0] == NOT_SUPPORTED


@pytest.mark.gpus("1xA100-40GB:mig")
def test_a_gpu_in_mig_mode_has_none(machine, group, calls):
    assert calls("set", group, 0, LIMIT) == NOT_SUPPORTED


def test_the_sum_of_a_group_is_held(machine, group, calls):
    """Of all its processes and of those in groups below it; of others nothing is counted."""
    outsider = machine.client()
    assert outsider("context()") == 0 and outsider(f"alloc({2 * LIMIT})")[0] == 0
    assert calls("set", group, 0, LIMIT) == 0
    first = member(machine, group)
    below = group / "below"
    below.mkdir()
    second = member(machine, below)
    room = LIMIT - 2 * CONTEXT
    assert first(f"alloc({room + 2 * MIB})")[0] == OUT_OF_MEMORY
    code, address = first(f"alloc({room})")
    assert code == 0 and calls("get", group) == [0, 0, LIMIT, LIMIT]
    assert second(f"alloc({2 * MIB})")[0] == OUT_OF_MEMORY
    assert outsider(f"alloc({2 * LIMIT})")[0] == 0
    assert first(f"free({address})") == 0
    assert second(f"alloc({2 * MIB})")[0] == 0
    first.kill()
    assert second(f"alloc({room + CONTEXT - 2 * MIB})")[0] == 0, "what a dead process had is free"


def test_no_copy_of_the_library_gets_more(machine, group, calls, tmp_path):
    """The driver counts below its library."""
    assert calls("set", group, 0, LIMIT) == 0
    copies = tmp_path / "copies"
    copies.mkdir()
    shutil.copy(LIB / "libcuda.so.1", copies)
    client = member(machine, group, LD_LIBRARY_PATH=str(copies))
    assert client(f"alloc({LIMIT - CONTEXT + 2 * MIB})")[0] == OUT_OF_MEMORY
    assert client(f"alloc({LIMIT - CONTEXT})")[0] == 0


def test_whose_process_it_is_needs_no_proc(machine, group, calls):
    """In namespaces of its own, without the hierarchies and without /proc."""
    assert calls("set", group, 0, LIMIT) == 0
    source = f"""
import ctypes, os, sys
cu = ctypes.CDLL({str(LIB / "libcuda.so.1")!r})
open("{group}/cgroup.procs", "w").write("0")
libc = ctypes.CDLL(None)
assert libc.unshare(0x02000000 | 0x00020000) == 0
assert libc.mount(b"none", b"/", None, (1 << 18) | (1 << 14), None) == 0
assert libc.mount(b"tmpfs", b"/sys", b"tmpfs", 0, None) == 0 and libc.mount(b"tmpfs", b"/proc", b"tmpfs", 0, None) == 0
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0 and cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
print(cu.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({LIMIT})))
"""
    assert machine.run(sys.executable, "-c", source).strip() == str(OUT_OF_MEMORY)


def test_a_member_sees_its_limit_as_the_gpu(machine, group, calls):
    assert calls("set", group, 0, LIMIT) == 0
    member(machine, group)
    assert calls("memory", inside=group) == [0, LIMIT, LIMIT - CONTEXT, CONTEXT]
    assert calls("memory") == [0, TOTAL, TOTAL - CONTEXT, CONTEXT]


def test_it_outlives_who_set_it_and_goes_with_the_group(machine, group, calls):
    assert calls("set", group, 0, LIMIT) == 0
    limits = [{"group": str(group), "soft_bytes": 0, "hard_bytes": LIMIT}]
    assert [gpu["limits"] for gpu in machine.truth()] == [limits, [], []]
    group.rmdir()
    assert machine.truth()[0]["limits"] == []
    group.mkdir()
    assert calls("get", group) == [0, 0, UNLIMITED, 0], "another group of that name"


def test_more_groups_come_and_go_than_there_are_limits(machine, group):
    """The rows of removed groups are used again."""
    assert machine.run(sys.executable, "-c", MANY, group).split() == ["0"] * 600


MANY = """
import ctypes, os, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Limits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("soft", ctypes.c_uint64), ("hard", ctypes.c_uint64)]
device = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
for round in range(600):
    path = f"{sys.argv[1]}/{round}"
    os.mkdir(path)
    print(nvml.nvmlDeviceSetMemoryLimits_v1(device, ctypes.byref(Limits(path.encode(), 0, 1 << 30))))
    os.rmdir(path)
"""
