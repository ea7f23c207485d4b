"""CuPy with the pool that the argument names, up to a part of the memory if there is another: takes chunks of 256 MiB to its own OutOfMemoryError; waits, gives four back, takes one
again and works with it, through a kernel that NVRTC compiles."""

import sys

import cupy
from telling import tell, tell_and_wait

CHUNK = 256 << 20


def main():
    pools = {
        "default": cupy.cuda.MemoryPool,
        "async": cupy.cuda.MemoryAsyncPool,
        "managed": lambda: cupy.cuda.MemoryPool(cupy.cuda.malloc_managed),
    }
    pool = pools[sys.argv[1]]()
    if len(sys.argv) > 2:
        pool.set_limit(fraction=float(sys.argv[2]))
    cupy.cuda.set_allocator(pool.malloc)
    kept, text = [], ""
    try:
        while len(kept) < 1000:
            kept.append(cupy.empty(CHUNK, cupy.uint8))
    except cupy.cuda.memory.OutOfMemoryError as error:
        text = str(error)
    free, total = cupy.cuda.runtime.memGetInfo()
    tell_and_wait(granted=len(kept), text=text, free=free, total=total)
    del kept[:4]
    pool.free_all_blocks()
    kept.append(cupy.empty(CHUNK, cupy.uint8))
    kept[-1] += 1
    cupy.cuda.runtime.deviceSynchronize()
    tell(granted=len(kept))


main()
