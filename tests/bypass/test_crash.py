"""Processes of one slice die at any instant; the others go on, the limit holds, and nothing stays charged."""

import os
import sys

import pytest

from conftest import CONTEXT, HERE, LIMIT, assert_held_to_its_slice, assert_not_held

KILLS = int(os.environ.get("CANTLE_STRESS_KILLS", "200"))


def test_kills_at_random(machine, programs):
    def used():
        """Bytes in use on the GPU. The simulated driver learns of a death when it is asked; a process that dies while it is being
        asked counts next to its successor. So a figure over the limit is looked at again: a real one stays."""
        return next((figure for figure in (machine.used() for _ in range(5)) if figure <= LIMIT), None) or machine.used()

    running = machine.start([programs / "churn", KILLS, LIMIT - CONTEXT])
    highest = looks = 0
    while running.child.poll() is None and not running.has_line():
        highest, looks = max(highest, used()), looks + 1
    record = running.record()
    assert looks > 100 and highest > LIMIT // 2, f"{looks} looks, at most {highest >> 20} MiB: this shows nothing"
    assert highest <= LIMIT, f"{highest - LIMIT} bytes over the limit"
    # All others are dead. What is charged is the newcomer's context, and that is what the driver has too.
    assert LIMIT - record["free"] == used() == CONTEXT
    running.end()
    assert used() == 0


SCRIPTS = ["an_exit_and_a_refusal", "two_exits_and_a_start", "two_kills_and_a_start"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_limit_outlives_its_processes(machine, script):
    assert_held_to_its_slice(machine.start([sys.executable, HERE / "members.py", script, LIMIT]), machine)


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_a_slice_there_is_none(machine, script):
    assert_not_held(machine.start([sys.executable, HERE / "members.py", script, LIMIT], slice_bytes=None))
