"""Fills what it has with chunks of 256 MiB through the framework named by the argument, to that framework's own error; waits, gives
two chunks back, takes two again, and works with them."""

import sys

from telling import tell, tell_and_wait

CHUNK = 256 << 20


def numba():
    import numpy
    from numba import cuda
    from numba.cuda.cudadrv.driver import CudaAPIError

    @cuda.jit
    def add_one(array):
        at = cuda.grid(1)
        if at < array.size:
            array[at] += 1

    def work(array):
        add_one[1, 32](array)
        cuda.synchronize()

    def info():
        found = cuda.current_context().get_memory_info()
        return found.free, found.total

    return lambda: cuda.device_array(CHUNK, dtype=numpy.uint8), CudaAPIError, info, work, lambda: cuda.current_context().deallocations.clear()


def bindings():
    from cuda.bindings import driver

    def need(answer):
        assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer
        return answer[1:]

    need(driver.cuInit(0))
    (context,) = need(driver.cuDevicePrimaryCtxRetain(0))
    need(driver.cuCtxSetCurrent(context))

    class Memory:
        def __init__(self):
            code, self.address = driver.cuMemAlloc(CHUNK)
            if code == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise MemoryError(str(code))
            assert code == driver.CUresult.CUDA_SUCCESS, code

        def __del__(self):
            if hasattr(self, "address") and int(self.address):
                driver.cuMemFree(self.address)

    def work(memory):
        need(driver.cuMemsetD8(memory.address, 1, CHUNK))
        need(driver.cuCtxSynchronize())

    return Memory, MemoryError, lambda: tuple(need(driver.cuMemGetInfo())), work, lambda: None


def main():
    take, error, info, work, release = {"numba": numba, "bindings": bindings}[sys.argv[1]]()
    kept, text = [], ""
    try:
        while len(kept) < 1000:
            kept.append(take())
    except error as refused:
        text = str(refused)
    free, total = info()
    tell_and_wait(granted=len(kept), text=text, free=free, total=total)
    del kept[:2]
    release()
    kept += [take(), take()]
    work(kept[-1])
    tell(granted=len(kept), free=info()[0])


main()
