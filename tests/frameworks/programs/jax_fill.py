"""JAX on its GPU plugin: puts chunks of 256 MiB there to its own RESOURCE_EXHAUSTED error; waits, gives four back, and puts one again."""

import jax
import numpy
from telling import tell, tell_and_wait

CHUNK = numpy.zeros(256 << 20, numpy.uint8)


def put(device):
    array = jax.device_put(CHUNK, device)
    array.block_until_ready()
    return array


def main():
    (device,) = jax.devices("gpu")
    kept, text = [], ""
    try:
        while len(kept) < 1000:
            kept.append(put(device))
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
    pool = device.memory_stats() or {}
    tell_and_wait(granted=len(kept), text=text, pool=pool.get("bytes_limit"), in_use=pool.get("bytes_in_use"))
    del kept[:4]
    kept.append(put(device))
    tell(granted=len(kept))


main()
