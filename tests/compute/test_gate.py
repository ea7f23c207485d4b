"""Refusals, reports, and the behavior after the death of the arbiter."""

import json
import os
import signal
import subprocess
import time

import pytest
from tenants import CANTLE


@pytest.mark.parametrize(
    "options, says",
    [
        (["--compute", "fast"], '"fast" is not a compute mode; write even, fair or strict'),
        (["--compute", "fair", "--compute-request", "0"], "--compute-request 0 is not a part of one GPU"),
        (["--compute", "fair", "--compute-request", "1.5"], "--compute-request 1.5 is not a part of one GPU"),
        (["--compute", "fair", "--compute-limit", "0"], "--compute-limit 0 is not a part of one GPU"),
        (["--compute", "fair", "--compute-limit", "1.5"], "--compute-limit 1.5 is not a part of one GPU"),
        (["--compute", "fair", "--compute-limit", "0.3"], "the compute limit 0.3 is below the compute request 0.5"),
        (["--compute", "strict", "--compute-limit", "0.7"], "means that the limit is the request (0.5), not 0.7"),
        (["--compute-request", "0.3"], "have no meaning with --compute even"),
        (["--compute", "strict", "--isolation", "mig"], "a MIG instance has its own part of the hardware"),
    ],
)
def test_bad_input_is_refused(box, options, says):
    command = box.command(CANTLE, "run", "--gpu", "0.5", *options, "--", "true")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr, (done.returncode, done.stderr)


def test_several_gpus_and_profiles_are_refused(box):
    for amount, says in [(["--gpus", "2"], "one GPU only, not for 2"), (["--mig-profile", "2g.10gb"], "for shared GPUs")]:
        command = box.command(CANTLE, "run", *amount, "--compute", "fair", "--", "true")
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and says in done.stderr, (done.returncode, done.stderr)


def test_without_a_mount_namespace_it_is_refused(box):
    """An ordinary user's task would run with a preloaded library, which is no gate."""
    box.machine.path("/tmp").mkdir(exist_ok=True)
    command = box.command(CANTLE, "run", "--gpu", "0.5", "--compute", "fair", "--", "true", user=65534)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "mount namespace" in done.stderr, (done.returncode, done.stderr)


def test_limits_show_what_the_task_has(box):
    words = ["run", "--gpu", "0.4", "--compute", "fair", "--compute-limit", "0.6", "--", CANTLE, "limits", "-o", "json"]
    done = subprocess.run(box.command(CANTLE, *words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [limit] = json.loads(done.stdout)["items"]
    compute = limit["compute"]
    assert (compute["mode"], compute["request_milli"], compute["limit_milli"]) == ("fair", 400, 600)


def test_a_request_above_the_fraction_counts(box):
    """Two that want 0.6 of the compute time do not fit on one GPU, however little memory they take; 0.4 next to one does."""
    holder = box.tenant("0.1", "async", 200, more=["--compute-request", "0.6"])
    for request, fits in [("0.6", False), ("0.4", True)]:
        words = [CANTLE, "run", "--gpu", "0.1", "--compute", "fair", "--compute-request", request, "--", CANTLE, "limits", "-o", "json"]
        other = subprocess.Popen(box.command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if fits:
            out, errors = other.communicate(timeout=60)
            assert json.loads(out)["items"][0]["compute"]["request_milli"] == 400, errors
        else:
            line = other.stderr.readline()
            assert "needs 0.1 GPU with 0.6 of its compute time, free 0.4 of GPU 0" in line
            other.terminate()
            other.communicate(timeout=60)
    assert holder.process.poll() is None


REFUSED = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
begin = time.monotonic()
codes = {cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None) for _ in range(200)}
print(sorted(codes), time.monotonic() - begin)
"""


def test_a_launch_that_the_driver_refuses_waits_for_no_turn(box):
    """No context is current: a program that tries it in a loop waited 20 ms for each launch."""
    command = box.command(CANTLE, "run", "--gpu", "0.5", "--compute", "fair", "--", "python3", "-c", REFUSED)
    done = subprocess.run(command, capture_output=True, text=True)
    codes, seconds = done.stdout.rsplit(" ", 1)
    # CUDA_ERROR_INVALID_CONTEXT. With a turn for each it took 4 s.
    assert codes == "[201]" and float(seconds) < 1, (done.stdout, done.stderr)


def test_even_mounts_no_gate(box):
    """Without a request there is no cost: launches are not hooked."""
    for compute, expected in [("even", {"limits", "usage"}), ("fair", {"limits", "usage", "grant", "launches"})]:
        command = box.command(CANTLE, "run", "--gpu", "0.5", "--compute", compute, "--", "sh", "-c", "ls /run/cantle/slice")
        done = subprocess.run(command, capture_output=True, text=True)
        assert set(done.stdout.split()) == expected, done.stderr


def test_a_task_may_not_open_its_own_gate(box):
    script = "echo x > /run/cantle/slice/grant"
    command = box.command(CANTLE, "run", "--gpu", "0.5", "--compute", "strict", "--", "sh", "-c", script)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "Read-only" in done.stderr


def arbiter(box):
    """The process that holds the lock."""
    file = box.machine.path("/run/cantle/node/compute.lock").stat()
    # Other machines of a test run have files with the same number on their own file systems.
    lock = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in open("/proc/locks"):
        fields = line.split()
        # Behind an arrow are the waiting slices.
        if "->" not in fields and fields[5] == lock:
            return int(fields[4])
    return None


def wait_for_arbiter(box, other_than=None):
    """The processes of the slices take it from each other's dead hands."""
    until = time.monotonic() + 60
    while (found := arbiter(box)) in (None, other_than):
        assert time.monotonic() < until, "nobody arbitrates"
        time.sleep(0.05)
    return found


def test_a_killed_arbiter_has_a_successor(box):
    first = box.tenant("0.2", "async", 200, number=1)
    tenants = [box.tenant("0.2", "async", 200), box.tenant("0.6", "async", 200)]
    box.had(tenants, 1)
    dead = wait_for_arbiter(box)
    os.kill(dead, signal.SIGKILL)
    first.end()
    wait_for_arbiter(box, other_than=dead)
    box.had(tenants, 1)
    survivors = [tenant for tenant in tenants if tenant.process.poll() is None]
    if len(survivors) == 2:
        box.eventually(lambda shares, _: shares[0] == pytest.approx(0.25, abs=0.05), tenants)


def test_a_stopped_arbiter_stops_nobody(box):
    """Its heartbeat is old, so every gate counts as open, and the driver divides."""
    tenants = [box.tenant("0.1", "async", 200), box.tenant("0.9", "async", 200)]
    box.had(tenants, 1)
    stopped = wait_for_arbiter(box)
    os.kill(stopped, signal.SIGSTOP)
    try:
        box.eventually(lambda shares, _: shares[0] == pytest.approx(0.5, abs=0.1), tenants)
    finally:
        os.kill(stopped, signal.SIGCONT)
    box.eventually(lambda shares, _: shares[0] == pytest.approx(0.1, abs=0.05), tenants)


def test_nobody_waits_for_a_killed_process(box):
    for _ in range(5):
        dead, other = box.tenant("0.5", "async", 5000), box.tenant("0.5", "async", 200)
        box.had([other], 0.5)
        dead.end()
        box.had([other], 0.3)
        box.eventually(lambda _, part: part >= 0.8, [other], seconds=1)
        other.end()
