"""Our agent where ClearML's was: tasks made with ClearML's SDK, and a server that has nothing of cantle's."""

import json

import pytest
from conftest import CANTLE, wait_until

SIM = {"CANTLE_SIM_GPUS": "3xA100-40GB", "CLEARML_WORKER_NAME": "node1"}


def daemon(server, *words, log="daemon.log"):
    argv = [CANTLE, "daemon", "--dynamic-gpus", "--gpus", "0-2", *words, "--server", server.url]
    child = server.start(argv, log, **SIM)
    pattern = "node1:dgpu*"
    workers = lambda: server.api("workers.get_all", last_seen=60, worker_pattern=pattern)["workers"]
    wait_until(lambda: workers() or child.poll() is not None, 30, "the daemon")
    assert child.poll() is None, server.text(log)
    return child


def command(server, name, *argv):
    """A task that is a plain command, as `cantle submit` makes it, by ClearML's own API."""
    param = {"section": "cantle", "name": "command", "value": json.dumps(argv), "type": "str", "description": ""}
    hyperparams = {"cantle": {"command": param}}
    return server.api("tasks.create", name=name, type="training", hyperparams=hyperparams)["id"]


def ended(server, *tasks, seconds=60):
    final = ("completed", "failed", "stopped")
    wait_until(lambda: all(server.status(task) in final for task in tasks), seconds, "the end")
    return [server.status(task) for task in tasks]


def test_exit_states_and_logs_as_clearml_knows_them(server):
    queue = server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5")
    good = command(server, "good", "sh", "-c", "echo well done")
    bad = command(server, "bad", "sh", "-c", "echo oh no >&2; exit 3")
    for task in (good, bad):
        server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, good, bad) == ["completed", "failed"]
    wait_until(lambda: "well done" in server.log_of(good) and "oh no" in server.log_of(bad), 10, "the logs")
    seen = server.sdk(f"from clearml import Task\ntask = Task.get_task(task_id={bad!r})\nanswer = task.data.status_message")
    assert "3" in seen + server.api("tasks.get_by_id", task=bad)["task"]["status_reason"]


def test_a_clone_and_a_stop_from_the_sdk(server):
    server.queue("single_gpu")
    daemon(server, "--queue", "single_gpu=1")
    template = command(server, "template", "sleep", "600")
    task = server.sdk(f"""
from clearml import Task
copy = Task.clone(source_task={template!r}, name='copy')
Task.enqueue(copy, queue_name='single_gpu')
answer = copy.id
""")
    wait_until(lambda: server.status(task) == "in_progress", 20, "the start")
    server.sdk(f"from clearml import Task\nTask.get_task(task_id={task!r}).mark_stop_request()")
    assert ended(server, task, seconds=20) == ["stopped"]


def test_tasks_start_within_a_second(server):
    queue = server.queue("quarter_gpu")
    daemon(server, "--queue", "quarter_gpu=0.25")
    waits = []
    for n in range(50):
        task = command(server, str(n), "true")
        server.api("tasks.enqueue", task=task, queue=queue)
        ended(server, task)
        events = server.api("cantle.get_events", task=task)["events"]
        at = {event["kind"]: event["id"] for event in events}
        # Positions of events are microseconds.
        waits.append((at["start"] - at["enqueue"]) / 1e6)
    waits.sort()
    print(f"start after enqueue over 50 tasks: median {waits[25]:.2f} s, most {waits[-1]:.2f} s")
    assert waits[-1] < 1.0, waits


@pytest.mark.parametrize("server", [["--open-source"]], indirect=True)
def test_our_agent_on_a_server_without_anything_of_cantles(server):
    names = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]
    queues = [server.queue(name.partition("=")[0]) for name in names]
    tasks = [command(server, f"task {n}", "sh", "-c", "sleep 3; echo done") for n in range(len(queues))]
    for task, queue in zip(tasks, queues):
        server.api("tasks.enqueue", task=task, queue=queue)
    daemon(server, "--queue", *names)
    wait_until(lambda: [server.status(t) for t in tasks] == ["in_progress"] * 3 + ["queued"], 20, "2.75 of 3 GPUs")
    assert ended(server, *tasks) == ["completed"] * 4
    wait_until(lambda: all("done" in server.log_of(task) for task in tasks), 10, "the logs")
    assert "the server has no cantle.* service" in server.text("daemon.log")
