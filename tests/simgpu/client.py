"""Loads libcuda.so.1 and evaluates one expression per line of stdin; answers in JSON. Used by conftest.Client."""

import ctypes
import json
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

cu = ctypes.CDLL("libcuda.so.1")


def init():
    return cu.cuInit(0)


def context(device=0, init_first=True):
    """Creates a context; its code."""
    if init_first and (code := cu.cuInit(0)):
        return code
    return cu.cuCtxCreate_v2(byref(c_void_p()), 0, device)


def alloc(size):
    """Allocates; [code, address]."""
    address = c_uint64()
    code = cu.cuMemAlloc_v2(byref(address), c_size_t(size))
    return [code, address.value]


def free(address):
    return cu.cuMemFree_v2(c_uint64(address))


def info():
    """[code, free, total]"""
    free_bytes, total = c_size_t(), c_size_t()
    return [cu.cuMemGetInfo_v2(byref(free_bytes), byref(total)), free_bytes.value, total.value]


def number(function, *arguments, kind=c_int):
    """Calls a function whose first argument is a result; [code, result]."""
    result = kind()
    return [getattr(cu, function)(byref(result), *arguments), result.value]


def in_fork(expression):
    """Evaluates in a forked child; the child's answer."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(eval(expression)).encode())
        os._exit(0)
    os.close(write)
    answer = json.loads(os.read(read, 65536))
    os.close(read)
    os.waitpid(pid, 0)
    return answer


for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
