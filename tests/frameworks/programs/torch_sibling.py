"""What PyTorch reports as free before, during and after another process of the same slice; the argument selects how that one ends."""

import os
import signal
import sys
import time

import torch
import torch.multiprocessing as processes
from telling import tell

GIB = 1 << 30


def hold(there, end, way):
    kept = torch.empty(6 * GIB, dtype=torch.uint8, device="cuda")
    there.set()
    end.wait()
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    del kept


def free():
    return torch.cuda.mem_get_info()[0]


def main():
    context = processes.get_context("spawn")
    there, end = context.Event(), context.Event()
    before = free()
    child = context.Process(target=hold, args=(there, end, sys.argv[1]))
    child.start()
    assert there.wait(600)
    beside = free()
    end.set()
    child.join()
    deadline = time.monotonic() + 60
    while (after := free()) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    tell(before=before, beside=beside, after=after)


if __name__ == "__main__":
    main()
