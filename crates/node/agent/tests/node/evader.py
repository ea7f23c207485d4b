"""Takes GPU memory past the shim: a copy of the driver's library without a mounted filter."""
import ctypes
import sys
import time

cuda = ctypes.CDLL(sys.argv[1])
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code:
        sys.exit(f"{name}: error {code}")


call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[2]) << 20))
print("taken", flush=True)
time.sleep(600)
