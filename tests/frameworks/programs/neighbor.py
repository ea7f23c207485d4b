"""Half of a card by the driver API alone: takes all it can get, and says twice what it sees."""

import ctypes

from telling import tell, tell_and_wait

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def need(name, *args):
    code = getattr(cuda, name)(*args)
    assert code == 0, f"{name}: {code}"


def take(size_bytes):
    pointer = ctypes.c_uint64()
    return cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes)), pointer


def seen(granted):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    need("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {"granted": granted, "free": free.value, "total": total.value}


def main():
    context = ctypes.c_void_p()
    need("cuInit", 0)
    need("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    need("cuCtxSetCurrent", context)
    taken = []
    for size in (256 * MIB, 2 * MIB):
        while (got := take(size))[0] == 0:
            taken.append(got[1])
    tell_and_wait(**seen(len(taken)))
    # Memory that it frees is available again.
    for pointer in taken[:8]:
        need("cuMemFree_v2", pointer)
    again = sum(take(256 * MIB)[0] == 0 for _ in range(8))
    tell(**seen(len(taken) - 8 + again))


main()
