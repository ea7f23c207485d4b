"""Tries to have more than its slice: evade.py WAY COPY BYTES [WORD…], with COPY a private copy of the driver's library.

Prints one line as soon as it has the memory ({"granted": BYTES}), or when what it tried was refused ({"prevented": WHY}); stays
until its input ends.
"""

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
import time

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
# The outsider's user.
USER = 65534
# Deeper than a search through ancestors goes.
DEEP = 70
LIBC = ctypes.CDLL(None, use_errno=True)
# Loads what the driver needs now: later it is not found.
ctypes.CDLL("libgcc_s.so.1")
way, copy, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
words = sys.argv[4:]


def say(**what):
    print(json.dumps(what), flush=True)


def prevented(why):
    say(prevented=str(why))
    sys.stdin.read()
    os._exit(0)


def must(status):
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def take(library, size):
    """So much memory, in a context of its own of this library."""
    cuda = ctypes.CDLL(library)
    context, pointer = ctypes.c_void_p(), ctypes.c_ulonglong()
    for status in (
        cuda.cuInit(0),
        cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
        cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)),
    ):
        if status:
            prevented(f"CUDA error {status}")
    return lambda: cuda.cuMemFree_v2(pointer)


def hold():
    take(copy, wanted)
    say(granted=wanted)
    # Not for the end of its input: an orphan would end with its parents. Longer than a watchdog may need on a busy machine.
    time.sleep(300)
    os._exit(0)


def deep():
    """A chain of processes, of which only the last does something."""
    for _ in range(DEEP):
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def orphan():
    """Its parent ends before it begins; the one before that stays, because the task ends with its first process."""
    if os.fork():
        time.sleep(300)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.3)


def jail():
    """A root directory in which nothing of cantle's is."""
    global copy
    root = os.path.dirname(copy)
    os.chroot(root)
    os.chdir("/")
    copy = "/" + os.path.basename(copy)


