"""Every name of the real libraries exists, and cuGetProcAddress finds what a CUDA version means by it."""

import ctypes

import pytest

from conftest import DATA, LIB

NOT_SUPPORTED = {"libcuda.so.1": 801, "libnvidia-ml.so.1": 3}


def lines(name):
    return [line.split() for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    "library, names, at_least", [("libcuda.so.1", "cuda-symbols.txt", 730), ("libnvidia-ml.so.1", "nvml-symbols.txt", 350)]
)
def test_every_name_is_exported(library, names, at_least):
    loaded = ctypes.CDLL(str(LIB / library))
    wanted = [words[0] for words in lines(names)]
    assert len(wanted) >= at_least
    assert [name for name in wanted if not hasattr(loaded, name)] == []


def test_what_is_not_simulated_says_so():
    assert ctypes.CDLL(str(LIB / "libcuda.so.1")).cuGLInit() == 801
    assert ctypes.CDLL(str(LIB / "libnvidia-ml.so.1")).nvmlVgpuTypeGetClass() == 3


def addresses(machine, *queries):
    """[code, is the address that of `expected`, status] for each (base, version, flags, expected)."""
    client = machine.client()
    ask = (
        "(lambda a, s: [cu.cuGetProcAddress_v2({0!r}, byref(a), {1}, c_uint64({2}), byref(s)), s.value,"
        " a.value is not None and ({3!r} == '' or a.value == ctypes.cast(getattr(cu, {3!r} or 'cuInit'), c_void_p).value)])"
        "(c_void_p(), c_int())"
    )
    return [client(ask.format(base.encode(), version, flags, expected)) for base, version, flags, expected in queries]


def test_versions_and_stream_kinds(machine):
    assert machine.client()("init()") == 0 and machine.set_driver("550.163.01")
    found = [0, 0, True]
    cases = [
        (("cuMemAlloc", 12000, 0, "cuMemAlloc_v2"), found),
        (("cuMemAlloc", 3000, 0, "cuMemAlloc"), found),
        (("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"), found),
        (("cuCtxCreate", 11040, 0, "cuCtxCreate_v3"), found),
        (("cuCtxCreate", 13000, 0, "cuCtxCreate_v3"), found),  # of the driver, which is older
        (("cuLogsCurrent", 13000, 0, ""), [0, 1, False]),
        (("cuGetProcAddress", 11030, 0, "cuGetProcAddress"), found),
        (("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"), found),
        (("cuMemcpyHtoD", 12000, 1, "cuMemcpyHtoD_v2"), found),
        (("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"), found),
        (("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"), found),
        (("cuMemAlloc", 12000, 2, "cuMemAlloc_v2"), found),  # has no stream
        (("cuMemAllocAsync", 11010, 0, ""), [0, 2, False]),  # came with 11.2
        (("cuNothing", 12000, 0, ""), [0, 1, False]),
        (("cuMemAlloc_v2", 12000, 0, ""), [0, 1, False]),  # base names only
        (("cuMemAlloc", 12000, 4, ""), [1, 0, False]),  # no such flag
    ]
    answers = addresses(machine, *(query for query, _ in cases))
    assert answers == [answer for _, answer in cases]


def test_first_form_fails_where_the_second_reports(machine):
    client = machine.client()
    ask = "(lambda a: [cu.cuGetProcAddress({!r}, byref(a), 11030, c_uint64(0)), a.value])(c_void_p())"
    assert client(ask.format(b"cuMemAlloc"))[0] == 0
    assert client(ask.format(b"cuNothing")) == [500, None]


def test_a_newer_driver_has_newer_names(machine):
    client = machine.client()
    assert client("init()") == 0
    assert machine.set_driver("610.43.02")
    assert client("number('cuDriverGetVersion')") == [0, 13030]
    queries = [("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"), ("cuLogsCurrent", 13000, 0, "cuLogsCurrent")]
    assert addresses(machine, *queries) == [[0, 0, True], [0, 0, True]]
