"""Nothing that a user has is lost by a slip: an ended task is not requeued without a yes, and no queue gives less than was asked for."""

import os
import pty
import select
import subprocess

from conftest import CANTLE, wait_until


def on_a_terminal(cantle, answer, *words):
    """Runs a command at a terminal whose user types this answer; its exit code and what it showed."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(cantle.machine.command(CANTLE, *words), env=cantle.env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown, typed = "", False
    while True:
        if not select.select([ours], [], [], 60)[0]:
            break
        try:
            read = os.read(ours, 4096)
        except OSError:
            break
        if not read:
            break
        shown += read.decode(errors="replace")
        if "[y/N]" in shown and not typed:
            os.write(ours, f"{answer}\n".encode())
            typed = True
    code = child.wait(timeout=60)
    os.close(ours)
    return code, shown


def test_an_ended_task_is_not_requeued_without_a_yes(cantle):
    cantle.up("--queue", "half=0.5")
    task = cantle.submit("half", "echo", "the result")
    cantle.wait_state(task, "completed")
    wait_until(lambda: "the result" in cantle.output(task), 60, lambda: cantle.output(task))
    refused = cantle.cli("requeue", task, code=2).stderr
    assert "is completed, and nobody to ask" in refused and "--yes" in refused, refused
    code, shown = on_a_terminal(cantle, "", "requeue", task)
    assert code == 1 and "remove the artifacts" in shown and "nothing was requeued" in shown, shown
    assert cantle.task(task)["state"] == "completed" and "the result" in cantle.output(task)
    code, shown = on_a_terminal(cantle, "y", "requeue", task)
    assert code == 0 and "queued again" in shown, shown
    cantle.wait_state(task, "completed")
    cantle.cli("requeue", "--yes", task)
    cantle.wait_state(task, "completed")
    assert len(cantle.json("tasks", "runs", task)) == 3


def test_a_run_keeps_its_output(cantle):
    """Requeued, a task prints something else; all of it can be read, each run by its number."""
    cantle.up("--queue", "half=0.5")
    task = cantle.submit("half", "sh", "-c", "echo this is $CANTLE_SLICE")
    seen = []
    for run in range(1, 4):
        if seen:
            cantle.cli("requeue", "--yes", task)
        fresh = lambda: [line for line in cantle.output(task).splitlines() if line not in seen]
        wait_until(fresh, 60, lambda: cantle.output(task))
        seen += fresh()
        cantle.wait_state(task, "completed")
    said = [cantle.cli("logs", "--run", str(run), task).stdout for run in range(1, 4)]
    assert said == [f"{line}\n" for line in seen] and all("this is" in line for line in seen), said
    assert cantle.output(task) == said[-1]
    refused = cantle.cli("logs", "--run", "4", task, code=None)
    assert refused.returncode != 0 and "has no run 4; its runs are 1 to 3" in refused.stderr, refused


def test_a_task_that_never_ran_is_requeued_at_once(cantle):
    cantle.up("--queue", "half=0.5", "--gpus", "0")
    cantle.cli("submit", "--queue", "half", "--", "sleep", "600")
    waits = [cantle.submit("half", "sleep", "600") for _ in range(3)][-1]
    cantle.cli("move", waits, "--out")
    cantle.cli("requeue", waits)
    assert cantle.task(waits)["state"] == "queued"


def test_a_queue_refuses_what_it_would_override(cantle):
    cantle.up("--queue", "half=0.5", "none=none", "own=task")
    for flags in (["--gpus", "3"], ["--gpu", "1"], ["--gpu-memory", "39Gi"]):
        refused = cantle.cli("submit", "--queue", "half", *flags, "--", "true", code=5).stderr
        assert refused.startswith("cantle: queue half gives each task 0.5 GPU; this task asks for "), refused
        assert "hint: leave the size out" in refused, refused
        cantle.cli("submit", "--queue", "none", *flags, "--", "true", code=5)
        cantle.submit("own", "true", flags=flags)
    cantle.submit("half", "true", flags=["--gpu", "0.5"])
