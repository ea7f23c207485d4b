"""`cantle budget`: the GPU-hours of a project in a month, and what happens when they are used up."""

import json

import pytest

from conftest import wait_until

SECOND = 1 / 3600


@pytest.fixture
def box(make_cantle):
    found = make_cantle("2xA100-40GB")
    found.up("--queue", "q=task")
    return found


def shown(box):
    return {item["project"]: item for item in json.loads(box.cli("-o", "json", "budget", "show").stdout)["items"]}


def submit(box, project, *command):
    return box.submit("q", *command, flags=("--project", project, "--gpu", "0.5"))


def test_tasks_wait_when_the_budget_is_used_up(box):
    box.cli("budget", "set", "vision", "--gpu-hours", 2 * SECOND, "--at-full", "queue")
    first = submit(box, "vision/a", "sleep", "6")
    box.wait_state(first, "completed")
    # The server counts every ten seconds.
    wait_until(lambda: shown(box)["vision"]["used_percent"] >= 100, 30, lambda: shown(box))
    waits = submit(box, "vision", "true")
    says = "project vision has used"
    wait_until(lambda: says in box.cli("why", waits).stdout, 30, lambda: box.cli("why", waits).stdout)
    assert "waits until the month ends" in box.cli("why", waits).stdout
    assert any(event["kind"] == "budget-reached" for event in json.loads(box.cli("-o", "json", "events").stdout)["items"])
    # Another project goes on, and so does this one with a larger budget.
    box.wait_state(submit(box, "speech", "true"), "completed")
    assert json.loads(box.cli("-o", "json", "tasks", waits).stdout)["items"][0]["state"] == "queued"
    box.cli("budget", "set", "vision", "--gpu-hours", 10)
    box.wait_state(waits, "completed")
    assert shown(box)["vision"]["at_full"] == "queue", "what is not named does not change"
    assert "vision" in box.cli("budget", "show", "vision").stdout
    box.cli("budget", "unset", "vision")
    assert shown(box) == {}


def test_no_project_borrows_with_a_budget_that_is_used_up(box):
    box.cli("quota", "set", "vision", "--gpu", "0.5")
    box.cli("budget", "set", "vision", "--gpu-hours", 2 * SECOND, "--at-full", "no-borrowing", "--warn-at", 50)
    box.wait_state(submit(box, "vision", "sleep", "6"), "completed")
    wait_until(lambda: shown(box)["vision"]["used_percent"] >= 100, 30, lambda: shown(box))
    within, beyond = submit(box, "vision", "sleep", "600"), submit(box, "vision", "sleep", "600")
    box.wait_state(within, "in_progress")
    wait_until(lambda: "it gets no more than its quota" in box.cli("why", beyond).stdout, 30, lambda: box.cli("why", beyond).stdout)
    # Half of a GPU is within the quota; three halves are free, and nobody else wants them.
    assert json.loads(box.cli("-o", "json", "tasks", beyond).stdout)["items"][0]["state"] == "queued"
    box.cli("budget", "set", "vision", "--at-full", "warn")
    box.wait_state(beyond, "in_progress")


@pytest.mark.parametrize(
    "words, code, says",
    [
        (("set", "p"), 2, "--gpu-hours"),
        (("set", "p", "--warn-at", "50"), 2, "project p has no budget yet; add --gpu-hours H"),
        (("set", "p", "--gpu-hours", "many"), 2, "no number of GPU-hours"),
        (("set", "p", "--gpu-hours", "0"), 2, "more than 0"),
        (("set", "p", "--gpu-hours", "1", "--warn-at", "0"), 2, "1 % to 100 %"),
        (("set", "p", "--gpu-hours", "1", "--at-full", "stop"), 2, "warn, no-borrowing, queue"),
        (("unset", "p"), 3, "p"),
    ],
)
def test_bad_input_is_one_line(box, words, code, says):
    done = box.cli("budget", *words, code=code)
    assert done.stdout == "" and says in done.stderr, done.stderr
    assert shown(box) == {}
