"""A day's work on one box: how long tasks may run, and which run after which (docs/guide/day.md)."""

import json
import re
import signal
import time

from conftest import own_port, wait_until

# Ends by itself long after each test.
LONG = ["sleep", "300"]


def reason(cantle, task):
    return cantle.task(task)["reason"] or ""


def wait_reason(cantle, task, text, seconds=60):
    wait_until(lambda: text in reason(cantle, task), seconds, lambda: cantle.task(task))


def test_a_task_ends_at_its_time(cantle):
    cantle.up("--queue", "half=0.5")
    # It gets SIGTERM first, and may tidy up.
    tidy = ["sh", "-c", "trap 'echo tidied up; exit 0' TERM; echo runs; sleep 300 & wait"]
    task = cantle.submit("half", *tidy, flags=["--time", "3s"])
    deaf = cantle.submit("half", "sh", "-c", "trap '' TERM; while :; do sleep 1; done", flags=["--time", "2s"])
    free = cantle.submit("half", "sh", "-c", "sleep 6; echo done")
    assert cantle.task(task)["time_limit_s"] == 3
    ended = cantle.wait_state(task, "failed")
    assert ended["reason"] == "its time of 3s is over"
    assert "tidied up" in cantle.output(task) and "its time of 3s is over" in cantle.output(task)
    # One that does not listen is killed after the grace period.
    ended = cantle.wait_state(deaf, "failed")
    assert (ended["reason"], ended["exit_code"]) == ("its time of 2s is over", 137)
    # Negative control: without a limit, nothing ends it.
    assert cantle.wait_state(free, "completed")["exit_code"] == 0
    assert "time_limit_s" not in cantle.task(free)
    assert re.search(r" \d+s / 3s ", cantle.cli("tasks", task).stdout)
    # Only the present run counts.
    cantle.cli("requeue", "--yes", task)
    cantle.wait_state(task, "in_progress")
    cantle.wait_state(task, "failed")
    runs = cantle.json("tasks", "runs", task)
    assert [run["why"] for run in runs] == ["its time of 3s is over"] * 2


def test_who_waits_ends_as_the_tasks_do(cantle):
    cantle.up("--queue", "half=0.5")
    good, bad = (cantle.submit("half", "sh", "-c", f"sleep 1; exit {code}") for code in (0, 3))
    said = cantle.cli("wait", good).stderr
    assert f"{good}: runs on" in said, said
    cantle.cli("wait", good, bad, code=3)
    long = cantle.submit("half", *LONG)
    late = cantle.cli("wait", good, long, "--timeout", "1s", code=1)
    assert "1 of 2 tasks have not ended within 1s" in late.stderr
    assert cantle.task(long)["state"] == "in_progress"
    assert "there is no task" in cantle.cli("wait", "nosuch", code=3).stderr


def test_a_limit_survives_restarts_of_server_and_agent(cantle):
    port = own_port()
    up = cantle.up("--keep-tasks", "--queue", "half=0.5", port=port)
    task = cantle.submit("half", *LONG, flags=["--time", "12s"])
    started = cantle.wait_state(task, "in_progress")["started"]
    up.send_signal(signal.SIGKILL)
    up.wait()
    cantle.up("--keep-tasks", "--queue", "half=0.5", port=port)
    assert cantle.task(task)["state"] == "in_progress", "adopted"
    ended = cantle.wait_state(task, "failed")
    assert (ended["reason"], ended["started"]) == ("its time of 12s is over", started)
    # The time before the restart counted: the limit did not begin again.
    stamp = lambda text: time.mktime(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))  # noqa: E731
    assert 11 <= stamp(ended["ended"]) - stamp(started) <= 20, ended


def test_queues_have_limits_and_managers_extend(cantle):
    cantle.up("--queue", "half=0.5")
    cantle.cli("queues", "set", "half", "--max-time", "2h", "--default-time", "1h")
    assert "1h, at most 2h" in cantle.cli("queues", "-o", "wide").stdout
    refused = cantle.cli("submit", "--queue", "half", "--time", "3h", "--", "true", code=5)
    assert refused.stderr.splitlines()[0] == "cantle: queue half gives tasks at most 2h; this task asks for 3h"
    task = cantle.submit("half", *LONG)
    assert cantle.task(task)["time_limit_s"] == 3600
    cantle.wait_state(task, "in_progress")
    assert "may run 2h from its start" in cantle.cli("extend", task, "1h").stderr
    # A running task ends at its new time.
    cantle.cli("extend", "--less", task, "1h59m58s")
    assert cantle.wait_state(task, "failed")["reason"] == "its time of 2s is over"
    refused = cantle.cli("extend", task, "1h", code=8)
    assert "failed" in refused.stderr
    # A member may shorten what is its own, and extend nothing.
    keys = json.loads(cantle.cli("users", "add", "mia", "--role", "member", "--project", "default", "-o", "json").stdout)
    keys = keys["items"][0] if "items" in keys else keys
    as_mia = ["--access-key", keys["access_key"], "--secret-key", keys["secret_key"]]
    own = cantle.cli(*as_mia, "submit", "--queue", "half", "--project", "default", "--", *LONG).stdout.strip()
    cantle.cli(*as_mia, "extend", "--less", own, "30m")
    assert cantle.task(own)["time_limit_s"] == 1800
    refused = cantle.cli(*as_mia, "extend", own, "30m", code=4)
    assert 'needs the right "manage"' in refused.stderr


