"""A tensor that two processes share through CUDA's IPC, and a data loader whose workers are forked."""

import torch
import torch.multiprocessing as processes
from telling import tell, tell_and_wait

MIB = 1 << 20


def take(queue, done):
    tensor = queue.get(timeout=600)
    free, _ = torch.cuda.mem_get_info()
    done.put((tensor.numel(), free))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full((1024,), at)


def main():
    shared = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    context = processes.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    child = context.Process(target=take, args=(queue, done))
    child.start()
    queue.put(shared)
    numel, free = done.get(timeout=600)
    child.join()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=2, pin_memory=True)
    batches = sum(1 for batch in loader if batch.to("cuda", non_blocking=True).is_cuda)
    tell_and_wait(numel=numel, free=free, code=child.exitcode, batches=batches)
    tell(allocated=torch.cuda.memory_allocated())


if __name__ == "__main__":
    main()
