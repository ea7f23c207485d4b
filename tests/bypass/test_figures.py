"""The driver's figures of processes are all that the watchdog has. Here they are as unkind as they may be: processes are in MPS's list only,
what is shown of them is a second old, or nothing is shown of them (WSL, vGPU, confidential computing)."""

import json
import sys
import time

import pytest

from conftest import CANTLE, CONTEXT, HERE, LIMIT, MIB
from machine import STATE
from test_hidden import Program, wait_until_charged


def is_like(machine, row):
    machine.path(STATE / "sim/model").write_text(row)


def test_clients_of_mps_are_seen(machine):
    is_like(machine, "mps=1")
    program = Program(machine)
    program("heap 40")
    wait_until_charged(machine, program)
    assert program("fill")["granted"] == LIMIT - CONTEXT - 40 * MIB
    program.tell("heap 1500")
    assert program.running.child.wait(timeout=120) == 137
    assert "its limit is 4 GiB" in program.running.child.stderr.read()
    assert machine.used() == 0


def test_an_honest_program_is_not_ended_for_old_figures(machine):
    """Memory that it has freed and taken again is counted twice for a while if the figures are old: it may be refused then,
    which is safe, and continues."""
    is_like(machine, "figures_lag_ms=1000")
    running = machine.start([sys.executable, HERE / "waves.py", 6])
    record = running.record()
    assert record["waves"] > 0 and machine.used() <= LIMIT
    assert running.end() == 0


def test_hidden_memory_is_found_with_old_figures(machine):
    is_like(machine, "figures_lag_ms=1000")
    program = Program(machine)
    program("heap 40")
    wait_until_charged(machine, program)
    program.tell("heap 9000")
    assert program.running.child.wait(timeout=120) == 137
    assert machine.used() == 0


# Rows without a figure, and no rows.
WITHOUT_FIGURES = ["no_figures=1", "no_figures=2"]
CAPACITY = 40960 * MIB


def messages_of(program):
    """What the task's user has read when the task has ended."""
    program.running.child.stdin.close()
    program.running.child.wait(timeout=120)
    return program.running.child.stderr.read()


@pytest.mark.parametrize("row", WITHOUT_FIGURES)
def test_a_task_learns_that_the_watchdog_has_no_figures(machine, row):
    """Once, and nothing is held against a program that stays within its slice, whose modules are seen by nobody."""
    is_like(machine, row)
    program = Program(machine)
    program("heap 40")
    program("module 300")
    time.sleep(4)
    assert program("fill")["granted"] == LIMIT - CONTEXT
    (slice_here,) = json.loads(machine.start([CANTLE, "--output", "json", "ps"], None).child.communicate(timeout=120)[0])["items"]
    assert slice_here["memory_used_bytes"] == LIMIT, "the filter's count"
    text = messages_of(program)
    assert program.running.child.returncode == 0, text
    assert text.count("the driver does not report the memory of each process") == 1, text
    assert "no slice" not in text and "its limit is" not in text, text


@pytest.mark.parametrize("row", WITHOUT_FIGURES)
def test_the_device_judges_where_no_process_has_a_figure(machine, row):
    """30 GiB past the filter: nobody knows whose they are, so nobody is ended. They are reported, and nobody else gets them."""
    is_like(machine, row)
    neighbor = machine.start([sys.executable, HERE / "holder.py", 100])
    assert neighbor.child.stdout.readline() == "holding\n"
    program = Program(machine)
    program("heap 30000")
    assert machine.used() == 2 * CONTEXT + 30100 * MIB
    time.sleep(3)
    refused = machine.start(["true"], CAPACITY - 6 * LIMIT)
    assert refused.child.wait(timeout=120) == 6, refused.child.stderr.read()
    text = messages_of(program)
    assert program.running.child.returncode == 0, text
    assert text.count("29.29 GiB of GPU 0 are in use and no slice accounts for them") == 1, text
    neighbor.child.stdin.close()
    assert neighbor.child.wait(timeout=120) == 0
    assert "no slice accounts for them" in neighbor.child.stderr.read()
    assert machine.start(["true"], CAPACITY - LIMIT).child.wait(timeout=120) == 0


def doctor(machine):
    done = machine.start([CANTLE, "doctor"], None).child
    out, err = done.communicate(timeout=120)
    return done.returncode, out, err


def test_doctor_names_a_gpu_whose_processes_are_not_listed(machine):
    """NVML_ERROR_NOT_SUPPORTED. Nothing shows what others hold of such a GPU, so it takes no task."""
    machine.faults("nvmlDeviceGetComputeRunningProcesses_v3 error=3")
    try:
        code, out, _ = doctor(machine)
        assert code == 7 and out.count("GPU 0: the driver does not list its processes, so it takes no task") == 1, out
        refused = machine.start(["true"], LIMIT).child
        assert refused.wait(timeout=120) != 0 and "takes no new tasks" in refused.stderr.read()
    finally:
        machine.faults(None)


def test_doctor_says_whether_the_watchdog_has_figures(machine):
    """Also of a GPU that nobody uses."""
    _, out, _ = doctor(machine)
    assert "watchdog" in out and "does not report" not in out, out
    for row in WITHOUT_FIGURES:
        is_like(machine, row)
        for running in (None, Program(machine)):
            if running:
                running("heap 40")
            _, out, err = doctor(machine)
            assert out.count("GPU 0: the driver does not report the memory of each process") == 1, (row, out)
            assert "‼ watchdog: " in err, err
            if running:
                running.running.end()
