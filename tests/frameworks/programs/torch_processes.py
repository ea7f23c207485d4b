"""As many processes as the argument says, which fill one slice at the same time, each to its own OutOfMemoryError, and go on."""

import sys

import torch
import torch.multiprocessing as processes
from telling import tell, tell_and_wait

MIB = 1 << 20


def fill(full, all_there, go_on):
    kept = [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")]
    # A process that comes to a full GPU gets no context.
    all_there.wait()
    try:
        while len(kept) < 1000:
            kept.append(torch.empty(256 * MIB, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        full.put((len(kept), str(error)))
        go_on.wait()
        # A job frees some memory and continues.
        del kept[:2]
        torch.cuda.empty_cache()
        again = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        full.put((len(kept) + 1, str(again.numel())))


def main():
    context = processes.get_context("spawn")
    count = int(sys.argv[1])
    full, all_there, go_on = context.Queue(), context.Barrier(count), context.Event()
    children = [context.Process(target=fill, args=(full, all_there, go_on)) for _ in range(count)]
    for child in children:
        child.start()
    results = [full.get(timeout=600) for _ in children]
    tell_and_wait(granted=sum(count for count, _ in results), texts=[text for _, text in results])
    go_on.set()
    after = [full.get(timeout=600)[0] for _ in children]
    for child in children:
        child.join()
    tell(after=after, codes=[child.exitcode for child in children])


if __name__ == "__main__":
    main()
