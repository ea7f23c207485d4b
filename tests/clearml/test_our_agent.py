"""Our agent where ClearML's was: tasks made with ClearML's SDK, and a server that has nothing of cantle's."""

import os
import sys
import time

import pytest
from conftest import CANTLE, wait_until
from lateness import lateness
from ours import command, daemon, ended

STARTS = 50 if os.environ.get("CANTLE_TEST_ALL") else 20
# A start has about as many steps of a process that does nothing, one after the other, on its way.
STEPS = 20


def test_exit_states_and_logs_as_clearml_knows_them(server):
    queue = server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5")
    good = command(server, "good", "sh", "-c", "echo well done")
    bad = command(server, "bad", "sh", "-c", "echo oh no >&2; exit 3")
    for task in (good, bad):
        server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, good, bad) == ["completed", "failed"]
    wait_until(lambda: "well done" in server.log_of(good) and "oh no" in server.log_of(bad), 60, "the logs")
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
    wait_until(lambda: server.status(task) == "in_progress", 60, "the start")
    server.sdk(f"from clearml import Task\nTask.get_task(task_id={task!r}).mark_stop_request()")
    assert ended(server, task) == ["stopped"]


def test_tasks_start_within_a_second(server):
    """By the server's clock. A machine that is busy with others is late itself: that is measured beside it."""
    queue = server.queue("quarter_gpu")
    daemon(server, "--queue", "quarter_gpu=0.25")
    starts = []
    with lateness() as machine:
        for n in range(STARTS):
            begin = time.monotonic()
            task = command(server, str(n), "true")
            server.api("tasks.enqueue", task=task, queue=queue)
            ended(server, task)
            events = server.api("cantle.get_events", task=task)["events"]
            at = {event["kind"]: event["id"] for event in events}
            # Positions of events are microseconds.
            starts.append(((at["start"] - at["enqueue"]) / 1e6, machine.worst_since(begin)))
    waits = sorted(wait for wait, _ in starts)
    print(f"start after enqueue over {STARTS} tasks: p50 {waits[STARTS // 2]:.2f} s, p90 {waits[STARTS * 9 // 10]:.2f} s, most {waits[-1]:.2f} s")
    print(f"meanwhile a process that does nothing took {machine.usual():.3f} s, at most {max(late for _, late in starts):.3f} s")
    # The promise, and what the machine itself was late.
    assert waits[STARTS // 2] < 0.3 + STEPS * machine.usual(), starts
    assert [start for start in starts if start[0] >= 1 + STEPS * start[1]] == [], starts


@pytest.mark.parametrize("server", [["--open-source"]], indirect=True)
def test_our_agent_on_a_server_without_anything_of_cantles(server):
    names = ["dual_gpus=2", "quarter_gpu=0.25", "half_gpu=0.5", "single_gpu=1"]
    queues = [server.queue(name.partition("=")[0]) for name in names]
    hold = f"while [ ! -e {server.home}/go ]; do sleep 0.1; done; echo done"
    tasks = [command(server, f"task {n}", "sh", "-c", hold) for n in range(len(queues))]
    for task, queue in zip(tasks, queues):
        server.api("tasks.enqueue", task=task, queue=queue)
    daemon(server, "--queue", *names)
    wait_until(lambda: [server.status(t) for t in tasks] == ["in_progress"] * 3 + ["queued"], 60, "2.75 of 3 GPUs")
    (server.home / "go").touch()
    assert ended(server, *tasks) == ["completed"] * 4
    wait_until(lambda: all("done" in server.log_of(task) for task in tasks), 60, "the logs")
    assert "the server has no cantle.report_node" in server.text("daemon.log")


def tidy_task(server, name, **fields):
    """A task that takes 3 seconds to tidy up when it is stopped, once it is up."""
    (server.home / "job.py").write_text("""
import time
from clearml import Task
task = Task.init(auto_connect_frameworks=False)
def tidy_up():
    print('tidying up', flush=True)
    time.sleep(3)
    print('tidied up', flush=True)
task.register_abort_callback(tidy_up, callback_execution_timeout=60)
print('up', flush=True)
time.sleep(600)
""")
    task = command(server, name, sys.executable, str(server.home / "job.py"))
    if fields:
        server.api("tasks.edit", task=task, **fields)
    server.api("tasks.enqueue", task=task, queue_name="single_gpu")
    wait_until(lambda: server.text("daemon.log") and "up" in server.log_of(task).split(), 180, "the task is up")
    return task


def test_a_task_has_its_time_to_tidy_up(server):
    server.queue("single_gpu")
    daemon(server, "--queue", "single_gpu=1")
    task = tidy_task(server, "tidy")
    server.api("tasks.stop", task=task)
    assert ended(server, task) == ["stopped"]
    wait_until(lambda: "tidied up" in server.log_of(task), 60, "the last words")
    assert "it has" in server.text("daemon.log") and "s to tidy up" in server.text("daemon.log")


def test_a_task_that_makes_room_for_another_has_its_time_too(server):
    """Its abort callback is called, then the owner runs, then it runs again: it was never stopped permanently."""
    queue = server.queue("single_gpu")
    daemon(server, "--queue", "single_gpu=1", gpus="0")
    projects = {name: server.api("projects.create", name=name, description="")["id"] for name in ("lent", "owner")}
    for name, milli in (("lent", 0), ("owner", 1000)):
        server.api("cantle.set_quota", project=name, quota={"gpu": {"deserved": milli, "weight": 1}})
    victim = tidy_task(server, "victim", project=projects["lent"])
    owner = command(server, "owner", "sh", "-c", "echo the owner ran")
    server.api("tasks.edit", task=owner, project=projects["owner"])
    server.api("tasks.enqueue", task=owner, queue=queue)
    assert ended(server, owner) == ["completed"]
    runs = lambda: len(server.api("cantle.get_runs", task=victim)["runs"])
    wait_until(lambda: runs() == 2 and "up" in server.log_of(victim, run=2).split(), 180, "it is up again")
    assert "tidied up" in server.log_of(victim, run=1), server.log_of(victim, run=1)
    story = [event["kind"] for event in server.api("cantle.get_events", task=victim)["events"]]
    assert [story.count(kind) for kind in ("reclaim", "requeue", "place")] == [1, 1, 2], story
    told = [event["message"] for event in server.api("cantle.get_events", task=victim)["events"]]
    assert any("s to tidy up" in message for message in told), told
    assert server.status(victim) == "in_progress"


@pytest.mark.gate
def test_code_of_the_sdk_is_run_by_clearmls_agent_inside_the_slice(server):
    server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5", CLEARML_AGENT_SKIP_PIP_VENV_INSTALL=sys.executable, CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL="1")
    (server.home / "job.py").write_text("""
import ctypes
from clearml import Task
task = Task.init()
cuda, total, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_size_t(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print('sees', total.value >> 30, 'GiB as', task.id)
""")
    words = ["--project", "P1", "--name", "job", "--script", "job.py", "--queue", "half_gpu", "--packages", "clearml"]
    out = server.run(["clearml-task", *words, "--skip-task-init"])
    task = next(word[3:] for line in out.splitlines() for word in line.split() if word.startswith("id="))
    assert ended(server, task, seconds=240) == ["completed"], server.log_of(task)
    wait_until(lambda: f"sees 20 GiB as {task}" in server.log_of(task), 60, f"the log; it is {server.log_of(task)}")


SEARCH = """
import os
from clearml import Task
from clearml.automation import DiscreteParameterRange, GridSearch, HyperParameterOptimizer
from clearml.backend_api.session.client import APIClient
task = Task.init(auto_connect_frameworks=False)
for what, attack in {
    'take': lambda: APIClient().queues.get_next_task(queue=os.environ['QUEUE']),
    'stop': lambda: APIClient().tasks.stop(task=os.environ['OTHER']),
    'keys': lambda: task.session.send_request('auth', 'create_credentials', json={}).raise_for_status(),
}.items():
    try:
        print(what, 'worked', attack(), flush=True)
    except Exception as error:
        print(what, 'refused' if '(403' in str(error) or 'Forbidden' in str(error) else error, flush=True)
trials = HyperParameterOptimizer(
    base_task_id=os.environ['BASE'], hyper_parameters=[DiscreteParameterRange('General/x', [1, 2])], optimizer_class=GridSearch,
    objective_metric_title='loss', objective_metric_series='loss', execution_queue='half_gpu', max_number_of_concurrent_tasks=2,
    pool_period_min=0.05, total_max_jobs=2, min_iteration_per_job=0)
trials.set_report_period(0.05)
trials.start()
trials.wait()
trials.stop()
print('searched', flush=True)
"""


def test_a_task_searches_as_its_owner_and_is_no_agent(server):
    """A search of ClearML's SDK inside a slice makes and runs its trials; what only agents and people may do is refused."""
    queue = server.queue("half_gpu")
    server.api("projects.create", name="P1", description="")
    anna = server.api("cantle.add_user", name="anna", role="member", project="P1")
    param = {"section": "General", "name": "x", "value": "0", "type": "int", "description": ""}
    base, other = command(server, "base", "true"), command(server, "other", "true")
    server.api("tasks.edit_hyper_params", task=base, hyperparams=[param])
    project = server.api("projects.get_all", name="P1")["projects"][0]["id"]
    server.api("tasks.move", ids=[base, other], project=project)
    env = {"CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": sys.executable, "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL": "1"}
    daemon(server, "--queue", "half_gpu=0.5", **env, QUEUE=queue, OTHER=other, BASE=base)
    (server.home / "job.py").write_text(SEARCH)
    words = ["--project", "P1", "--name", "search", "--script", "job.py", "--queue", "half_gpu", "--packages", "clearml"]
    keys = {"CLEARML_API_ACCESS_KEY": anna["access_key"], "CLEARML_API_SECRET_KEY": anna["secret_key"]}
    out = server.run(["clearml-task", *words, "--skip-task-init"], **keys)
    task = next(word[3:] for line in out.splitlines() for word in line.split() if word.startswith("id="))
    assert ended(server, task, seconds=480) == ["completed"], server.log_of(task)
    wait_until(lambda: "searched" in server.log_of(task), 60, "the log")
    log = server.log_of(task)
    assert all(f"{what} refused" in log for what in ["take", "stop", "keys"]) and "searched" in log, log
    owner = server.api("tasks.get_by_id", task=task)["task"]["user"]
    trials = server.api("tasks.get_all", parent=task, only_fields=["user", "status"], search_hidden=True)["tasks"]
    assert [(trial["user"], trial["status"]) for trial in trials] == [(owner, "completed")] * 2, log


def test_graphs_have_figures_of_the_gpus(server):
    server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5", "--child-report-tags", "blue", "big")
    [worker] = server.api("workers.get_all", last_seen=60)["workers"]
    assert worker["tags"] == ["blue", "big"]
    # The agent is registered before it has measured for the first time.
    worker = lambda: server.api("workers.get_all", last_seen=60)["workers"][0]
    stats = wait_until(lambda: worker().get("machine_stats"), 60, "a first report")
    for measure in ("gpu_usage", "gpu_temperature", "gpu_memory_used", "gpu_memory_free"):
        assert len(stats[measure]) == 3, stats
    keys = server.api("workers.get_metric_keys")["categories"]
    assert {"cpu", "gpu", "memory"} <= {category["name"] for category in keys}


# `make soak` runs 20 agents and 1,000 tasks.
AGENTS = int(os.environ.get("CANTLE_TEST_AGENTS", "3"))
TASKS = int(os.environ.get("CANTLE_TEST_TASKS", "30"))


def test_each_of_many_tasks_is_started_once_by_one_of_many_agents(server):
    queue = server.queue("eighth")
    runs = server.home / "runs"
    tasks = [command(server, str(n), "sh", "-c", f"echo $CLEARML_TASK_ID $CLEARML_WORKER_ID >> {runs}") for n in range(TASKS)]
    for task in tasks:
        server.api("tasks.enqueue", task=task, queue=queue)
    for n in range(AGENTS):
        argv = [CANTLE, "daemon", "--dynamic-gpus", "--gpus", "0-2", "--queue", "eighth=0.125", "--server", server.url]
        server.start(argv, f"box{n}.log", server.another(), CLEARML_WORKER_NAME=f"box{n}")
    wait_until(lambda: not server.api("queues.get_by_id", queue=queue)["queue"]["entries"], 60 + TASKS, "an empty queue")
    assert ended(server, *tasks, seconds=60 + TASKS) == ["completed"] * TASKS
    lines = [line.split() for line in runs.read_text().splitlines()]
    assert sorted(task for task, _ in lines) == sorted(tasks), "each exactly once"
    print(f"{TASKS} tasks by {len({worker for _, worker in lines})} of {AGENTS} agents")
