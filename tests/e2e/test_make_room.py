"""Tasks that make room for others by a suspension: nothing runs twice, and what cannot be suspended is queued again."""

import signal
import sys

import pytest

from conftest import hold_until, own_port, wait_until
from test_quotas import GIB, hold, holders, kinds, states, wait_reason
from test_suspend import TASK


def submit(cantle, count, command, project, *flags):
    return [cantle.submit("q", *command, flags=("--gpu", "0.5", "--project", project, *flags)) for _ in range(count)]


def is_out(cantle, task):
    return (cantle.task(task)["reason"] or "").startswith("suspended since")


@pytest.mark.parametrize("place", ["queue", "project"])
def test_lent_gpus_come_back_and_no_work_is_lost(cantle, tmp_path, place):
    cantle.up("--queue", "q=task")
    if place == "queue":
        assert "makes room for others by suspend,requeue" in cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue").stderr
        assert "suspend,requeue" in cantle.cli("-o", "wide", "queues").stdout
    vision = submit(cantle, 6, hold(1, tmp_path / "vision"), "vision/a")
    for task in vision:
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: holders(cantle) == [6, 0], 60, lambda: holders(cantle))
    speech = submit(cantle, 3, hold(2, tmp_path / "speech"), "speech")
    ways = ("--preempt", "suspend,requeue") if place == "project" else ()
    cantle.cli("quota", "set", "vision", "--gpu", "1.5", *ways)
    cantle.cli("quota", "set", "speech", "--gpu", "1.5")
    for task in speech:
        cantle.wait_state(task, "in_progress")
    # The driver counts nothing of the three that made room, and they are where they were.
    wait_until(lambda: holders(cantle) == [3, 3], 60, lambda: holders(cantle))
    out = [task for task in vision if is_out(cantle, task)]
    assert len(out) == 3 and states(cantle, vision) == ["in_progress"] * 6
    assert sum(row["state"] == "suspended" for row in cantle.json("ps")) == 3
    for task in out:
        assert "reclaimed by project speech for task" in cantle.task(task)["reason"]
        assert "1." in cantle.output(task) and "are in host memory" in cantle.output(task)
    wait_reason(cantle, out[0], "it goes on when there is room: needs")
    (project,) = [one for one in cantle.json("projects") if one["name"] == "vision"]
    assert project["allocated_milli"] == 1500, "what is out holds nothing"

    (tmp_path / "speech").touch()
    for task in speech:
        cantle.wait_state(task, "completed")
    wait_until(lambda: holders(cantle) == [6, 0], 60, lambda: holders(cantle))
    wait_until(lambda: not any(is_out(cantle, task) for task in vision), 60, lambda: states(cantle, vision))
    (tmp_path / "vision").touch()
    for task in vision:
        cantle.wait_state(task, "completed")
    assert [kinds(cantle, task).count("place") for task in vision] == [1] * 6, "each ran once"
    assert sum(kinds(cantle, task).count("reclaim") for task in vision) == 3
    assert cantle.json("ps") == []


def test_what_cannot_be_suspended_is_queued_again(make_cantle, tmp_path):
    """Managed memory: the driver cannot suspend it."""
    cantle = make_cantle("1xA100-40GB")
    cantle.up("--queue", "q=task")
    cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue")
    cantle.cli("quota", "set", "a", "--gpu", "1")
    uses, end = tmp_path / "uses", tmp_path / "end"
    program = f"""{TASK.split("for line")[0]}
assert managed({GIB}) == 0
open({str(uses)!r}, "w").close()
while not os.path.exists({str(end)!r}): time.sleep(0.1)
"""
    low = cantle.submit("q", sys.executable, "-c", program, flags=("--gpus", "1", "--project", "a"))
    cantle.wait_state(low, "in_progress")
    wait_until(uses.exists, 60, lambda: cantle.output(low))
    high = cantle.submit("q", "true", flags=("--gpus", "1", "--project", "a", "--priority", "5"))
    cantle.wait_state(high, "completed")
    wait_until(lambda: kinds(cantle, low).count("place") == 2, 60, lambda: kinds(cantle, low))
    assert "it is not suspended" in cantle.cli("logs", low, "--run", "1").stdout
    assert "managed memory" in cantle.cli("logs", low, "--run", "1").stdout
    end.touch()
    cantle.wait_state(low, "completed")


