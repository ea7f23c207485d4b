"""The driver's own limit (NVML 615, simulated) of an agent's tasks: set, kept over the agent's death, and gone with the task."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import CANTLE, SET_LIMIT, Cantle, own_port, wait_until

MIB = 1 << 20
# Half of an A100-40GB, and what a task may always hold beyond its slice.
HARD = 20480 * MIB + 512 * MIB
LONG = ["sleep", "300"]


@pytest.fixture
def cantle(tmp_path):
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 14):
        pytest.skip("the simulated driver's limits need Linux 6.14")
    found = Cantle(tmp_path, "1xA100-40GB", driver="615.71.09")
    yield found
    found.stop()


def limits(cantle):
    return cantle.truth()[0]["limits"]


def test_a_task_is_limited_until_its_end_whatever_ends_the_agent(cantle):
    port = own_port()
    words = ["--enforce", "driver", "--keep-tasks", "--queue", "half=0.5"]
    up = cantle.up(*words, port=port)
    task = cantle.submit("half", *LONG)
    cantle.wait_state(task, "in_progress")
    named = lambda: [slice.get("enforced_by") for slice in cantle.json("gpus")[0]["slices"]]  # noqa: E731
    wait_until(lambda: named() == [["nvml", "filter"]], 60, lambda: cantle.json("gpus"))
    (limit,) = limits(cantle)
    assert (limit["soft_bytes"], limit["hard_bytes"]) == (0, HARD)
    assert "enforced by driver + mount namespace" in cantle.cli("events").stdout
    up.send_signal(signal.SIGKILL)
    up.wait()
    assert limits(cantle) == [limit], "it is the group's"
    done = cantle.program(sys.executable, "-c", SET_LIMIT, limit["group"], str(HARD * 2 // 3))
    assert done.returncode == 0, done.stderr
    cantle.up(*words, port=port)
    wait_until(lambda: limits(cantle) == [limit], 60, lambda: limits(cantle))
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped", "failed")
    assert limits(cantle) == [] and not os.path.exists(limit["group"])


def change(cantle, limit, hard):
    done = cantle.program(sys.executable, "-c", SET_LIMIT, limit["group"], str(hard))
    assert done.returncode == 0, done.stderr


def test_a_limit_that_another_program_changes_is_set_again(cantle):
    cantle.up("--queue", "half=0.5")
    task = cantle.submit("half", *LONG)
    cantle.wait_state(task, "in_progress")
    wait_until(lambda: limits(cantle) != [], 60, lambda: limits(cantle))
    (limit,) = limits(cantle)
    # A smaller one too: it would refuse what the slice has.
    for hard in (HARD * 3 // 2, HARD // 2, (1 << 64) - 1):
        change(cantle, limit, hard)
        wait_until(lambda: limits(cantle) == [limit], 60, lambda: limits(cantle))
    wait_until(lambda: cantle.output(task).count("another program has changed the driver's limit") == 3, 60, lambda: cantle.output(task))
    # A change of cantle's own is none.
    cantle.cli("resize", task, "--gpu", "0.25")
    wait_until(lambda: limits(cantle)[0]["hard_bytes"] == HARD - 10240 * MIB, 60, lambda: limits(cantle))
    time.sleep(3)
    assert cantle.output(task).count("another program has changed") == 3
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped", "failed")


def test_a_limit_that_cannot_be_set_starts_nothing(cantle):
    cantle.up("--queue", "half=0.5")
    cantle.machine.faults("nvmlDeviceSetMemoryLimits_v1 error=999")
    task = cantle.submit("half", "echo", "started")
    ended = cantle.wait_state(task, "failed")
    assert "nvmlDeviceSetMemoryLimits_v1 failed" in ended["reason"], ended
    assert "started" not in cantle.output(task)
    wait_until(lambda: cantle.json("gpus")[0]["slices"] == [], 60, lambda: cantle.json("gpus"))
    assert limits(cantle) == []


def test_an_agent_refuses_without_it(tmp_path):
    old = Cantle(tmp_path, "1xA100-40GB", driver="610.43.02")
    try:
        done = old.cli("up", "--listen", "127.0.0.1:0", "--enforce", "driver", "--queue", "half=0.5", code=7)
        assert "driver 610.43.02 does not offer them here" in done.stderr, done.stderr
    finally:
        old.stop()


def test_doctor_knows_the_limits_of_others(cantle):
    def doctor(**env):
        done = cantle.program(CANTLE, "-o", "json", "doctor", env=cantle.env | env)
        return [row for row in json.loads(done.stdout)["items"] if row["check"] == "limits of others"]

    before = doctor()
    assert not any("nvidia-cuda-mps" not in row["found"] for row in before), "nothing of others is loaded here"
    preloaded = doctor(LD_PRELOAD="/nowhere/libvgpu.so:/nowhere/libclearml_snug.so", LD_AUDIT="/nowhere/libamvgpu.so")
    names = {row["found"].split(" (")[0]: row["verdict"] for row in preloaded if "is loaded into programs" in row["found"]}
    assert names == {"HAMi": "warning", "ClearML's SNUG": "good", "HAMi for AMD": "warning"}
    (half,) = [row for row in doctor(NVIDIA_GPU_MEMORY_LIMIT="4096") if "NVIDIA_GPU_MEMORY" in row["found"]]
    assert "sets no limit and reports none" in half["found"]
    # Its name and variables are all that is known of a daemon.
    daemon = cantle.machine.command("bash", "-c", "exec -a nvidia-cuda-mps-control sleep 100")
    child = subprocess.Popen(daemon, env=cantle.env | {"CUDA_MPS_PROTOCOL_VERSION": "3"})
    try:
        wait_until(lambda: any(f"process {child.pid}, protocol 3" in row["found"] for row in doctor()), 30, doctor)
    finally:
        child.kill()
        child.wait()