def own_mounts():
    """An ordinary user with mounts of his own, which hide what cantle has put there."""
    must(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    must(LIBC.mount(b"tmpfs", b"/run/cantle", b"tmpfs", 0, None))


def outside():
    """The root directory of the machine, from a process outside or an accomplice."""
    if words[0] == "proc":
        # A process that has another one's user and privileges can inspect it without a capability.
        LIBC.setfsuid(USER)
        root = os.open(f"/proc/{words[1]}/root", os.O_RDONLY | os.O_DIRECTORY)
        LIBC.setfsuid(0)
        return root
    with socket.socket(socket.AF_UNIX) as accomplice:
        accomplice.connect(words[1])
        _, (root,), _, _ = socket.recv_fds(accomplice, 1, 1)
    return root


def go_outside():
    os.fchdir(outside())
    os.chroot(".")


def write_limits():
    """Raises its own limit, wherever it finds the file."""
    root = outside()
    path = f"run/cantle/node/slices/{os.environ['CANTLE_SLICE']}/limits"
    with open(os.open(path, os.O_RDWR, dir_fd=root), "r+b") as limits:
        before = limits.read()
        limits.seek(0)
        # Each figure of as many bytes as the slice has becomes ten times that.
        size = int(words[2])
        limits.write(before.replace(size.to_bytes(8, "little"), (10 * size).to_bytes(8, "little")))
    global copy
    copy = "libcuda.so.1"


def write_neighbor():
    """Shortens the accounting of another task."""
    os.truncate(f"/proc/{words[1]}/root/run/cantle/slice/usage", 0)
    say(granted=0)
    sys.stdin.read()


def bursts():
    """Never for long."""
    for number in range(375):
        give_back = take(copy, wanted)
        if not number:
            say(granted=wanted)
        time.sleep(0.4)
        give_back()
        time.sleep(0.4)
    os._exit(0)


def copies():
    """Four drivers in one process, each with a quarter: none has more than the slice."""
    keep = []
    for number in range(4):
        own = shutil.copy(copy, f"{copy}.{number}")
        keep.append(take(own, wanted // 4))
    say(granted=wanted)
    time.sleep(300)
    os._exit(0)


def memfd():
    global copy
    with open(copy, "rb") as library:
        descriptor = os.memfd_create("library")
        os.write(descriptor, library.read())
    copy = f"/proc/self/fd/{descriptor}"


def trace():
    PTRACE_SEIZE = 0x4206
    must(LIBC.ptrace(PTRACE_SEIZE, int(words[1]), 0, 0))
    say(granted=0)
    sys.stdin.read()


def signals():
    os.kill(int(words[1]), signal.SIGKILL)
    say(granted=0)
    sys.stdin.read()


def other_cgroup():
    """Leaves the group that the kernel counts it to."""
    for line in open("/proc/self/mountinfo"):
        kind, where = line.split(" - ")[1].split()[0], line.split()[4]
        if kind in ("cgroup", "cgroup2"):
            try:
                with open(os.path.join(where, "cgroup.procs"), "w") as group:
                    group.write("0")
            except OSError:
                pass


def into_group():
    """A child that is born into another task's group: no mount of it matters to the kernel, nor whether that is read-only."""
    root = outside() if words[0] == "unix" else os.open("/", os.O_RDONLY)
    group = os.open(words[2].lstrip("/"), os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
    SYS_CLONE3, CLONE_INTO_CGROUP = 435, 0x200000000
    args = struct.pack("11Q", CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group)
    child = LIBC.syscall(SYS_CLONE3, args, len(args))
    must(ctypes.get_errno() if child < 0 else 0)
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def lease():
    """Whoever opens a file with a lease waits for 45 seconds, unless it is not to be given."""
    F_RDLCK = 0
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    for name in ("limits", "usage"):
        fcntl.fcntl(os.open(f"/run/cantle/slice/{name}", os.O_RDONLY), fcntl.F_SETLEASE, F_RDLCK)


def grow():
    """Fills the node's memory through its own accounting."""
    usage = os.open("/run/cantle/slice/usage", os.O_WRONLY)
    say(granted=0)
    for _ in range(3000):
        os.pwrite(usage, bytes(1 << 20), 8 << 20)
        time.sleep(0.02)


def umount_all():
    for line in reversed(open("/proc/self/mountinfo").readlines()):
        LIBC.umount2(line.split()[4].encode(), 2)


def nameless():
    """A name that is no text; its children inherit it."""
    PR_SET_NAME = 15
    must(LIBC.prctl(PR_SET_NAME, b"\xff) R 1", 0, 0, 0))


def when_told():
    say(waiting=True)
    sys.stdin.readline()


def watched():
    """Goes on when the watchdog has looked: then a little that the hooks have not seen is charged to the slice."""
    cuda, context, free, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    must(cuda.cuInit(0) or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) or cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    before = free.value
    take(copy, 64 << 20)
    while free.value > before - (64 << 20):
        time.sleep(0.05)
        must(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))


STEPS = {
    "when_told": [when_told],
    "watched_when_told": [watched, when_told],
    "copies": [copies],
    "memfd": [memfd],
    "chroot": [jail],
    "deep": [deep],
    "nameless_deep_chroot": [nameless, deep, jail],
    "deep_chroot": [deep, jail],
    "orphan": [orphan],
    "orphan_chroot": [orphan, jail],
    "own_mounts": [own_mounts],
    "own_mounts_deep": [own_mounts, deep],
    "outside": [go_outside],
    "outside_deep": [go_outside, deep],
    "own_limits": [write_limits],
    "neighbors_usage": [write_neighbor],
    "bursts": [bursts],
    "kill_parent": [lambda: os.kill(os.getppid(), signal.SIGKILL)],
    "stop_parent": [lambda: os.kill(os.getppid(), signal.SIGSTOP)],
    "signal": [signals],
    "trace": [trace],
    "other_cgroup_deep_chroot": [other_cgroup, deep, jail],
    "umount_deep": [umount_all, deep],
    "into_group": [into_group],
    "lease": [lease],
    "grow": [grow],
}

try:
    for step in STEPS[way]:
        step()
except OSError as error:
    prevented(error)
hold()
