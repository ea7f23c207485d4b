"""ClearML's own agent and command-line programs, unmodified, against our server."""

import sys

from conftest import wait_until

# The agent installs nothing: it runs tasks with this interpreter.
NO_INSTALL = {
    "CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": sys.executable,
    "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL": "1",
    "CLEARML_WORKER_NAME": "node1",
    "CLEARML_AGENT_QUEUE_POLL_FREQ_SEC": "1",
    "PYTHONUNBUFFERED": "1",
}


def submit(server, code, queue="default"):
    (server.home / "job.py").write_text(code)
    words = ["--project", "P1", "--name", "job", "--script", "job.py", "--queue", queue, "--packages", "clearml"]
    out = server.run(["clearml-task", *words, "--skip-task-init"])
    return next(word for line in out.splitlines() if "id=" in line for word in line.split() if word.startswith("id="))[3:]


def agent(server, *words, **env):
    argv = ["clearml-agent", "daemon", *words, "--foreground"]
    child = server.start(argv, "agent.log", **NO_INSTALL, **env)
    wait_until(lambda: "Listening to queues" in server.text("agent.log") or child.poll() is not None, 120, "agent")
    assert child.poll() is None, server.text("agent.log")
    return child


def test_clearml_task_and_an_agent_that_runs_it(server):
    server.queue("default")
    task = submit(server, "print('step', 6 * 7)\n")
    assert server.status(task) == "queued"
    child = agent(server, "--queue", "default", "--cpu-only")
    wait_until(lambda: server.status(task) in ("completed", "failed"), 240, "the task's end")
    assert server.status(task) == "completed", server.log_of(task)
    wait_until(lambda: "step 42" in server.log_of(task), 60, "the log")
    assert "node1:cpu:0" in server.run(["clearml-agent", "list"])
    # The task is completed before its agent has let go of it; interrupted in between, the agent may not say goodbye.
    wait_until(lambda: "No tasks in Queues" in server.text("agent.log").rpartition("DONE: Running task")[2], 120, "an idle agent")
    server.stop(child)
    assert server.api("workers.get_all", last_seen=0)["workers"] == []


def test_a_failing_task_is_failed(server):
    server.queue("default")
    task = submit(server, "raise SystemExit(3)\n")
    agent(server, "--queue", "default", "--cpu-only")
    wait_until(lambda: server.status(task) in ("completed", "failed"), 240, "the task's end")
    assert server.status(task) == "failed"


def test_a_running_task_is_stopped(server):
    server.queue("default")
    task = submit(server, "import time\nprint('running', flush=True)\ntime.sleep(600)\n")
    agent(server, "--queue", "default", "--gpus", "0")
    wait_until(lambda: "running" in server.log_of(task), 240, "the task's start")
    server.api("tasks.stop", task=task)
    wait_until(lambda: server.status(task) == "stopped", 120, "the task's end")
    assert "node1:gpu0" in [worker["id"] for worker in server.api("workers.get_all", last_seen=0)["workers"]]


def test_code_with_task_init_adopts_the_agents_task(server):
    server.queue("default")
    code = "from clearml import Task\ntask = Task.init()\ntask.get_logger().report_scalar('a', 'b', 0.5, 1)\nprint('adopted', task.id)\n"
    task = submit(server, code)
    agent(server, "--queue", "default", "--cpu-only")
    wait_until(lambda: server.status(task) in ("completed", "failed"), 240, "the task's end")
    assert server.status(task) == "completed", server.log_of(task)
    # Its last words and scalars may still be on their way.
    wait_until(lambda: f"adopted {task}" in server.log_of(task), 60, "the log")
    graphs = wait_until(lambda: server.api("events.scalar_metrics_iter_histogram", task=task), 60, "the scalar")
    assert graphs["a"]["b"]["y"] == [0.5]


def test_an_unknown_queue_is_made_only_if_asked_for(server):
    child = server.start(["clearml-agent", "daemon", "--queue", "new", "--cpu-only", "--foreground"], "agent.log", **NO_INSTALL)
    wait_until(lambda: child.poll() is not None, 120, "the agent's end")
    assert 'Could not find queue with name/id "new"' in server.text("agent.log")
    agent(server, "--queue", "new", "--cpu-only", "--create-queue")
    assert [queue["name"] for queue in server.api("queues.get_all")["queues"]] == ["new"]
