"""The start of honest jobs: only a context on the GPU, for a while. The argument names the call that creates it."""

import sys
import time

import torch
from telling import tell


def main():
    if sys.argv[1] == "set_device":
        # As every rank of a distributed job does, before it loads its data.
        torch.cuda.set_device(0)
    else:
        # As a data loader does.
        torch.empty(1 << 20, pin_memory=True)
    time.sleep(4)
    there = torch.ones(1 << 20, device="cuda")
    tell(allocated=torch.cuda.memory_allocated(), shape=list(there.shape))


main()
