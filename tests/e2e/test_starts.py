"""`cantle tasks --start`: when waiting tasks start, said as an estimate with its basis (docs/guide/day.md)."""

import re
import time
from datetime import datetime

from conftest import wait_until
from test_notebook import as_user, browser

# All GPUs of the machine of a test.
ALL = 3


def starts(cantle):
    return {task["id"]: task for task in cantle.json("tasks", "--start")}


def seconds_from_now(task):
    return datetime.fromisoformat(task["estimated_start"]).timestamp() - time.time()


def test_time_limits_say_when_a_task_starts_at_the_latest(cantle):
    cantle.up("--queue", "whole=1", "half=0.5")
    for hours in (3, 1, 2):
        task = cantle.submit("whole", "sleep", "3600", flags=["--time", f"{hours}h"])
        cantle.wait_state(task, "in_progress")
    first, second = (cantle.submit("whole", "sleep", "60", flags=["--time", "90m", "--name", name]) for name in ("first", "second"))
    unlimited = cantle.submit("whole", "sleep", "60")
    behind = cantle.submit("whole", "sleep", "60", flags=["--time", "1h"])
    other = cantle.submit("half", "sleep", "60", flags=["--time", "1h"])
    found = starts(cantle)
    # The shortest of the running ones, then the next one; the half waits for the third GPU.
    for task, hours in ((first, 1), (second, 2), (unlimited, 2.5)):
        assert abs(seconds_from_now(found[task]) - hours * 3600) < 60, (hours, found[task])
        assert found[task]["estimate_basis"] == "time limits of the tasks before it, so at the latest"
    # A task without a limit is in front of it on one GPU, but the others become free.
    assert abs(seconds_from_now(found[behind]) - 3 * 3600) < 60, found[behind]
    assert found[other]["estimated_start"], found[other]
    table = cantle.cli("tasks", "--start").stdout
    assert "ESTIMATED START" in table and re.search(r"first .* in (59m|60m|1h) ", table), table
    # Only what waits is listed, and what is named.
    assert {task["state"] for task in found.values()} == {"queued"} and len(found) == 5
    assert [task["id"] for task in cantle.json("tasks", "--start", "second")] == [second]


def test_without_limits_former_runs_are_the_basis_or_it_is_unknown(cantle):
    cantle.up("--queue", "whole=1")
    running = [cantle.submit("whole", "sleep", "3600") for _ in range(ALL)]
    for task in running:
        cantle.wait_state(task, "in_progress")
    waiting = cantle.submit("whole", "sleep", "60")
    (found,) = starts(cantle).values()
    assert found["id"] == waiting and found["estimated_start"] is None
    assert found["estimate_basis"].startswith("unknown: a task that it waits for has no time limit")
    assert re.search(r" unknown +unknown: ", cantle.cli("tasks", "--start").stdout)
    # Four runs of this queue, three of which end as they should.
    for task in running:
        cantle.cli("stop", task)
    cantle.cli("stop", waiting)
    former = [cantle.submit("whole", "sleep", "8") for _ in range(ALL)]
    for task in former:
        cantle.wait_state(task, "completed")
    for task in [cantle.submit("whole", "sleep", "3600") for _ in range(ALL)]:
        cantle.wait_state(task, "in_progress")
    waiting = cantle.submit("whole", "sleep", "60")
    found = starts(cantle)[waiting]
    assert found["estimate_basis"] == "former runs of the queues" and 0 < seconds_from_now(found) < 10, found
    # They run longer than all former runs by now.
    wait_until(lambda: starts(cantle)[waiting]["estimated_start"] is None, 30, lambda: starts(cantle)[waiting])


def test_what_waits_for_something_else_has_no_estimate(cantle):
    cantle.up("--queue", "whole=1")
    assert cantle.json("tasks", "--start") == []
    cantle.cli("quota", "set", "vision", "--gpu", "3")
    _, keys = browser(cantle, "anna", "--role", "member", "--project", "vision")
    cantle.cli("users", "set", "anna", "--gpus", "1")
    first, second = (as_user(cantle, keys, "submit", "--queue", "whole", "--project", "vision", "--", "sleep", "3600") for _ in range(2))
    cantle.wait_state(first, "in_progress")
    # Two GPUs are free, and its user may hold one.
    wait_until(lambda: "quota" in starts(cantle)[second]["estimate_basis"], 30, lambda: starts(cantle))
    assert starts(cantle)[second]["estimated_start"] is None
    refused = cantle.cli("tasks", "--start", "--status", "queued", code=2)
    assert "--status" in refused.stderr
