"""Holds a context and some MiB of GPU memory: holder.py MIB [COMMAND…] runs the command meanwhile, or waits for the end of stdin."""

import ctypes
import subprocess
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
for status in (
    cuda.cuInit(0),
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]) << 20)),
):
    assert status == 0, f"CUDA error {status}"
if sys.argv[2:]:
    sys.exit(subprocess.run(sys.argv[2:]).returncode)
print("holding", flush=True)
sys.stdin.read()