@pytest.mark.parametrize("driver, moves", [("570.86.15", False), ("580.95.05", True)])
def test_it_comes_back_where_the_driver_can_restore_it(make_cantle, tmp_path, driver, moves):
    """Drivers before 580 restore on the same GPU only."""
    cantle = make_cantle("2xA100-40GB", driver=driver)
    cantle.up("--queue", "q=task")
    cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue")
    cantle.cli("quota", "set", "a", "--gpu", "2")
    flags = ("--gpus", "1", "--project", "a")
    ends = [tmp_path / f"end{n}" for n in range(3)]
    low = [cantle.submit("q", *hold(1, end), flags=flags) for end in ends[:2]]
    for task in low:
        cantle.wait_state(task, "in_progress")
    wait_until(lambda: holders(cantle) == [2, 0], 60, lambda: holders(cantle))
    high = cantle.submit("q", *hold_until(ends[2], "--at-most", 2 * GIB), flags=(*flags, "--priority", "5"))
    cantle.wait_state(high, "in_progress")
    wait_until(lambda: sum(is_out(cantle, task) for task in low) == 1, 60, lambda: [cantle.task(task) for task in low])
    (out,) = [task for task in low if is_out(cantle, task)]
    other = 1 - low.index(out)
    ends[other].touch()
    cantle.wait_state(low[other], "completed")
    if moves:
        wait_until(lambda: not is_out(cantle, out), 60, lambda: cantle.task(out))
        assert holders(cantle) == [1, 1]
    else:
        wait_reason(cantle, out, "it is bound to GPU-")
        assert holders(cantle) == [0, 1]
    ends[2].touch()
    cantle.wait_state(high, "completed")
    wait_until(lambda: holders(cantle) == [1, 0], 60, lambda: holders(cantle))
    ends[1 - other].touch()
    cantle.wait_state(out, "completed")
    assert kinds(cantle, out).count("place") == 1


def test_a_new_agent_brings_back_what_the_dead_one_suspended(make_cantle, tmp_path):
    cantle = make_cantle("1xA100-40GB")
    port, low_ends, high_ends = own_port(), tmp_path / "low", tmp_path / "high"
    up = cantle.up("--queue", "q=task", "--keep-tasks", port=port)
    cantle.cli("queues", "set", "q", "--preempt", "suspend,requeue")
    cantle.cli("quota", "set", "a", "--gpu", "1")
    flags = ("--gpus", "1", "--project", "a")
    low = cantle.submit("q", *hold(1, low_ends), flags=flags)
    cantle.wait_state(low, "in_progress")
    wait_until(lambda: holders(cantle) == [1, 0], 60, lambda: holders(cantle))
    high = cantle.submit("q", *hold_until(high_ends, "--at-most", 2 * GIB), flags=(*flags, "--priority", "5"))
    cantle.wait_state(high, "in_progress")
    wait_until(lambda: holders(cantle) == [0, 1], 60, lambda: holders(cantle))
    up.send_signal(signal.SIGKILL)
    up.wait()
    cantle.up("--queue", "q=task", "--keep-tasks", port=port)
    wait_until(lambda: is_out(cantle, low), 60, lambda: cantle.task(low))
    assert holders(cantle) == [0, 1], "the urgent one goes on"
    high_ends.touch()
    cantle.wait_state(high, "completed")
    wait_until(lambda: holders(cantle) == [1, 0], 60, lambda: holders(cantle))
    low_ends.touch()
    cantle.wait_state(low, "completed")
    assert kinds(cantle, low).count("place") == 1


def test_ways_that_are_none(cantle):
    cantle.up("--queue", "q=task")
    for command in (("queues", "set", "q"), ("quota", "set", "a")):
        for ways in ("suspend", "requeue,suspend", "kill"):
            said = cantle.cli(*command, "--preempt", ways, code=2).stderr
            assert "write suspend,requeue or requeue" in said, said
    assert "no queue" in cantle.cli("queues", "set", "none", "--preempt", "requeue", code=3).stderr
