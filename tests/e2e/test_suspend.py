"""Suspend, resume, move and resize running tasks: `cantle run` on a machine with simulated GPUs, and the driver's record as the witness."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import CANTLE, FILL, Cantle, hold_until, own_port, wait_until

MIB, GIB = 1 << 20, 1 << 30

# Holds memory, and says once a second (or when asked) what it sees. A line on stdin is an expression.
TASK = """
import ctypes, json, os, sys, time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
cu = ctypes.CDLL("libcuda.so.1")
assert cu.cuInit(0) == 0
context, device = c_void_p(), c_int()
assert cu.cuDevicePrimaryCtxRetain(byref(context), 0) == 0 and cu.cuCtxSetCurrent(context) == 0
def alloc(size):
    address = c_uint64()
    return [cu.cuMemAlloc_v2(byref(address), c_size_t(size)), address.value]
def managed(size):
    return cu.cuMemAllocManaged(byref(c_uint64()), c_size_t(size), 1)
def share():
    return cu.cuIpcGetMemHandle(byref((c_uint64 * 8)()), c_uint64(alloc(4 << 20)[1]))
def info():
    free, total = c_size_t(), c_size_t()
    assert cu.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    return [free.value >> 20, total.value >> 20]
def uuid():
    raw = (ctypes.c_ubyte * 16)()
    assert cu.cuDeviceGetUuid(raw, 0) == 0
    return bytes(raw).hex()
def child(expression):
    import subprocess
    return json.loads(subprocess.run([sys.executable, "-c", SOURCE], input=expression + "\\n", capture_output=True, text=True).stdout)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Task:
    """`cantle run` with a program that answers."""

    def __init__(self, cantle, *flags, name="task"):
        self.cantle, self.log = cantle, cantle.home / f"{name}.err"
        source = f"SOURCE = {TASK!r}\n{TASK}"
        command = cantle.machine.command(CANTLE, "run", *flags, "--", sys.executable, "-c", source)
        self.child = subprocess.Popen(
            command, env=cantle.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("wb"), text=True
        )
        self.ask("0")
        (self.row,) = [row for row in cantle.json("ps") if row["task"] not in taken(cantle)]
        taken(cantle).add(self.row["task"])
        self.id = self.row["task"]

    def tell(self, expression):
        self.child.stdin.write(expression + "\n")
        self.child.stdin.flush()

    def answer(self):
        line = self.child.stdout.readline()
        assert line, self.log.read_text()
        return json.loads(line)

    def ask(self, expression):
        self.tell(expression)
        return self.answer()

    def end(self):
        self.child.stdin.close()
        return self.child.wait(timeout=60)


def taken(cantle):
    return cantle.__dict__.setdefault("taken", set())


@pytest.fixture
def start(request, tmp_path):
    """Starts tasks on one machine."""
    mark = request.node.get_closest_marker("machine")
    gpus, driver = mark.args if mark else ("2xA100-40GB", None)
    cantle = Cantle(tmp_path, gpus, driver=driver)
    tasks = []

    def begin(*flags):
        tasks.append(Task(cantle, *flags, name=f"task{len(tasks)}"))
        return tasks[-1]

    begin.cantle = cantle
    yield begin
    for task in tasks:
        task.child.kill()
        task.child.wait()
    cantle.stop()


def used(cantle):
    return [gpu["used_bytes"] for gpu in cantle.truth()]


def lease(cantle, task):
    """As it is on disk."""
    (found,) = [row for row in cantle.json("ps") if row["task"] == task.id]
    return found


def test_memory_is_free_for_others_and_comes_back(start):
    cantle, task = start.cantle, start("--gpu-memory", "3Gi")
    assert task.ask(f"alloc({GIB})")[0] == 0
    held = used(cantle)
    seen = task.ask("info()")
    said = cantle.cli("suspend", task.id).stderr
    assert "is suspended: 1." in said and "GPU 0 is free" in said, said
    assert used(cantle) == [0, 0]
    assert lease(cantle, task)["state"] == "suspended"
    whole = start("--gpu", "1", "--timeout", "10")
    assert whole.ask(f"alloc({30 * GIB})")[0] == 0 and lease(cantle, whole)["gpu"] == 0
    assert whole.end() == 0
    assert "of GPU 0" in cantle.cli("resume", task.id).stderr
    assert used(cantle) == held and task.ask("info()") == seen
    assert task.ask(f"alloc({GIB})")[0] == 0 and task.ask(f"alloc({GIB})")[0] == 2, "the limit is what it was"
    assert task.end() == 0 and used(cantle) == [0, 0]


