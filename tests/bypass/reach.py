"""Tries to reach what is not its own, as root in a task: reach.py WAY [PID]. Prints {"refused": WHY} or {"done": WHAT}."""

import ctypes
import errno
import json
import os
import signal
import stat
import sys
import tempfile

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
PTRACE_SEIZE = 0x4206
SYSCALL = {"bpf": 321, "init_module": 175, "kexec_load": 246, "open_by_handle_at": 304, "swapoff": 168, "pidfd_open": 434}


def must(status):
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return status


def system_call(name, *args):
    must(LIBC.syscall(SYSCALL[name], *args))


def write(path):
    """Opens it for writing; what is there is not changed."""
    os.close(os.open(path, os.O_WRONLY))


def device():
    with tempfile.TemporaryDirectory() as folder:
        os.mknod(f"{folder}/gpu", stat.S_IFCHR | 0o666, os.makedev(195, 0))


def groups(name):
    """This file of each hierarchy of control groups. In a task there is none of them."""
    mounts = [line.split() for line in open("/proc/self/mountinfo")]
    found = [os.path.join(mount[4], name) for mount in mounts if mount[mount.index("-") + 1] in ("cgroup", "cgroup2")]
    found = [path for path in found if os.path.exists(path)]
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return found


def leave_group():
    for path in groups("cgroup.procs"):
        with open(path, "w") as group:
            group.write("0")


def release_agent():
    for path in groups("release_agent"):
        write(path)


def own_proc():
    """A /proc of its own, in namespaces of its own, with processes that are not the task's."""
    must(LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    with tempfile.TemporaryDirectory() as folder:
        must(LIBC.mount(b"proc", folder.encode(), b"proc", 0, None))
        os.stat(f"{folder}/{sys.argv[2]}")


def uncover_proc():
    must(LIBC.umount2(b"/proc", 2))


def enter_namespace():
    must(LIBC.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))


WAYS = {
    "signal": lambda: os.kill(int(sys.argv[2]), 0),
    "trace": lambda: must(LIBC.ptrace(PTRACE_SEIZE, int(sys.argv[2]), 0, 0)),
    "pidfd": lambda: system_call("pidfd_open", int(sys.argv[2]), 0),
    "root_of_other": lambda: os.listdir(f"/proc/{sys.argv[2]}/root"),
    "kill_all": lambda: os.kill(-1, signal.SIGTERM),
    "trace_first": lambda: must(LIBC.ptrace(PTRACE_SEIZE, 1, 0, 0)),
    "root_of_first": lambda: os.listdir("/proc/1/root"),
    "files_of_first": lambda: [os.readlink(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")],
    "enter_namespace": enter_namespace,
    "leave_group": leave_group,
    "own_proc": own_proc,
    "uncover_proc": uncover_proc,
    "device": device,
    "core_pattern": lambda: write("/proc/sys/kernel/core_pattern"),
    "sysrq": lambda: write("/proc/sysrq-trigger"),
    "release_agent": release_agent,
    "uevent_helper": lambda: write("/sys/kernel/uevent_helper"),
    "kernel_module": lambda: system_call("init_module", 0, 0, 0),
    "kexec": lambda: system_call("kexec_load", 0, 0, 0, 0),
    "bpf": lambda: system_call("bpf", 5, 0, 0),
    "file_by_handle": lambda: system_call("open_by_handle_at", -100, (ctypes.c_uint32 * 4)(8, 1, 0, 0), 0),
    "swapoff": lambda: system_call("swapoff", b"/nowhere"),
}

try:
    WAYS[sys.argv[1]]()
    print(json.dumps({"done": sys.argv[1]}))
except OSError as error:
    print(json.dumps({"refused": str(error)}))
