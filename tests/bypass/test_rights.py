"""What a task may not do although it is root: change the GPU for others, name memory that nobody can account for, resume on another GPU."""

import re
import sys

import pytest

from conftest import GPU, HERE, LIMIT
from machine import ROOT

NO_PERMISSION = 4
INVALID_VALUE, NOT_SUPPORTED = 1, 801
HOOKS = (ROOT / "crates/tenant/shim/src/nvml/mod.rs").read_text()
REFUSED = re.search(r"refusing NO_PERMISSION: \[(.*?)\]", HOOKS, re.DOTALL)[1].split()
# Before the functions for checkpoints.
OLD_DRIVER = {"gpus": GPU, "driver": "565.57.01"}
NEW_DRIVER = {"gpus": GPU, "driver": "620.35.02"}
# Values of CUmemLocationType that CUDA 13.5 does not have, or gives no memory of a GPU or of the host.
HOST, DEVICE, UNSET = ["2", "3", "4"], ["1", "6"], "0"


def answers(machine, *words, limit=LIMIT):
    running = machine.start([sys.executable, HERE / "rights.py", *words], limit)
    record = running.record()
    running.end()
    return record


def test_a_task_of_root_cannot_change_a_gpu(machine):
    assert len(REFUSED) > 70
    assert answers(machine, "nvml", *REFUSED) == dict.fromkeys(REFUSED, NO_PERMISSION)


def test_a_task_of_root_cannot_change_a_gpu_control(machine):
    """Outside of a slice the driver decides. It changes the mode, and knows no memory limits yet."""
    outside = answers(machine, "nvml", limit=None)
    assert outside == {"nvmlDeviceSetMigMode": 0, "nvmlDeviceSetMemoryLimits_v1": 3}


@pytest.mark.parametrize("machine", [NEW_DRIVER], indirect=True)
def test_an_unknown_location_is_refused(machine):
    inside = answers(machine, "locations")
    assert {kind: inside.pop(kind) for kind in [*HOST, *DEVICE]} == dict.fromkeys([*HOST, *DEVICE], 0)
    assert inside.pop(UNSET) == INVALID_VALUE
    assert inside == dict.fromkeys(["5", "7", "99", "-1"], NOT_SUPPORTED)


@pytest.mark.parametrize("machine", [NEW_DRIVER], indirect=True)
def test_an_unknown_location_control(machine):
    """The driver that is here knows no other; what a newer one would say is not known."""
    outside = answers(machine, "locations", limit=None)
    known = [*HOST, *DEVICE]
    assert outside == {kind: 0 if kind in known else INVALID_VALUE for kind in outside}


@pytest.mark.parametrize("machine", [OLD_DRIVER], indirect=True)
def test_a_process_resumes_where_it_is_charged(machine):
    """What passes gets the answer of a driver that suspends nothing."""
    inside = answers(machine, "restore")
    passes = dict.fromkeys(["none", "same", "into"], NOT_SUPPORTED)
    assert inside == {**passes, **dict.fromkeys(["out", "foreign"], INVALID_VALUE)}


@pytest.mark.parametrize("machine", [OLD_DRIVER], indirect=True)
def test_a_process_resumes_where_it_is_charged_control(machine):
    assert set(answers(machine, "restore", limit=None).values()) == {NOT_SUPPORTED}
