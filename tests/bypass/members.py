"""Processes of one slice that come and go: members.py SCRIPT LIMIT_BYTES. Those that are left at the end fill the slice, one after the other;
what they got is printed as fill.h does it. The first is refused, as the slice is full; so must be all others.

The scripts are those in which an accounting is lost that closes the gap of a process that is gone by moving another.
"""

import ctypes
import itertools
import json
import subprocess
import sys

CHUNK = 64 << 20


class Member:
    """A process with a context and one chunk."""

    def __init__(self, limit):
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([sys.executable, __file__, "member", limit], stdin=pipe, stdout=pipe, text=True)
        self.state = self.answer()

    def answer(self):
        return json.loads(self.child.stdout.readline())

    def fill(self):
        """Takes memory until that is refused, or twice the limit."""
        print("fill", file=self.child.stdin, flush=True)
        self.state = self.answer()

    def exit(self):
        self.child.communicate()

    def kill(self):
        self.child.kill()
        self.child.wait()


def an_exit_and_a_refusal(new):
    first, second, third = new(), new(), new()
    first.exit()
    return [second, third]


def two_exits_and_a_start(new):
    first, second, third = new(), new(), new()
    first.exit(), second.exit()
    return [third, new()]


def two_kills_and_a_start(new):
    first, second, third = new(), new(), new()
    first.kill(), second.kill()
    return [third, new()]


def member(limit):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer, free, total = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.c_size_t()
    for status in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
        assert status == 0, f"CUDA error {status}"
    granted = refused = 0
    # The first chunk at once, the others when asked.
    for most in itertools.chain([CHUNK], (2 * limit for _ in sys.stdin)):
        while not refused and granted < most:
            refused = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(CHUNK))
            granted += 0 if refused else CHUNK
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        print(json.dumps({"granted": granted, "refused": refused, "free": free.value, "total": total.value}), flush=True)


def main(script, limit):
    living = globals()[script](lambda: Member(limit))
    for one in living:
        one.fill()
    granted = sum(one.state["granted"] for one in living)
    refused = min(one.state["refused"] for one in living)
    print(json.dumps({**living[-1].state, "granted": granted, "refused": refused}), flush=True)
    sys.stdin.read()
    for one in living:
        one.exit()


if sys.argv[1] == "member":
    member(int(sys.argv[2]))
else:
    main(*sys.argv[1:])
