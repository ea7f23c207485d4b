"""Two ranks of DistributedDataParallel in one slice, over the backend named by the argument: three steps, then each fills the slice."""

import sys
import tempfile

import torch
import torch.distributed as ranks
import torch.multiprocessing as processes
from telling import tell, tell_and_wait

CHUNK = 256 << 20
ELEMENTS = 16 << 20


class Scale(torch.nn.Module):
    """Needs no library that has a runtime of its own."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(ELEMENTS))

    def forward(self, batch):
        return (self.factor * batch).sum()


def train(rank, backend, meeting):
    torch.cuda.set_device(0)
    ranks.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=2)
    # The ranks would compare the shapes of their parameters, on a GPU whose memory holds no data.
    model = torch.nn.parallel.DistributedDataParallel(Scale().cuda(), device_ids=[0], init_sync=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.empty(ELEMENTS, device="cuda")).backward()
        optimizer.step()
    torch.cuda.synchronize()


def fill(rank, backend, meeting, full, go_on):
    try:
        train(rank, backend, meeting)
        kept = []
        try:
            while len(kept) < 1000:
                kept.append(torch.empty(CHUNK, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            full.put((len(kept), str(error)))
        go_on.wait()
        kept.clear()
        ranks.barrier()
    except RuntimeError as error:
        full.put((0, str(error)))
        raise


def main():
    context = processes.get_context("spawn")
    full, go_on = context.Queue(), context.Event()
    with tempfile.TemporaryDirectory() as folder:
        words = sys.argv[1], f"{folder}/meeting", full, go_on
        children = [context.Process(target=fill, args=(rank, *words)) for rank in range(2)]
        for child in children:
            child.start()
        results = [full.get(timeout=600) for _ in children]
        tell_and_wait(granted=sum(count for count, _ in results), texts=[text for _, text in results])
        go_on.set()
        for child in children:
            child.join()
    tell(codes=[child.exitcode for child in children])


if __name__ == "__main__":
    main()