def test_a_short_task_starts_past_one_that_waits(cantle):
    """Backfill: the GPU that is kept for a waiting task is used meanwhile by a task that ends before it comes free."""
    cantle.up("--backfill", "--queue", "whole=2", "half=task", "--gpus", "0-1")
    cantle.submit("half", *LONG, flags=["--gpus", "1", "--time", "4m"])
    wait_until(lambda: len([g for g in cantle.json("gpus") if g["slices"]]) == 1, 60, lambda: cantle.json("gpus"))
    waits = cantle.submit("whole", "true")
    wait_reason(cantle, waits, "needs 2 GPUs")
    long = cantle.submit("half", *LONG, flags=["--gpus", "1", "--time", "1h"])
    unlimited = cantle.submit("half", *LONG, flags=["--gpus", "1"])
    short = cantle.submit("half", "true", flags=["--gpus", "1", "--time", "1m"])
    cantle.wait_state(short, "completed")
    assert [cantle.task(task)["state"] for task in (long, unlimited)] == ["queued"] * 2


def test_run_has_a_time(cantle):
    began = time.monotonic()
    done = cantle.cli("run", "--gpu", "0.5", "--time", "2s", "--", *LONG, code=143)
    assert time.monotonic() - began < 60
    assert "cantle: its time of 2s is over" in done.stderr
    assert cantle.cli("run", "--gpu", "0.5", "--time", "1m", "--", "true").returncode == 0
    for command in (["run", "--gpu", "0.5"], ["submit"]):
        wrong = cantle.cli(*command, "--time", "2", "--", "true", code=2)
        assert wrong.stderr.splitlines()[0].startswith('cantle: --time: "2" is not a run time; write numbers'), wrong.stderr


def test_tasks_run_after_others(cantle, tmp_path):
    cantle.up("--queue", "half=0.5")
    first = cantle.submit("half", "sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.1; done", flags=["--name", "train-1"])
    cantle.wait_state(first, "in_progress")
    flags = lambda how: ["--after", f"{how}:train-1"]  # noqa: E731
    good = cantle.submit("half", "sh", "-c", "echo after", flags=flags("ok"))
    bad = cantle.submit("half", "true", flags=flags("fail"))
    last = cantle.submit("half", "true", flags=["--after", f"any:{good},any:{bad}"])
    wait_reason(cantle, good, "after train-1 (running)")
    assert "after train-1 (running)" in cantle.cli("why", good).stdout
    assert "after train-1 (running)" in cantle.cli("tasks", good).stdout
    (tmp_path / "end").touch()
    cantle.wait_state(good, "completed")
    assert cantle.wait_state(bad, "stopped")["reason"] == "after fail:train-1, which is completed"
    cantle.wait_state(last, "completed")
    assert "after" in cantle.output(good)
    # What is known to be wrong is refused at once.
    refused = cantle.cli("submit", "--queue", "half", "--after", "fail:train-1", "--", "true", code=8)
    assert refused.stderr.splitlines()[0] == "cantle: after fail:train-1, which is completed already"
    assert "there is no task nobody" in cantle.cli("submit", "--queue", "half", "--after", "ok:nobody", "--", "true", code=3).stderr
    wrong = cantle.cli("submit", "--queue", "half", "--after", "train-1", "--", "true", code=2).stderr
    assert re.match(r'cantle: --after: "train-1" is no dependency; write ok:TASK, any:TASK or fail:TASK', wrong), wrong


def test_a_stopped_or_deleted_task_ends_the_wait(cantle):
    cantle.up("--queue", "half=0.5")
    first = cantle.submit("half", *LONG, flags=["--name", "a"])
    second = cantle.submit("half", "true", flags=["--name", "b", "--after", "ok:a"])
    third = cantle.submit("half", "true", flags=["--after", "ok:b"])
    cantle.wait_state(first, "in_progress")
    cantle.cli("stop", first)
    assert cantle.wait_state(second, "stopped")["reason"] == "after ok:a, which is stopped"
    assert cantle.wait_state(third, "stopped")["reason"] == "after ok:b, which is stopped"
    # The chain again, from its beginning.
    cantle.cli("requeue", "--yes", first, second, third)
    cantle.wait_state(first, "in_progress")
    wait_reason(cantle, third, "after b (queued)")
    cantle.cli("stop", second)
    assert cantle.wait_state(third, "stopped")["reason"] == "after ok:b, which is stopped"
