"""Tries what is not the slice's: rights.py nvml|locations|restore, and prints the answers."""

import ctypes
import json
import sys

cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")


def setters(names):
    """Changes a GPU, or the limits of a group of processes."""
    device, pending = ctypes.c_void_p(), ctypes.c_int()
    limits = (ctypes.c_uint64 * 3)(ctypes.cast(b"/sys/fs/cgroup", ctypes.c_void_p).value, 0, 1 << 20)
    assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    # Enough for each of them: what they get is of no use to any but the two below.
    answers = {name: getattr(nvml, name)(device, None, None, None) for name in names}
    answers["nvmlDeviceSetMemoryLimits_v1"] = nvml.nvmlDeviceSetMemoryLimits_v1(device, ctypes.byref(limits))
    answers["nvmlDeviceSetMigMode"] = nvml.nvmlDeviceSetMigMode(device, 1, ctypes.byref(pending))
    return answers


class Properties(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("type", "handle_types", "location", "id")] + [("rest", ctypes.c_uint64 * 2)]


def created_in(kind):
    handle, properties = ctypes.c_ulonglong(), Properties(1, 0, kind, 0)
    return cuda.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(2 << 20), ctypes.byref(properties), ctypes.c_uint64(0))


def restored_on(old, new):
    """The answer to a process that resumes on another GPU."""
    pair = (ctypes.c_char * 32).from_buffer_copy(old + new)
    arguments = (ctypes.c_uint64 * 8)(ctypes.addressof(pair), 1)
    return cuda.cuCheckpointProcessRestore(1, ctypes.byref(arguments))


def restores():
    own, foreign = ctypes.create_string_buffer(16), bytes(range(16))
    assert cuda.cuDeviceGetUuid_v2(own, 0) == 0
    own = own.raw
    pairs = {"none": None, "same": (own, own), "into": (foreign, own), "out": (own, foreign), "foreign": (foreign, foreign)}
    return {name: restored_on(*pair) if pair else cuda.cuCheckpointProcessRestore(1, None) for name, pair in pairs.items()}


assert cuda.cuInit(0) == 0
match sys.argv[1]:
    case "nvml":
        answers = setters(sys.argv[2:])
    case "locations":
        context = ctypes.c_void_p()
        assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
        answers = {kind: created_in(kind) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 99, -1)}
    case "restore":
        answers = restores()
print(json.dumps(answers), flush=True)
