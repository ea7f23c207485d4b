"""Honest programs whose memory no hook sees: contexts of NVIDIA's runtime, OpenCL, video encoders. They are charged, not killed.

test_evasion.py shows that the watchdog works at all: a program that exceeds the slice in the same way is killed."""

import sys
import time

import pytest

from conftest import CONTEXT, HERE, LIMIT, MIB

# The watchdog's grace period, and more than a scan.
LONG_S = 4


class Program:
    def __init__(self, machine):
        self.running = machine.start([sys.executable, HERE / "unseen.py"])

    def __call__(self, *words):
        print(*words, file=self.running.child.stdin, flush=True)
        return self.running.record()


@pytest.fixture
def program(machine):
    program = Program(machine)
    yield program
    assert program.running.end() == 0, "it was ended"


def wait_until_used(machine, program, expected):
    deadline = time.monotonic() + 60
    while program("look")["used"] != expected:
        assert time.monotonic() < deadline, (program("look"), machine.used())
        time.sleep(0.05)


def test_only_a_context(machine, program):
    """`torch.cuda.set_device(0)`, and then work on the CPU."""
    assert program("context")["processes"] == 0, "a hook saw it: this shows nothing"
    assert machine.used() == CONTEXT
    time.sleep(LONG_S)
    wait_until_used(machine, program, CONTEXT)
    # It is charged once more as soon as a hook sees it, until the next scan.
    program("calls", "cuCtxSetCurrent")
    wait_until_used(machine, program, CONTEXT)
    assert program("fill")["granted"] == LIMIT - CONTEXT
    assert machine.used() == LIMIT


def test_memory_taken_without_cuda(machine, program):
    """OpenCL, a video encoder: as long as it is within the slice it is charged, and the slice holds for all of it."""
    program("context")
    program("take", 1024)
    time.sleep(LONG_S)
    wait_until_used(machine, program, CONTEXT + 1024 * MIB)
    program("calls", "cuCtxSetCurrent")
    wait_until_used(machine, program, CONTEXT + 1024 * MIB)
    assert program("fill")["granted"] == LIMIT - CONTEXT - 1024 * MIB
    assert machine.used() == LIMIT


@pytest.mark.parametrize(
    "call",
    [
        "cuCtxSetCurrent",
        "cuCtxPushCurrent_v2",
        "cuMemHostAlloc",
        "cuMemAllocHost_v2",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuMemAlloc_v2",
    ],
)
def test_a_call_that_finds_a_context_charges_it(machine, program, call):
    assert program("context")["processes"] == 0
    answer = program("calls", call)
    assert answer["processes"] == 1 and answer["used"] >= CONTEXT, answer
