"""The stand-in for the CUDA runtime: what programs of CUDA 12 and 13 get from it."""

import ctypes
import json
import textwrap

import pytest

from conftest import GIB, LIB, MIB

PRELUDE = """
import ctypes, json, os
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
rt = ctypes.CDLL("libcudart.so.{major}")
for name in ("cudaGetErrorName", "cudaGetErrorString"):
    getattr(rt, name).restype = ctypes.c_char_p
def number(function, *arguments, kind=c_int):
    value = kind()
    return [getattr(rt, function)(byref(value), *arguments), value.value]
"""


@pytest.fixture
def run(machine, python):
    """Runs lines of Python with the runtime of a CUDA version, on a driver of that age, and gives what they print."""

    def run(lines, major=13, driver=None):
        client = machine.client()
        assert client("init()") == 0
        client.close()
        set_driver = ctypes.CDLL(str(LIB / "libcuda.so.1")).cantle_sim_set_driver
        assert set_driver(machine.env["CANTLE_SIM_DIR"].encode(), (driver or "615.10").encode()) == 0
        return json.loads(machine.run(python, "-c", PRELUDE.replace("{major}", str(major)) + textwrap.dedent(lines)))

    return run


@pytest.mark.parametrize("major, version", [(12, 12090), (13, 13020)])
def test_versions_and_devices(run, major, version):
    lines = "print(json.dumps([number('cudaRuntimeGetVersion'), number('cudaDriverGetVersion'), number('cudaGetDeviceCount')]))"
    assert run(lines, major) == [[0, version], [0, 13040], [0, 3]]


def test_a_driver_that_is_too_old_is_refused(run):
    lines = """
        count, last = number("cudaGetDeviceCount")[0], rt.cudaPeekAtLastError()
        print(json.dumps([count, last, rt.cudaGetErrorString(35).decode(), rt.cudaGetLastError(), rt.cudaGetLastError()]))
    """
    text = "CUDA driver version is insufficient for CUDA runtime version"
    assert run(lines, 13, driver="550.163.01") == [35, 35, text, 35, 0]
    assert run("print(json.dumps(number('cudaGetDeviceCount')))", 12, driver="550.163.01") == [0, 3]


# Size and offsets in the headers' cudaDeviceProp: total memory, major, multiprocessors, L2, threads per multiprocessor, shared memory with
# opt-in, clusters.
LAYOUTS = [
    (12, "cudaGetDeviceProperties_v2", [1032, 288, 360, 388, 616, 624, 696, 772]),
    (13, "cudaGetDeviceProperties", [1008, 288, 360, 384, 596, 604, 672, 748]),
]


@pytest.mark.parametrize("major, function, offsets", LAYOUTS)
def test_properties_have_the_layout_of_the_headers(run, major, function, offsets):
    size, *places = offsets
    lines = f"""
        whole = ctypes.create_string_buffer(b"?" * 2000, 2000)
        code = rt.{function}(whole, 1)
        number = lambda at, size: int.from_bytes(whole.raw[at : at + size], "little")
        found = [number(at, size) for at, size in zip({places}, [8, 4, 4, 4, 4, 8, 4])]
        print(json.dumps([code, whole.value.decode(), found, whole.raw[{size} - 1], chr(whole.raw[{size}])]))
    """
    known = [40960 * MIB, 8, 108, 40 * MIB, 2048, 163 << 10, 0]
    assert run(lines, major) == [0, "NVIDIA A100-SXM4-40GB", known, 0, "?"]


def test_memory_and_errors(machine, run):
    lines = f"""
        take = lambda size: number("cudaMalloc", c_size_t(size), kind=c_uint64)
        first, nothing, too_much = take({GIB}), take(0), take({1 << 40})
        free, total = c_size_t(), c_size_t()
        info = rt.cudaMemGetInfo(byref(free), byref(total))
        out = [first[0], nothing, too_much[0], rt.cudaGetErrorName(rt.cudaGetLastError()).decode()]
        out += [info, total.value - free.value, rt.cudaFree(c_uint64(first[1])), rt.cudaFree(c_uint64(12345))]
        print(json.dumps(out))
    """
    context = 416 * MIB
    assert run(lines) == [0, [0, 0], 2, "cudaErrorMemoryAllocation", 0, GIB + context, 0, 1]
    assert machine.used() == 0


def test_a_reset_device_is_used_again(run):
    lines = """
        take = lambda: number("cudaMalloc", c_size_t(1 << 30), kind=c_uint64)[0]
        used = lambda: (lambda f, t: [rt.cudaMemGetInfo(byref(f), byref(t)), (t.value - f.value) >> 20])(c_size_t(), c_size_t())
        print(json.dumps([take(), used(), rt.cudaDeviceReset(), used(), take(), rt.cudaSetDevice(2), number("cudaGetDevice"), rt.cudaSetDevice(3)]))
    """
    assert run(lines) == [0, [0, 1440], 0, [0, 416], 0, 0, [0, 2], 101]


def test_registered_kernels_are_launched_and_unknown_ones_are_not(run):
    lines = """
        rt.__dict__["register"] = getattr(rt, "__cudaRegisterFatBinary")
        rt.register.restype = c_void_p
        wrapper = (c_uint64 * 3)(0x466243B1, ctypes.addressof(ctypes.create_string_buffer(64)), 0)
        handle = c_void_p(rt.register(wrapper))
        class Dim3(ctypes.Structure):
            _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]
        kernel = c_void_p(0x1000)
        known = getattr(rt, "__cudaRegisterFunction")(handle, kernel, None, b"add", -1, None, None, None, None, None)
        launch = lambda what: rt.cudaLaunchKernel(what, Dim3(1, 1, 1), Dim3(32, 1, 1), None, c_size_t(0), None)
        blocks = number("cudaOccupancyMaxActiveBlocksPerMultiprocessor", kernel, 1024, c_size_t(0))
        print(json.dumps([known, launch(kernel), launch(None), blocks]))
    """
    assert run(lines) == [0, 0, 98, [0, 2]]


def test_a_forked_child_has_no_device(run):
    lines = """
        rt.cudaFree(None)
        child = os.fork()
        if child == 0:
            os._exit(rt.cudaFree(None))
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), rt.cudaFree(None)]))
    """
    assert run(lines) == [3, 0]
