"""A slice has its part of the processors and main memory of its node, as limits (docs/guide/day.md)."""

import os
import pathlib
import re
import sys

import pytest

from conftest import wait_until

QUEUES = ["--queue", "half=0.5", "own=task", "none=none"]
AUTO = ["--cpu", "auto"]
# Half of one of three GPUs.
CPU_MILLI = 1000 * len(os.sched_getaffinity(0)) // 6
KIB = int(re.search(r"MemTotal: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
# Computes for 0.5 s of its own time, and prints how long that took.
COMPUTES = [sys.executable, "-c", """
import time
began, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.5:
    pass
print(time.monotonic() - began)
"""]
SMALL = "64Mi"
TOO_MUCH = [sys.executable, "-c", "print(len(b'x' * (256 << 20)), flush=True)"]
KILLED = 137


def groups(lease):
    """The groups of a task on this machine, in all hierarchies. Other tests have tasks, too."""
    return [str(parent / lease) for parent in pathlib.Path("/sys/fs/cgroup").glob("**/cantle") if (parent / lease).is_dir()]


def test_a_slice_has_its_part_of_the_node(cantle):
    cantle.up(*QUEUES)
    task = cantle.submit("half", *COMPUTES, flags=AUTO)
    found = cantle.wait_state(task, "completed")
    assert found["host"] == {"cpu_milli": CPU_MILLI, "memory_bytes": 1024 * KIB // 6}
    # One period at most is without a limit.
    assert float(cantle.output(task)) > (0.5 - 0.1) * 1000 / CPU_MILLI
    assert f"{CPU_MILLI / 1000:g}" in cantle.cli("tasks", task, "-o", "wide").stdout
    free = cantle.submit("half", "true")
    assert cantle.wait_state(free, "completed").get("host") is None
    task = cantle.submit("half", "sleep", "2", flags=AUTO)
    cantle.wait_state(task, "in_progress")
    leases = lambda: [slice["lease"] for gpu in cantle.json("gpus") for slice in gpu["slices"]]
    wait_until(leases, 30, "its slice")
    (lease,) = leases()
    wait_until(lambda: groups(lease), 30, "its groups")
    cantle.wait_state(task, "completed")
    wait_until(lambda: not groups(lease), 10, lambda: f"a group outlives its task: {groups(lease)}")


def test_a_task_that_takes_more_memory_is_killed_and_so_is_a_command_in_it(cantle):
    cantle.up(*QUEUES)
    over = cantle.submit("half", *TOO_MUCH, flags=[*AUTO, "--memory", SMALL])
    found = cantle.wait_state(over, "failed")
    assert found["exit_code"] == KILLED and found["host"]["memory_bytes"] == 64 << 20, found
    free = cantle.submit("half", *TOO_MUCH, flags=["--memory", SMALL])
    assert cantle.wait_state(free, "completed", "failed")["state"] == "completed", "the control"
    holds = cantle.submit("half", "sleep", "3600", flags=[*AUTO, "--memory", SMALL])
    cantle.wait_state(holds, "in_progress")
    assert cantle.cli("exec", holds, "--", *TOO_MUCH, code=KILLED).stdout == ""
    refused = cantle.cli("suspend", holds, code=None)
    assert refused.returncode != 0 and "its main memory is limited (cpu auto)" in refused.stderr
    cantle.cli("stop", holds)


def test_the_parts_count_against_quotas(cantle):
    cantle.up(*QUEUES)
    cantle.cli("quota", "set", "vision", "--cpu-limit", f"{CPU_MILLI * 3 // 2 / 1000:g}")
    flags = [*AUTO, "--project", "vision"]
    first = cantle.submit("half", "sleep", "3600", flags=flags)
    cantle.wait_state(first, "in_progress")
    second = cantle.submit("half", "true", flags=flags)
    # The control has no part of the processors, and is not held back.
    other = cantle.submit("half", "true", flags=["--project", "other"])
    cantle.wait_state(other, "completed")
    assert cantle.task(second)["state"] == "queued"
    assert "CPU" in cantle.cli("why", second).stdout
    cantle.cli("stop", first)
    cantle.wait_state(second, "completed")


@pytest.mark.parametrize("cpu", ["0", "-1", "some"])
def test_cores_that_are_no_number_are_refused(cantle, cpu):
    refused = cantle.cli("submit", "--queue", "half", f"--cpu={cpu}", "--", "true", code=2)
    assert f'"{cpu}" is not a number of CPU cores; write a decimal such as 0.5, or auto' in refused.stderr


def test_a_part_that_cannot_be_had_fails_the_task_with_the_reason(cantle):
    cantle.up(*QUEUES)
    refused = cantle.cli("submit", "--queue", "none", *AUTO, "--", "true", code=5)
    assert "queue none gives tasks no GPU; this task asks for cpu auto" in refused.stderr
    much = cantle.submit("half", "true", flags=[*AUTO, "--memory", "1000Ti"])
    assert "memory 1000 TiB is more than this node has, which is" in cantle.wait_state(much, "failed")["reason"]


def test_a_queue_gives_it_to_tasks_that_name_no_cores(cantle):
    cantle.up(*QUEUES)
    for queue in ("half", "none"):
        cantle.cli("queues", "set", queue, "--cpu", "auto")
    assert [queue["cpu_auto"] for queue in cantle.json("queues") if queue["name"] == "half"] == [True]
    given = cantle.submit("half", *COMPUTES)
    named = cantle.submit("half", "true", flags=["--cpu", "0.1"])
    without = cantle.submit("none", "true")
    assert cantle.wait_state(given, "completed")["host"]["cpu_milli"] == CPU_MILLI
    assert float(cantle.output(given)) > (0.5 - 0.1) * 1000 / CPU_MILLI
    assert cantle.wait_state(named, "completed")["host"] == {"cpu_milli": 100, "memory_bytes": 0}
    assert cantle.wait_state(without, "completed").get("host") is None
    cantle.cli("queues", "set", "half", "--cpu", "none")
    assert cantle.wait_state(cantle.submit("half", "true"), "completed").get("host") is None
    assert '"all" is neither auto nor none' in cantle.cli("queues", "set", "half", "--cpu", "all", code=2).stderr
    assert "there is no queue nowhere" in cantle.cli("queues", "set", "nowhere", "--cpu", "auto", code=3).stderr
