"""Several processes, each with a context and a heap of the given number of MiB; after a line on stdin, with another heap. Ends with its stdin.

many.py PROCESSES MIB_BEFORE MIB_AFTER"""

import ctypes
import subprocess
import sys

HEAP, FRESH_HEAP_MIB = 2, 8


def member():
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    for line in sys.stdin:
        assert cuda.cuCtxSetLimit(HEAP, ctypes.c_size_t((FRESH_HEAP_MIB + int(line)) << 20)) == 0
        print(flush=True)


def tell(members, mib):
    for each in members:
        print(mib, file=each.stdin, flush=True)
        assert each.stdout.readline() == "\n"


if len(sys.argv) == 1:
    member()
    sys.exit()
count, before, after = map(int, sys.argv[1:])
command, pipe = [sys.executable, __file__], subprocess.PIPE
members = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
tell(members, before)
print("ready", flush=True)
sys.stdin.readline()
tell(members, after)
print("exceeded", flush=True)
sys.stdin.read()
for each in members:
    each.stdin.close()
    assert each.wait() == 0
