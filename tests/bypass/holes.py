"""Takes memory until one slab has room for small memory in two pieces, of 700 KiB and 648 KiB, and the rest of the slice is in use: all of it (`full`) or
all but 2 MiB (`spare`). Then it asks for 1 MiB until its input has a line, and prints how often it got that: holes.py full|spare.
"""

import ctypes
import json
import select
import sys

KIB, MIB = 1 << 10, 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()


def take(size):
    """The address, or None if it is refused."""
    pointer = ctypes.c_ulonglong()
    return None if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) else pointer


assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
chunks = list(iter(lambda: take(2 * MIB), None))
for _ in range(2):
    cuda.cuMemFree_v2(chunks.pop())
first, second = take(700 * KIB), take(700 * KIB)
cuda.cuMemFree_v2(first)
if sys.argv[1] == "full":
    assert take(2 * MIB)
print(json.dumps({"address": second.value}), flush=True)
given = asked = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    asked += 1
    if pointer := take(MIB):
        given += 1
        cuda.cuMemFree_v2(pointer)
print(json.dumps({"asked": asked, "given": given}), flush=True)
