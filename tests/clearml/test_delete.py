"""`cantle tasks delete`, after a run of ClearML's SDK: what goes, what stays, and what is refused."""

import os
import pty
import subprocess

from conftest import CANTLE, is_one_error
from test_sdk import TRAIN


def cantle(server, *words, **options):
    return subprocess.run(server.command([CANTLE, *words]), env=server.env, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL, **options)


def files_of(server, task):
    return [path for path in (server.data / "files").rglob("*") if path.is_file() and f".{task}/" in str(path)]


def test_tasks_go_with_their_files(server):
    task, other = server.sdk(TRAIN), server.sdk(TRAIN)
    assert len(files_of(server, task)) == 2, "an artifact and a model"
    listed = cantle(server, "tasks", "delete", task, "--dry-run", "-o", "name")
    assert (listed.returncode, listed.stdout.split()) == (0, [task])
    assert server.status(task) == "completed", "a dry run deletes nothing"
    asked = cantle(server, "tasks", "delete", task)
    assert asked.returncode == 2 and is_one_error(asked.stderr) and "--yes" in asked.stderr
    done = cantle(server, "tasks", "delete", task, "--yes")
    assert done.returncode == 0, done.stderr
    assert "2 files and 1 models" in done.stderr
    assert files_of(server, task) == [] and len(files_of(server, other)) == 2
    assert cantle(server, "logs", task).returncode == 3
    kept = cantle(server, "tasks", "delete", "--project", "P1", "--keep-files", "--yes")
    assert kept.returncode == 0, kept.stderr
    assert len(files_of(server, other)) == 2
    assert server.api("tasks.get_all")["tasks"] == []


def test_what_waits_runs_or_is_young_stays(server):
    queue = server.queue("default")
    task = server.api("tasks.create", name="a", type="training")["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    refused = cantle(server, "tasks", "delete", task, "--yes")
    assert refused.returncode == 8 and is_one_error(refused.stderr) and "cantle move" in refused.stderr
    server.api("tasks.dequeue", task=task)
    server.api("tasks.started", task=task)
    refused = cantle(server, "tasks", "delete", task, "--yes")
    assert refused.returncode == 8 and f"cantle stop {task}" in refused.stderr
    server.api("tasks.stopped", task=task)
    young = cantle(server, "tasks", "delete", "--older-than", "1d", "--yes")
    assert young.returncode == 0 and server.status(task) == "stopped"
    assert cantle(server, "tasks", "delete").returncode == 2, "all of them is not what nothing means"
    assert cantle(server, "tasks", "delete", "f" * 32, "--yes").returncode == 3
    assert cantle(server, "tasks", "delete", "--status", "alive").returncode == 2


def test_whoever_sits_there_is_asked(server):
    task = server.api("tasks.create", name="a", type="training")["id"]

    def say(answer):
        ours, theirs = pty.openpty()
        words = server.command([CANTLE, "tasks", "delete", task])
        child = subprocess.Popen(words, env=server.env, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        os.write(ours, answer)
        _, said = child.communicate(timeout=180)
        os.close(ours)
        os.close(theirs)
        assert "Delete 1 tasks" in said
        return child.returncode

    assert say(b"n\n") == 1
    assert server.status(task) == "created"
    assert say(b"y\n") == 0
    assert server.api("tasks.get_all")["tasks"] == []
