"""The driver's figures of processes are all that the watchdog has. Here they are as unkind as they may be: processes are in MPS's list only,
or what is shown of them is a second old."""

import sys

from conftest import CONTEXT, HERE, LIMIT, MIB
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
