"""What pods in a user namespace of their own have: their root has no rights on the node. The kernel mounts /proc and /sys for them only
because both are mounted on the node without the simulated driver's parts too (worker_machine.py); a real driver needs no such thing."""

import os

import pytest

from test_pods import FILL

SPEC = {"hostUsers": False, "hostNetwork": False}
# The first user of the pod is another one on the node.
MAPPED_FILL = 'assert open("/proc/self/uid_map").read().split()[1] != "0", "no user namespace"\n' + FILL


def need_runtime(programs):
    if not (programs / "runc").exists():
        pytest.skip("no runc of 1.2 or newer; it can't be built here (tests/cluster/assets/build.sh)")
    if tuple(int(number) for number in os.uname().release.split(".")[:2]) < (6, 3):
        pytest.skip("Kubernetes needs Linux 6.3 for them")
