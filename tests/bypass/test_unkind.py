"""Behavior in which a real driver is less forgiving than the simulated one. A library over the simulated driver (unkind.c) simulates it."""

import shutil
import subprocess
import sys
import time

import pytest

from conftest import CANTLE, CONTEXT, HERE, LIBCUDA, LIMIT, Machine, assert_held_to_its_slice, assert_not_held

CHUNK = 64 << 20
TAKES = ["green_stream", "green_stream_old", "upload", "pool_in_steps"]
# Calls that can't be accounted for, with the error code.
CANT = {"managed_pool": 801}


@pytest.fixture
def machine(machine, tmp_path):
    """Its driver's library is replaced by the unkind one, which needs the simulated one."""
    inner, stub, wrapper = (tmp_path / name for name in ("inner.so", "stub.so", "unkind.so"))
    shutil.copy(machine.path(LIBCUDA), inner)
    empty = ["gcc", "-shared", "-o", stub, "-x", "c", "/dev/null", f"-Wl,-soname,{inner}"]
    build = ["gcc", "-shared", "-fPIC", "-w", f'-DINNER="{inner}"', "-o", wrapper, HERE / "unkind.c"]
    for command in (empty, [*build, "-Wl,--no-as-needed", stub, "-ldl", "-Wl,-soname,libcuda.so.1"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    subprocess.run(machine.command("mount", "--bind", wrapper, LIBCUDA), check=True)
    return machine


def start(machine, way, limit=LIMIT):
    return machine.start([sys.executable, HERE / "unkind.py", way, LIMIT], limit, env={"UNKIND": way})


@pytest.mark.parametrize("way", TAKES)
def test_is_held_to_the_slice(machine, way):
    assert_held_to_its_slice(start(machine, way), machine)


@pytest.mark.parametrize("way", [*TAKES, *CANT])
def test_is_not_outside(machine, way):
    assert_not_held(start(machine, way, None))


@pytest.mark.parametrize("way", CANT)
def test_what_cant_be_accounted_for_is_refused(machine, way):
    running = start(machine, way)
    record = running.record()
    assert (record["granted"], record["refused"]) == (0, CANT[way]), record
    assert machine.used() == CONTEXT
    running.end()


@pytest.mark.parametrize("machine", ["2xA100-40GB"], indirect=True)
def test_a_stream_that_may_be_on_either_gpu_is_refused(machine):
    """A program that sees two, and a driver that does not say which one a green context is on."""
    command = [CANTLE, "run", "--gpus", "2", "--", sys.executable, HERE / "unkind.py", "green_stream_old", LIMIT]
    running = machine.start(command, None, env={"UNKIND": "green_stream_old"})
    record = running.record()
    assert (record["granted"], record["refused"]) == (0, 201), record
    running.end()


def ended_in_time(running, why):
    deadline = time.monotonic() + 60
    while not running.has_line():
        if time.monotonic() > deadline:
            running.child.kill()
            pytest.fail(why)
    record = running.record()
    assert running.end() == 0
    return record


def test_no_lock_is_held_while_the_driver_allocates(machine):
    ended_in_time(start(machine, "growth_waits"), "each thread waits for the other")


def test_no_lock_is_held_while_the_driver_calls_back(machine):
    """A subscriber of CUPTI is called at each call of the driver, also at those of the filter."""
    record = ended_in_time(start(machine, "calls_back"), "the callback waits for its own thread")
    # What the stream's pool keeps apart, everything has been given back.
    assert record["free"] == LIMIT - CONTEXT, record


def test_a_pool_may_be_destroyed_before_its_memory_is_free(machine):
    record = ended_in_time(start(machine, "pool_destroyed_first"), "it hangs")
    assert record["free"] == LIMIT - CONTEXT, record


def test_no_lock_is_held_while_the_driver_calls_back_control(machine):
    ended_in_time(start(machine, "calls_back", None), "without a slice nothing waits")


def test_memory_with_the_handle_of_released_memory_is_charged(machine):
    running = start(machine, "handles_reused")
    record = running.record()
    assert record["free"] == LIMIT - machine.used() == LIMIT - CONTEXT - CHUNK, record
    assert running.end() == 0


def test_a_pool_that_went_with_its_context_is_not_asked(machine):
    running = start(machine, "reset_takes_pools")
    record = running.record()
    assert record["free"] == LIMIT - machine.used() == LIMIT - CONTEXT, record
    assert running.end() == 0


def test_a_capture_in_a_full_slice_is_recorded(machine):
    running = start(machine, "capture")
    record = running.record()
    assert record["refused"] == 2 and machine.used() <= LIMIT
    assert running.end() == 0


def test_memory_that_a_descriptor_keeps_stays_charged(machine):
    """Until the descriptor is closed, whether a handle or a mapping was the last of it."""
    running = machine.start([sys.executable, HERE / "unkind.py", "exported_and_kept", LIMIT], LIMIT)
    record = running.record()
    assert record["granted"] == (LIMIT - CONTEXT) // CHUNK * CHUNK and record["refused"] == 2, record
    assert machine.used() <= LIMIT
    assert running.end() == 0


def test_memory_that_the_driver_keeps_is_charged(machine):
    """No hook sees how long it lives: the watchdog does, from the driver's own figures."""
    running = machine.start([sys.executable, HERE / "unkind.py", "exported", LIMIT], LIMIT, env={"UNKIND": "exported"})
    record = running.record()
    assert record["granted"] == (LIMIT * 3 // 4 - CONTEXT) // CHUNK * CHUNK and record["refused"] == 2, record
    assert machine.used() <= LIMIT
    assert running.end() == 0


def test_more_of_it_than_the_slice_has_is_not_borne(machine):
    program = [sys.executable, HERE / "unkind.py", "exported_without_end", LIMIT]
    running = machine.start(program, LIMIT, env={"UNKIND": "exported"})
    assert running.child.wait(timeout=120) == 137
    assert "its limit is 4 GiB" in running.child.stderr.read()
    assert machine.used() == 0


@pytest.fixture
def new_machine(tmp_path):
    """With a driver of CUDA 13, and nothing over the simulated one."""
    machine = Machine(tmp_path, driver="580.95.05")
    yield machine
    machine.stop()


@pytest.mark.parametrize("way, code", [("managed_pool", 801), ("host_pool", 0), ("real_green_stream", 2)])
def test_pools_and_green_contexts_of_a_new_driver(new_machine, way, code):
    """Without any limit a managed pool takes GPU memory; host memory is not the slice's; a green context's stream is charged."""
    running = new_machine.start([sys.executable, HERE / "unkind.py", way, LIMIT], LIMIT)
    record = running.record()
    assert record["refused"] == code and new_machine.used() <= LIMIT, record
    assert (record["granted"] >= 2 * LIMIT) == (way == "host_pool"), record
    assert running.end() == 0
    running = new_machine.start([sys.executable, HERE / "unkind.py", way, LIMIT], None)
    assert running.record()["granted"] >= 2 * LIMIT
    assert (new_machine.used() >= 2 * LIMIT) == (way != "host_pool")
    running.end()
