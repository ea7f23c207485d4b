"""The driver's own limit (NVML 615): what takes memory past the filter is refused where test_evasion.py shows that it is ended. All of this is the
simulated driver's; no real driver 615 was tried."""

import json
import os
import subprocess
import sys

import pytest

from conftest import CANTLE, CONTEXT, GPU, HERE, LIMIT, MIB
from test_evasion import WAYS, accomplice, copy, evader, neighbor  # noqa: F401  three of them are fixtures

NEW_DRIVER = {"gpus": GPU, "driver": "615.71.09"}
TWO_GPUS = {"gpus": "2xA100-40GB", "driver": "615.71.09"}
OLD_DRIVER = {"gpus": GPU, "driver": "610.43.02"}
MIG = {"gpus": "1xA100-40GB:mig", "driver": "615.71.09"}
# What a task may always hold beyond its slice.
TOLERATED = 512 * MIB
HARD = LIMIT + TOLERATED
OUT_OF_MEMORY = 2
UNAVAILABLE = 7

on = {name: pytest.mark.parametrize("machine", [machine], indirect=True) for name, machine in
      {"new": NEW_DRIVER, "two": TWO_GPUS, "old": OLD_DRIVER, "mig": MIG}.items()}


@pytest.fixture(autouse=True)
def kernel(request):
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
        pytest.skip("the simulated driver's limits need Linux 6.14")
    with open("/proc/mounts") as mounts:
        if not any(line.split()[2] == "cgroup2" for line in mounts):
            pytest.skip("no control groups of version 2 are mounted")


def limits(machine):
    return [limit for gpu in machine.truth() for limit in gpu["limits"]]


def run(machine, *words):
    """A whole `cantle run`: its exit code, its output, and what it said."""
    done = subprocess.run(machine.command(CANTLE, "run", *words), env=machine.env, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@on["new"]
@pytest.mark.parametrize("way", ["the_real_file", "a_copy", "a_copy_found_first", "a_copy_preloaded"])
def test_a_private_library_is_refused(machine, programs, copy, neighbor, way):  # noqa: F811
    running = machine.start(evader(way, programs, copy))
    record = running.record()
    assert record["refused"] == OUT_OF_MEMORY, record
    assert HARD - 2 * CONTEXT - 80 * MIB < record["granted"] <= HARD - CONTEXT, "all that the driver gives, and no more"
    _, said = running.child.communicate(timeout=120)
    assert running.child.returncode == 0 and "the task is killed" not in said, said


@on["new"]
@pytest.mark.parametrize("way", [way for way, end in WAYS.items() if end == "ended"])
def test_an_evader_is_refused(machine, copy, neighbor, accomplice, way):  # noqa: F811
    """All ways that end with the task's death on an older driver."""
    step, how = (way.replace("_accomplice", ""), ["unix", accomplice, LIMIT]) if "_accomplice" in way else (way, [])
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if way.startswith("own_mounts") else []
    running = machine.start([*as_user, sys.executable, HERE / "evade.py", step, copy, 2 * LIMIT, *how])
    assert running.record() == {"prevented": f"CUDA error {OUT_OF_MEMORY}"}
    running.child.kill()
    running.child.wait()


@on["new"]
def test_with_the_filter_alone_it_is_ended(machine, copy, neighbor):  # noqa: F811
    """The control: the same driver, without its limit."""
    command = [CANTLE, "run", "--enforce", "filter", "--gpu-memory", f"{LIMIT // MIB}Mi", "--", sys.executable]
    running = machine.start([*command, HERE / "evade.py", "memfd", copy, 2 * LIMIT], slice_bytes=None)
    assert running.record() == {"granted": 2 * LIMIT}
    assert len(limits(machine)) == 1, "the neighbor's"
    assert running.child.wait(timeout=120) == 137


@on["new"]
def test_it_is_named_and_leaves_nothing(machine):
    running = machine.start([sys.executable, HERE / "holder.py", 64])
    assert running.child.stdout.readline() == "holding\n"
    (limit,) = limits(machine)
    assert (limit["soft_bytes"], limit["hard_bytes"]) == (0, HARD)
    listed = subprocess.run(machine.command(CANTLE, "gpus", "-o", "json"), env=machine.env, capture_output=True, text=True, check=True)
    (gpu,) = json.loads(listed.stdout)["items"]
    assert gpu["slices"][0]["enforced_by"] == ["nvml", "filter"]
    _, said = running.child.communicate(timeout=120)
    assert "enforced by driver + mount namespace" in said
    assert limits(machine) == [] and not os.path.exists(limit["group"])


@on["new"]
def test_it_outlives_the_run_that_set_it(machine):
    running = machine.start([sys.executable, HERE / "holder.py", 64])
    assert running.child.stdout.readline() == "holding\n"
    before = limits(machine)
    running.child.kill()
    running.child.wait()
    assert limits(machine) == before and len(before) == 1
    # The next one sweeps what nobody holds any more.
    with open(f"{before[0]['group']}/cgroup.kill", "w") as kill:
        kill.write("1")
    assert run(machine, "--gpu", "0.1", "--", "true")[0] == 0
    assert limits(machine) == []


@on["new"]
def test_a_whole_gpu_is_no_more_than_it_has(machine):
    """NVML refuses a limit above the memory of the GPU."""
    code, _, said = run(machine, "--gpus", "1", "--enforce", "driver", "--", "true")
    assert code == 0 and "enforced by driver" in said, said


@on["two"]
def test_all_gpus_get_one_or_none(machine):
    """It fails on the second of two: the task does not start, and nothing stays set."""
    machine.faults("nvmlDeviceSetMemoryLimits_v1 gpu=1 error=999")
    code, out, said = run(machine, "--gpus", "2", "--", "echo", "started")
    assert code == UNAVAILABLE and out == "", said
    assert "nvmlDeviceSetMemoryLimits_v1 failed on GPU-" in said
    assert limits(machine) == []
    machine.faults(None)
    code, out, said = run(machine, "--gpus", "2", "--", "echo", "started")
    assert (code, out) == (0, "started\n"), said
    assert limits(machine) == [] and list(machine.path("/run/cantle/node/leases").iterdir()) == []


@on["old"]
def test_an_older_driver_has_the_filter(machine):
    code, out, said = run(machine, "--gpu", "0.5", "--", "echo", "started")
    assert (code, out) == (0, "started\n") and "enforced by mount namespace" in said, said
    code, out, said = run(machine, "--gpu", "0.5", "--enforce", "driver", "--", "echo", "started")
    assert code == UNAVAILABLE and out == "", said
    assert "GPU 0: driver 610.43.02 does not offer them here" in said
    assert list(machine.path("/run/cantle/node/leases").iterdir()) == []


@on["mig"]
def test_an_instance_is_the_hardwares(machine):
    code, _, said = run(machine, "--mig-profile", "1g.5gb", "--enforce", "driver", "--", "true")
    assert code == 0 and "enforced by mount namespace" in said, said
    assert limits(machine) == []


@on["new"]
def test_doctor_names_it(machine):
    said = subprocess.run(machine.command(CANTLE, "doctor"), env=machine.env, capture_output=True, text=True).stdout
    assert "in force for tasks" in said, said
