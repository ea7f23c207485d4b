"""Idle tasks end, and their slices are free; tasks that work, however little, go on (docs/guide/day.md)."""

import json
import shutil
import signal
import sys
import time

import pytest

from conftest import CANTLE, own_port, wait_until
from test_exec import Terminal
from test_forward import api, notebook
from test_notify import receiver  # noqa: F401

# The shortest time that there is, so that the tests take little more than a minute.
IDLE = ["--idle", "1m"]
# Longer than an idle task lives: a minute, a window of 10 s and a look of 5 s later at most, and its grace period.
LATER = 100
REASON = "idle for 1m"

# Holds memory of its GPU and computes for 7 s of each 25 s, or once only.
COMPUTES = """
import ctypes, sys, time
cu = ctypes.CDLL("libcuda.so.1")
def made(function, *arguments):
    handle = ctypes.c_uint64()
    assert getattr(cu, function)(ctypes.byref(handle), *arguments) == 0, function
    return handle
assert cu.cuInit(0) == 0
made("cuCtxCreate_v2", 0, 0)
kernel = made("cuModuleGetFunction", made("cuModuleLoadData", b"image"), b"cantle_sim_busy_us_1000000")
while True:
    for _ in range(7):
        assert cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
    print("computed", flush=True)
    time.sleep(25 if sys.argv[1] == "again" else 3600)
"""


def computes(how):
    return [sys.executable, "-c", COMPUTES, how]


def test_an_idle_task_ends_and_those_that_work_go_on(cantle, receiver):  # noqa: F811
    hook, arrived = receiver("hook")
    cantle.up("--queue", "quarter=0.25", "--notify-allow", "127.0.0.1")
    cantle.cli("notify", "set", "lab", f"http://127.0.0.1:{hook}/", "--always")
    began = time.monotonic()
    tidy = ["sh", "-c", "trap 'echo tidied up; exit 0' TERM; sleep 3600 & wait"]
    idle = [
        cantle.submit("quarter", *tidy, flags=[*IDLE, "--name", "nothing"]),
        # It holds memory of its GPU, which computes for another task.
        cantle.submit("quarter", *computes("once"), flags=[*IDLE, "--name", "holds"]),
    ]
    # Controls: one computes now and then, one uses only the CPU, one does nothing and may.
    work = [
        cantle.submit("quarter", *computes("again"), flags=IDLE),
        cantle.submit("quarter", "sh", "-c", "while :; do i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; sleep 1; done", flags=IDLE),
        cantle.submit("quarter", "sleep", "3600", flags=["--idle", "1h"]),
        cantle.submit("quarter", "sleep", "3600"),
    ]
    assert [cantle.task(task).get("idle_limit_s") for task in work] == [60, 60, 3600, None]
    for task in idle:
        ended = cantle.wait_state(task, "failed", seconds=LATER + 60)
        assert ended["reason"] == REASON
        assert REASON in cantle.cli("why", task).stdout and REASON in cantle.cli("tasks", task).stdout
        assert "cantle: stopped: idle for 1m" in cantle.output(task)
    assert time.monotonic() - began >= 60, "no task ends too early"
    assert "tidied up" in cantle.output(idle[0])
    warning = "it is stopped in 30s unless it works"
    assert warning in cantle.output(idle[0])
    # Their slices are free, and the memory is.
    held = {one["task"] for gpu in cantle.json("gpus") for one in gpu["slices"]}
    assert held == set(work), held
    wait_until(lambda: time.monotonic() - began > LATER, LATER, "the time of the others")
    for task in work:
        assert cantle.task(task)["state"] == "in_progress", cantle.task(task)
        assert "idle for" not in cantle.output(task), cantle.output(task)
    # Their owner gets the warning, and then the end.
    sent = [json.loads(one["body"]) for one in arrived()]
    of_idle = [(one["type"], one["task"]["id"]) for one in sent if one["task"]["id"] == idle[0]]
    assert of_idle == [("task.idle", idle[0]), ("task.failed", idle[0])], sent
    (text,) = [one["text"] for one in sent if one["type"] == "task.idle" and one["task"]["id"] == idle[0]]
    assert text.startswith("Task nothing on ") and warning in text, text


