"""Memory is counted across processes and comes back, however a process ends."""

import os
import random
import signal
import subprocess
import sys
import time

from conftest import GIB, MIB

CONTEXT = 416 * MIB


def test_truth_names_each_process(machine):
    first, second = machine.client(), machine.client()
    first("context(0)"), second("context(0)"), second("context(1)")
    first(f"alloc({GIB})")
    processes = {p["pid"]: p["used_bytes"] for p in machine.truth()[0]["processes"]}
    assert processes == {first.pid: CONTEXT + GIB, second.pid: CONTEXT}
    assert [p["pid"] for p in machine.truth()[1]["processes"]] == [second.pid]


def test_every_end_gives_memory_back(machine):
    survivor = machine.client()
    survivor("context()")
    for end in ("kill", "close"):
        client = machine.client()
        client("context()"), client(f"alloc({30 * GIB})")
        assert machine.used() == 2 * CONTEXT + 30 * GIB
        getattr(client, end)()
        # Seen by the survivor's next look and by its next allocation, not only by the witness.
        assert survivor("info()")[1] == 40 * GIB - CONTEXT
        assert survivor(f"free(alloc({39 * GIB})[1])") == 0
        assert machine.used() == CONTEXT


def test_allocation_alone_notices_a_death(machine):
    survivor, client = machine.client(), machine.client()
    survivor("context()"), client("context()"), client(f"alloc({30 * GIB})")
    client.kill()
    assert survivor(f"alloc({39 * GIB})")[0] == 0


def test_closed_descriptors_lose_nothing(machine):
    """Daemons close what they did not open."""
    client = machine.client()
    client("context()"), client(f"alloc({GIB})")
    assert client("os.closerange(3, 1 << 16)") is None
    assert client("len(os.listdir('/proc/self/fd'))") == 4, "something is open in addition to the three of the client and this check"
    assert machine.used() == CONTEXT + GIB
    assert machine.client()(f"context() or alloc({39 * GIB})[0]") == 2, "its memory was given to another"
    assert client(f"alloc({GIB})")[0] == 0 and machine.used() == 2 * CONTEXT + 2 * GIB
    client.kill()
    assert machine.used() == CONTEXT, "what is left is the other process's context"


def test_exec_gives_memory_back(machine):
    client = machine.client()
    client("context()"), client(f"alloc({GIB})")
    client.process.stdin.write("os.execvp('sleep', ['sleep', '600'])\n")
    client.process.stdin.flush()
    deadline = time.monotonic() + 60
    while machine.used() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.process.poll() is None and machine.used() == 0


def test_a_forked_child_has_no_context_and_touches_nothing(machine):
    client = machine.client()
    client("context()")
    _, address = client(f"alloc({GIB})")
    assert client("in_fork('[init(), alloc(1)[0], info()[0]]')") == [3, 3, 3]
    assert client(f"in_fork('free({address})')") == 3
    assert machine.used() == CONTEXT + GIB
    assert client(f"free({address})") == 0


def test_a_child_forked_before_init_is_a_process_of_its_own(machine):
    client = machine.client()
    assert client("in_fork('[context(), alloc(1 << 30)[0]]')") == [0, 0]
    assert machine.used() == 0


def test_threads_share_one_account(machine):
    client = machine.client()
    client("context()")
    current = client("number('cuCtxGetCurrent', kind=c_void_p)")[1]
    work = (
        "(lambda t, work: ([threads.append(t.Thread(target=work)) or threads[-1].start() for _ in range(16)],"
        " [thread.join() for thread in threads], len(set(kept)))[-1])"
        f"(__import__('threading'), lambda: (cu.cuCtxSetCurrent(c_void_p({current})),"
        " [free(alloc(1 + i * 12345)[1]) for i in range(200)], kept.append(alloc(3 << 20)[1])))"
    )
    client("globals().update(threads=[], kept=[])")
    assert client(work) == 16
    assert machine.used() == CONTEXT + 16 * 4 * MIB


def test_random_kills_leave_nothing(machine):
    """Eight processes allocate and free as fast as they can and are killed at random instants."""
    loop = (
        "import ctypes,random;cu=ctypes.CDLL('libcuda.so.1');cu.cuInit(0);"
        "cu.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()),0,0)\n"
        "while 1:\n"
        " p=[ctypes.c_uint64() for _ in range(9)]\n"
        " for a in p: cu.cuMemAlloc_v2(ctypes.byref(a),ctypes.c_size_t(random.randrange(1,9<<20)))\n"
        " for a in p: cu.cuMemFree_v2(a)\n"
    )
    start = lambda: subprocess.Popen([sys.executable, "-c", loop], env=machine.env)  # noqa: E731
    seed = int(os.environ.get("CANTLE_TEST_SEED", "1"))
    choose = random.Random(seed)
    machine.client()("init()")  # there is a machine to look at from the first kill on
    running = [start() for _ in range(8)]
    for _ in range(int(os.environ.get("CANTLE_TEST_KILLS", "60"))):
        time.sleep(choose.uniform(0, 0.03))
        victim = choose.randrange(8)
        running[victim].send_signal(signal.SIGKILL)
        running[victim].wait()
        running[victim] = start()
        gpu = machine.truth()[0]
        assert gpu["used_bytes"] == sum(p["used_bytes"] for p in gpu["processes"]), f"seed {seed}"
    for process in running:
        process.kill()
        process.wait()
    assert machine.used() == 0, f"seed {seed}"
