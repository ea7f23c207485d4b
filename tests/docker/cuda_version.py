"""Says for which CUDA the driver is that a program finds, as cuInit and cuDriverGetVersion answer."""

import ctypes

cuda = ctypes.CDLL("libcuda.so.1")
version = ctypes.c_int()
print(cuda.cuInit(0), cuda.cuDriverGetVersion(ctypes.byref(version)) or version.value)