def test_an_allocation_meanwhile_waits_and_is_not_refused(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert task.ask(f"alloc({GIB})")[0] == 0
    cantle.cli("suspend", task.id)
    task.tell(f"alloc({2 * GIB})")
    cantle.cli("resume", task.id)
    assert task.answer()[0] == 0
    assert used(cantle)[0] > 3 * GIB


def test_a_child_that_starts_meanwhile_waits(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    cantle.cli("suspend", task.id)
    task.tell(f"child('alloc({GIB})')")
    wait_until(lambda: used(cantle) == [0, 0], 5, lambda: used(cantle))
    cantle.cli("resume", task.id)
    assert task.answer()[0] == 0


@pytest.mark.parametrize("flags", [(), ("--compute", "fair")], ids=["even", "fair"])
def test_it_moves_to_another_gpu_and_follows_its_limits(start, flags):
    cantle, task = start.cantle, start("--gpu-memory", "3Gi", *flags)
    assert task.ask(f"alloc({GIB})")[0] == 0
    held, first = used(cantle)[0], task.ask("uuid()")
    assert "of GPU 1" in cantle.cli("move", task.id, "--gpu", "1").stderr
    assert used(cantle) == [0, held] and lease(cantle, task)["gpu"] == 1
    assert task.ask("uuid()") != first
    assert task.ask(f"alloc({GIB})")[0] == 0 and task.ask(f"alloc({GIB})")[0] == 2
    assert task.ask(f"child('alloc({100 * MIB})')")[0] == 0, "a new process finds the new GPU"
    cantle.cli("suspend", task.id)
    assert "GPU 0" in cantle.cli("resume", task.id, "--gpu", "0").stderr
    assert used(cantle)[1] == 0 and task.ask("uuid()") == first


def test_it_comes_back_elsewhere_if_its_gpu_is_taken(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert task.ask(f"alloc({GIB})")[0] == 0
    cantle.cli("suspend", task.id)
    whole = start("--gpu", "1")
    assert lease(cantle, whole)["gpu"] == 0
    assert "0.5 of GPU 1" in cantle.cli("resume", task.id).stderr
    cantle.cli("suspend", task.id)
    full = start("--gpu", "1")
    refused = cantle.cli("resume", task.id, code=6)
    assert f"no room for task {task.id}" in refused.stderr
    assert lease(cantle, task)["state"] == "suspended"
    assert full.end() == 0
    cantle.cli("resume", task.id)
    assert task.ask("info()")[1] == 20 * 1024


def test_refusals_leave_the_task_undisturbed(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert task.ask(f"alloc({GIB})")[0] == 0
    held = used(cantle)

    def refused(*words, code, text):
        done = cantle.cli(*words, code=code)
        assert text in done.stderr and len(done.stderr.strip().splitlines()) <= 2, done.stderr
        assert used(cantle) == held and task.ask("info()")[1] == 20 * 1024

    refused("suspend", "nobody", code=3, text="no task nobody has a slice on this machine")
    refused("suspend", task.id, "--parked-memory", "0G", code=6, text="0 B of 0 B for parked memory are free")
    refused("suspend", task.id, "--parked-memory", "512Mi", code=6, text="of 512 MiB for parked memory are free")
    refused("resume", task.id, code=8, text=f"task {task.id} is not suspended")
    refused("move", task.id, "--gpu", "0", code=8, text="it is on GPU 0 already")
    refused("move", task.id, "--gpu", "7", code=2, text="this machine has no such GPU")
    assert task.ask("share()") == 0
    held = used(cantle)
    refused("suspend", task.id, code=8, text="shares GPU memory with another one (CUDA IPC)")
    other = start("--gpu", "0.25")
    assert other.ask(f"managed({MIB})") == 0
    done = cantle.cli("suspend", other.id, code=8)
    assert "has managed memory (cuMemAllocManaged)" in done.stderr
    cantle.cli("resize", other.id, "--gpu", "0.3")
    both = start("--gpus", "1")
    assert both.id


def test_twice(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    cantle.cli("suspend", task.id)
    assert f"task {task.id} is suspended already" in cantle.cli("suspend", task.id, code=8).stderr
    cantle.cli("resume", task.id)
    assert f"task {task.id} is not suspended" in cantle.cli("resume", task.id, code=8).stderr


@pytest.mark.machine("1xA100-40GB", "550.163.01")
def test_an_old_driver_is_refused(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert "driver 550.163.01 is older than 570" in cantle.cli("suspend", task.id, code=8).stderr
    assert task.ask("info()")[1] == 20 * 1024


@pytest.mark.machine("1xA100-40GB:mig", None)
def test_an_instance_is_refused(start):
    cantle, task = start.cantle, start("--mig-profile", "1g.5gb")
    assert "it has a MIG instance" in cantle.cli("suspend", task.id, code=8).stderr


def test_work_that_does_not_end_leaves_the_task_running(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    task.ask("exec('module, kernel = c_void_p(), c_void_p()')")
    assert task.ask("cu.cuModuleLoadData(byref(module), b'image')") == 0
    assert task.ask("cu.cuModuleGetFunction(byref(kernel), module, b'cantle_sim_busy_us_8000000')") == 0
    assert task.ask("cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)") == 0
    held = used(cantle)
    done = cantle.cli("suspend", task.id, "--timeout", "1", code=8)
    assert "runs on" in done.stderr and "CUDA_ERROR_NOT_READY" in done.stderr, done.stderr
    assert used(cantle) == held and task.ask(f"alloc({GIB})")[0] == 0
    cantle.cli("suspend", task.id, "--timeout", "30")
    cantle.cli("resume", task.id)


@pytest.mark.parametrize("whom", ["helper", "command"])
def test_a_death_in_the_middle_is_undone(start, whom):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert task.ask(f"alloc({3 * GIB})")[0] == 0
    held = used(cantle)
    cantle.machine.model("checkpoint_mib_per_s=1024")
    child = cantle.start("suspend", task.id, log="suspend.log")
    wait_until(lambda: helpers(child.pid), 30, "a helper")
    wait_until(lambda: cantle.machine.checkpoints(), 30, "a lock")
    os.kill(helpers(child.pid)[0] if whom == "helper" else deepest(child.pid), signal.SIGKILL)
    child.wait(timeout=60)
    wait_until(lambda: used(cantle) == held and not cantle.machine.checkpoints(), 60, lambda: (used(cantle), cantle.machine.checkpoints()))
    wait_until(lambda: lease(cantle, task)["state"] == "running", 60, lambda: lease(cantle, task))
    assert task.ask(f"alloc({GIB})")[0] == 0
    cantle.cli("suspend", task.id)
    cantle.cli("resume", task.id)


def descendants(pid):
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            try:
                fields = open(f"/proc/{each}/stat").read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found += [int(each), *descendants(int(each))]
    return found


def words_of(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read().split("\0")
    except OSError:
        return []


def helpers(pid):
    return [each for each in descendants(pid) if "__checkpoint" in words_of(each)]


def deepest(pid):
    """The process of `cantle suspend` itself."""
    return [each for each in [pid, *descendants(pid)] if words_of(each)[1:2] == ["suspend"]][-1]


def test_a_task_that_ends_while_it_is_suspended_leaves_nothing(start):
    cantle, task = start.cantle, start("--gpu", "0.5")
    assert task.ask(f"alloc({GIB})")[0] == 0
    cantle.cli("suspend", task.id)
    task.child.send_signal(signal.SIGKILL)
    task.child.wait()
    pid = lease(cantle, task)["pids"][0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: cantle.json("ps") == [], 60, lambda: cantle.json("ps"))
    assert used(cantle) == [0, 0] and cantle.machine.checkpoints() == []


def test_a_slice_grows_and_shrinks_while_the_task_runs(start):
    cantle, task = start.cantle, start("--gpu", "0.25")
    assert task.ask("info()")[1] == 10 * 1024
    assert "0.5 of GPU 0" in cantle.cli("resize", task.id, "--gpu", "0.5").stderr
    assert task.ask("info()")[1] == 20 * 1024
    assert task.ask(f"alloc({15 * GIB})")[0] == 0
    row = lease(cantle, task)
    assert row["memory_limit_bytes"] == 20 * GIB and row["milli"] == 500
    done = cantle.cli("resize", task.id, "--gpu", "0.25", code=6)
    assert "it uses 15." in done.stderr, done.stderr
    assert task.ask("info()")[1] == 20 * 1024
    neighbor = start("--gpu", "0.5")
    assert lease(cantle, neighbor)["gpu"] == 0
    done = cantle.cli("resize", task.id, "--gpu-memory", "24Gi", code=6)
    assert "GPU 0 has 20 GiB left by its other tasks" in done.stderr, done.stderr
    cantle.cli("resize", task.id, "--gpu-memory", "16Gi")
    assert task.ask("info()")[1] == 16 * 1024 and task.ask(f"alloc({GIB})")[0] == 2
    cantle.cli("resize", neighbor.id, "--gpu", "0.6")
    assert neighbor.ask("info()")[1] == 24 * 1024
    for size, text in (("1", "a slice is less than GPU 0"), ("0", "0")):
        assert text in cantle.cli("resize", task.id, "--gpu", size, code=None).stderr
    whole = start("--gpus", "1")
    assert "it has a whole GPU" in cantle.cli("resize", whole.id, "--gpu", "0.5", code=8).stderr


def gpu_seconds(cantle, task):
    return sum(line["gpu_seconds"] for line in cantle.json("usage", "--by", "task") if line["task"] == task)


def test_the_task_of_an_agent_makes_room_for_another_one(make_cantle, tmp_path):
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "whole=1", "--parked-memory", "4Gi")
    done = tmp_path / "done"
    first = cantle.submit("whole", *hold_until(done, "--at-most", str(GIB)))
    cantle.wait_state(first, "in_progress")
    wait_until(lambda: used(cantle)[0] > GIB, 60, lambda: used(cantle))
    urgent = cantle.submit("whole", *FILL, "--at-most", str(2 * GIB))
    assert cantle.cli("suspend", first, "--parked-memory", "1Gi", code=6)
    cantle.cli("suspend", first)
    cantle.wait_state(urgent, "completed")
    wait_until(lambda: "suspended since" in (cantle.task(first)["reason"] or ""), 60, lambda: cantle.task(first))
    assert cantle.task(first)["state"] == "in_progress" and "cantle resume" in cantle.cli("why", first).stdout
    assert used(cantle) == [0]
    # Nothing is added to its account while it has no GPU.
    had = gpu_seconds(cantle, first)
    time.sleep(1)
    assert gpu_seconds(cantle, first) == had > 0 and cantle.task(first)["milli"] == 0
    cantle.cli("resume", first)
    wait_until(lambda: cantle.task(first)["milli"] == 1000, 60, lambda: cantle.task(first))
    assert gpu_seconds(cantle, first) > had
    wait_until(lambda: cantle.task(first)["reason"] is None, 60, lambda: cantle.task(first))
    done.touch()
    assert cantle.wait_state(first, "completed", "failed")["state"] == "completed"
    assert "suspended: 1." in cantle.output(first)


def test_the_budget_of_an_agent_holds(make_cantle):
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "half=0.5", "--parked-memory", "0G")
    task = cantle.submit("half", "sleep", "300")
    cantle.wait_state(task, "in_progress")
    assert "0 B of 0 B for parked memory are free" in cantle.cli("suspend", task, code=6).stderr
    assert "0 B of 1 GiB" not in cantle.cli("suspend", task, "--parked-memory", "1Gi").stderr
    wait_until(lambda: "suspended since" in (cantle.task(task)["reason"] or ""), 60, lambda: cantle.task(task))
    cantle.cli("stop", task)
    cantle.wait_state(task, "stopped", "failed")
    assert cantle.json("ps") == []


def test_an_agent_that_begins_anew_finds_its_suspended_task(make_cantle, tmp_path):
    cantle = make_cantle("1xA100-40GB")
    port, done = own_port(), tmp_path / "done"
    up = cantle.up("--queue", "half=0.5", "--keep-tasks", port=port)
    task = cantle.submit("half", *hold_until(done, "--at-most", str(GIB)))
    cantle.wait_state(task, "in_progress")
    wait_until(lambda: used(cantle)[0] > GIB, 60, lambda: used(cantle))
    cantle.cli("suspend", task)
    up.send_signal(signal.SIGKILL)
    up.wait()
    assert used(cantle) == [0]
    cantle.up("--queue", "half=0.5", "--keep-tasks", port=port)
    wait_until(lambda: "suspended since" in (cantle.task(task)["reason"] or ""), 60, lambda: cantle.task(task))
    cantle.cli("resume", task)
    done.touch()
    assert cantle.wait_state(task, "completed", "failed")["state"] == "completed"
