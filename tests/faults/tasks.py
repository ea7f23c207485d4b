"""Takes the GPU memory that words on stdin request, one answer each.

`take MIB`: allocates, prints CUDA's code. `free`: frees what was taken last. `churn`: takes and frees forever. `fork`: a child that
tries to take memory, prints its code. `eat MIB`: main memory. With `bomb N` on the command line: that many children."""

import ctypes
import os
import sys


def bomb(count):
    """Children that open the driver and stay until a line comes; prints how many got which code."""
    answers, say = os.pipe()
    wait, go = os.pipe()
    for _ in range(count):
        if os.fork() == 0:
            os.close(go)
            code = cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
            os.write(say, b"%3d\n" % code)
            os.read(wait, 1)
            os._exit(0)
    codes = sorted(int(os.read(answers, 4)) for _ in range(count))
    print(*[f"{code}:{codes.count(code)}" for code in dict.fromkeys(codes)], flush=True)
    sys.stdin.readline()
    os.close(go)
    sys.exit()


cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
if sys.argv[1:2] == ["bomb"]:
    bomb(int(sys.argv[2]))
code = cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
taken = []


def take(mib):
    pointer = ctypes.c_ulonglong()
    code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
    if code == 0:
        taken.append(pointer)
    return code


def in_child(run):
    child = os.fork()
    if child == 0:
        os._exit(run())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


print(f"pid {os.getpid()} code {code}", flush=True)
for line in sys.stdin:
    word, *number = line.split()
    if word == "take":
        print(take(int(number[0])), flush=True)
    elif word == "free":
        print(cuda.cuMemFree_v2(taken.pop()), flush=True)
    elif word == "fork":
        print(in_child(lambda: take(64)), flush=True)
    elif word == "eat":
        block = bytearray(os.urandom(1)) * (int(number[0]) << 20)
        print(len(block), flush=True)
    elif word == "churn":
        print("churning", flush=True)
        while True:
            if take(64) == 0:
                cuda.cuMemFree_v2(taken.pop())
