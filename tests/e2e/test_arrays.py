"""Arrays: `cantle submit --array` makes a task for each index."""

import time

from conftest import FILL, wait_until

QUEUE = ("--queue", "eighth=0.125", "none=none")


def counts(cantle, array):
    found = cantle.task(array)["array"]
    return tuple(found[name] for name in ("waiting", "running", "completed", "failed", "stopped"))


def test_each_index_runs_once_in_a_slice_of_its_own(cantle):
    cantle.up(*QUEUE)
    out = cantle.home / "out"
    fill = " ".join(map(str, [*FILL, "--at-most", 0]))
    line = f'echo "$CANTLE_ARRAY_INDEX $CANTLE_ARRAY_ID" >>{out}; {fill}'
    array = cantle.submit("eighth", "sh", "-c", line, flags=("--array", "0-20:2,33%4", "--name", "sweep"))
    assert cantle.cli("wait", array).stdout == ""
    assert counts(cantle, array) == (0, 0, 12, 0, 0)
    lines = [line.split() for line in out.read_text().splitlines()]
    assert sorted(int(index) for index, _ in lines) == [*range(0, 21, 2), 33]
    assert {of for _, of in lines} == {array}
    tasks = cantle.json("tasks", "--array", "sweep")
    assert sorted(task["name"] for task in tasks) == sorted(f"sweep[{index}]" for index in [*range(0, 21, 2), 33])
    (seen,) = cantle.filled("sweep[33]")
    assert seen["total_bytes"] == 5 << 30
    # One row stands for all of them.
    assert [task["id"] for task in cantle.json("tasks")] == [array]
    assert "sweep[0-20:2,33%4]" in cantle.cli("tasks").stdout
    assert f"its tasks: cantle tasks --array {array}" in cantle.cli("logs", array).stderr
    # It takes its tasks with it.
    cantle.cli("tasks", "delete", "--yes", "sweep")
    assert cantle.json("tasks") == []


def test_no_more_run_at_once_than_asked_for_and_a_stop_ends_them_all(cantle):
    cantle.up(*QUEUE)
    array = cantle.submit("eighth", "sleep", "600", flags=("--array", "0-99%3"))
    wait_until(lambda: counts(cantle, array)[1] == 3, 30, lambda: counts(cantle, array))
    time.sleep(3)
    assert counts(cantle, array) == (97, 3, 0, 0, 0)
    why = cantle.cli("why", array).stdout
    assert "an array: 0 of 100 completed, 3 running, 97 waiting" in why
    (one, *_) = cantle.json("tasks", "--array", array, "--status", "in_progress")
    cantle.cli("stop", one["name"])
    wait_until(lambda: counts(cantle, array) == (96, 3, 0, 0, 1), 30, lambda: counts(cantle, array))
    cantle.cli("stop", array)
    wait_until(lambda: counts(cantle, array)[1] == 0, 30, lambda: counts(cantle, array))
    assert cantle.task(array)["state"] == "stopped"
    wait_until(lambda: not any(gpu["allocated_milli"] for gpu in cantle.json("gpus")), 30, lambda: cantle.json("gpus"))


def test_an_array_fails_with_its_tasks_and_others_wait_for_it(cantle):
    cantle.up(*QUEUE)
    array = cantle.submit("none", "sh", "-c", "exit $((CANTLE_ARRAY_INDEX == 2))", flags=("--array", "0-3", "--name", "part"))
    bad = cantle.submit("none", "true", flags=("--after", f"ok:{array}"))
    good = cantle.submit("none", "true", flags=("--after", "fail:part"))
    assert cantle.cli("wait", array, code=None).returncode == 1
    found = cantle.task(array)
    assert (found["state"], found["reason"]) == ("failed", "3 of 4 completed, 1 failed")
    assert cantle.wait_state(good, "completed", "stopped")["state"] == "completed"
    assert cantle.wait_state(bad, "completed", "stopped")["state"] == "stopped"
    (failed,) = cantle.json("tasks", "--array", "part", "--status", "failed")
    assert failed["name"] == "part[2]"


def test_what_is_no_array_is_refused_in_one_line(cantle):
    cantle.up(*QUEUE)
    for spec, text in [
        ("0..9", "write FIRST-LAST as in 0-99"),
        ("9-0", "the indices have to ascend"),
        ("0-9999999", "has 10000000 elements; an array has at most 100000"),
        ("0-9%0", "write FIRST-LAST as in 0-99"),
    ]:
        refused = cantle.cli("submit", "--queue", "none", "--array", spec, "--", "true", code=2)
        assert text in refused.stderr, refused.stderr
    assert cantle.json("tasks") == []
