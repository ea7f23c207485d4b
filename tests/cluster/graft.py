"""`graft.py FROM TO`: what is mounted in the mount namespace of process FROM and not in that of process TO is mounted there too, and
its places are printed. So a machine gets GPUs while its programs run on."""

import ctypes
import os
import pathlib
import sys

# The same on all architectures.
OPEN_TREE, MOVE_MOUNT = 428, 429
OPEN_TREE_CLONE, AT_RECURSIVE, MOVE_MOUNT_F_EMPTY_PATH, AT_FDCWD = 1, 0x8000, 4, -100
libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def enter(pid):
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        checked(libc.setns(namespace.fileno(), 0))


def mounts(pid):
    """What is mounted: file system, directory in it, and mount point."""
    lines = pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [tuple(line.split()[2:5]) for line in lines]


def main(source, target):
    there = set(mounts(target))
    new = [place for *what, place in mounts(source) if (*what, place) not in there]
    tops = sorted({place for place in new if not any(place.startswith(f"{other}/") for other in new)})
    enter(source)
    flags = OPEN_TREE_CLONE | AT_RECURSIVE | os.O_CLOEXEC
    trees = [(place, checked(libc.syscall(OPEN_TREE, AT_FDCWD, place.encode(), flags))) for place in tops]
    enter(target)
    for place, tree in trees:
        checked(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, place.encode(), MOVE_MOUNT_F_EMPTY_PATH))
        print(place)


main(*sys.argv[1:])