@pytest.mark.full
def test_somebody_at_the_terminal_keeps_the_slice(cantle):
    cantle.up("--queue", "quarter=0.25")
    words = lambda name: [CANTLE, "shell", "--queue", "quarter", *IDLE, "--name", name, "--", "sh"]  # noqa: E731
    used, left = (Terminal(cantle.machine.command(*words(name)), cantle.env) for name in ("used", "left"))
    began = time.monotonic()
    tasks = lambda: {task["name"]: task for task in cantle.json("tasks")}  # noqa: E731
    wait_until(lambda: len([t for t in tasks().values() if t["state"] == "in_progress"]) == 2, 60, tasks)
    while time.monotonic() - began < LATER:
        used.type("echo here\n")
        used.until("here")
        time.sleep(8)
    found = tasks()
    assert (found["left"]["state"], found["left"]["reason"]) == ("failed", REASON), found
    assert found["used"]["state"] == "in_progress", found
    for each in (used, left):
        each.child.terminate()
        each.child.wait(timeout=60)


@pytest.mark.full
def test_idleness_counts_from_the_restart_of_an_agent(cantle):
    port = own_port()
    up = cantle.up("--keep-tasks", "--queue", "half=0.5", port=port)
    task = cantle.submit("half", "sleep", "3600", flags=IDLE)
    cantle.wait_state(task, "in_progress")
    wait_until(lambda: "it is stopped in 30s" in cantle.output(task), 60, lambda: cantle.output(task))
    up.send_signal(signal.SIGKILL)
    up.wait()
    began = time.monotonic()
    cantle.up("--keep-tasks", "--queue", "half=0.5", port=port)
    assert cantle.wait_state(task, "failed", seconds=LATER + 60)["reason"] == REASON
    assert time.monotonic() - began >= 60, "it was promised a minute, of which nobody knows the beginning"


@pytest.mark.full
def test_extend_is_activity_and_limits_are_checked(cantle):
    cantle.up("--queue", "half=0.5", "none=none")
    cantle.cli("queues", "set", "half", "--max-idle", "1h", "--default-idle", "10m")
    assert "10m, at most 1h" in cantle.cli("queues", "-o", "wide").stdout
    refused = cantle.cli("submit", "--queue", "half", "--idle", "2h", "--", "true", code=5)
    assert refused.stderr.splitlines()[0] == "cantle: queue half lets tasks be idle for at most 1h; this task asks for 2h"
    task = cantle.submit("half", "sleep", "3600")
    assert cantle.task(task)["idle_limit_s"] == 600
    assert "may be idle for 1h10m" in cantle.cli("extend", "--idle", task, "1h").stderr
    assert "may be idle for 1m" in cantle.cli("extend", "--idle", "--less", task, "1h9m").stderr
    wait_until(lambda: "it is stopped in 30s" in cantle.output(task), 90, lambda: cantle.output(task))
    cantle.cli("extend", "--idle", task, "10m")
    wait_until(lambda: "active again: it goes on" in cantle.output(task), 60, lambda: cantle.output(task))
    # Too little is left: the limit stays.
    refused = cantle.cli("extend", "--idle", "--less", task, "10m30s", code=5)
    assert "may be idle for 11m: from 1m to 366d have to be left" in refused.stderr
    for words in (["submit"], ["shell"], ["notebook"]):
        for wrong in ("0", "10s", "abc", "-5m"):
            failed = cantle.cli(*words, f"--idle={wrong}", "--", "true", code=2)
            assert failed.stderr.splitlines()[0].startswith(f'cantle: --idle: "{wrong}" is not an idle time; write numbers'), failed.stderr
    wrong = cantle.cli("queues", "set", "half", "--default-idle", "2h", "--max-idle", "1h", code=2)
    assert "--default-idle 2h is longer than --max-idle 1h" in wrong.stderr


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("jupyter"), reason="no jupyter in the PATH")
def test_a_notebook_is_idle_while_its_page_is_only_open(cantle):
    cantle.up("--queue", "eighth=0.125")
    children = [notebook(cantle, "--queue", "eighth", *IDLE, "--name", name, log=f"{name}.log") for name in ("open", "used")]
    began = time.monotonic()
    ends = lambda: {task["name"]: task for task in cantle.json("tasks")}  # noqa: E731
    while time.monotonic() - began < LATER:
        for (_, at, token), name in zip(children, ("open", "used"), strict=True):
            if ends()[name]["state"] != "in_progress":
                continue
            # As an open page asks; it changes nothing.
            api(at, "kernels", token)
            if name == "used":
                # A new kernel stands for a cell that runs: both are activity of a kernel.
                api(at, "kernels", token, "POST")
        time.sleep(20)
    found = ends()
    assert (found["open"]["state"], found["open"]["reason"]) == ("failed", REASON), found
    assert found["used"]["state"] == "in_progress", found
