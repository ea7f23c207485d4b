"""ClearML's real clients, newest and older, through a proxy that counts each request. A refusal that ClearML's server would not give
is a failure. `CANTLE_TEST_WEEKS=N` repeats the week, also with the oldest client, as `make soak` does."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import ROOT, wait_until
from proxy import no_refusal

HERE = pathlib.Path(__file__).parent
WEEKS = int(os.environ.get("CANTLE_TEST_WEEKS", "1"))
# A run that asks for nothing so long, or takes so long in all, waits for itself.
SILENT_S, LONGEST_S = 120, 1200
VERSIONS = ["newest", "2.0", "1.18"] if WEEKS > 1 else ["newest", "2.0"]


def interpreter(version):
    """Python with this minor version of ClearML's clients."""
    if version == "newest":
        return sys.executable
    made = [ROOT / "tests/venv.sh", f".venv-clearml-{version}", f"tests/clearml/requirements-{version}.txt"]
    if subprocess.run(made, cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip(f"ClearML's clients {version} cannot be installed here")
    return str(ROOT / f".venv-clearml-{version}/bin/python")


def a_week(server, proxy, python, cache):
    """One run of week.py. The SDK forks its reporter while its threads hold locks, and on a busy machine it then waits for itself: seen
    with 1.18, both processes in futexes and no request under way, and twice with 2.1 at a load of 16. Such a run is repeated, at most
    twice."""
    for _ in range(3):
        child = server.start([python, HERE / "week.py"], "week.log", CLEARML_CACHE_DIR=str(cache))
        if not is_stuck(child, proxy):
            assert child.wait() == 0, server.text("week.log")
            return server.text("week.log")
        wait_until(lambda: proxy.unanswered == 0, 90, "the client waits for the server")
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        tidy(server)
        # The run that is judged is the next one: a fork that shares its parent's connections is refused, too, when their requests mix.
        proxy.refusals.clear()
    raise AssertionError(f"stuck three times:\n{server.text('week.log')}")


def is_stuck(child, proxy):
    """Whether it has stopped asking before its end. A slow machine is no sign of that: then requests come, only later."""
    asked = lambda: sum(count for (name, _), count in list(proxy.counts.items()) if name != "tasks.ping")
    begin = last = time.monotonic()
    before = asked()
    while child.poll() is None:
        now = time.monotonic()
        if asked() != before:
            before, last = asked(), now
        if now - last > SILENT_S or now - begin > LONGEST_S:
            return True
        time.sleep(0.2)
    return False


def tidy(server):
    """The next week begins with nothing of this one: the run of Monday is found by its name."""
    ids = [task["id"] for task in server.api("tasks.get_all", only_fields=["id"])["tasks"]]
    server.api("tasks.delete_many", ids=ids, force=True)
    server.api("models.delete_many", ids=[model["id"] for model in server.api("models.get_all")["models"]])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_week_of_the_sdk(server, proxy, version):
    python = interpreter(version)
    server.queue("default")
    for _ in range(WEEKS):
        assert "WEEK DONE" in a_week(server, proxy, python, server.home / f"cache-{version}")
        tidy(server)
    no_refusal(proxy)
    assert sum(proxy.counts.values()) > 100, proxy.counts
    print(f"{version}: {sum(proxy.counts.values())} requests of {len({name for name, _ in proxy.counts})} endpoints")


def agent(server, python):
    """ClearML's own agent on the queue `default`, which runs tasks with this Python as it is."""
    no_install = {"CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": python, "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL": "1"}
    words = [python, "-m", "clearml_agent", "daemon", "--queue", "default", "--cpu-only", "--foreground"]
    server.start(words, "agent.log", CLEARML_WORKER_NAME="node1", PYTHONUNBUFFERED="1", **no_install)


def script(python, diff):
    return {"binary": python, "entry_point": "job.py", "working_dir": ".", "diff": diff}


@pytest.mark.parametrize("version", ["newest", "2.0"])
def test_an_agent_that_runs_a_task(server, proxy, version):
    """The agents are 3.0 and 2.0."""
    python = interpreter(version)
    queue = server.queue("default")
    job = script(python, "print('step', 6 * 7)\n")
    task = server.api("tasks.create", name="job", type="training", script=job)["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    agent(server, python)
    wait_until(lambda: server.status(task) in ("completed", "failed"), 240, "the task's end")
    assert server.status(task) == "completed", server.log_of(task) + server.text("agent.log")
    wait_until(lambda: "step 42" in server.log_of(task), 60, "the log")
    no_refusal(proxy)


SEARCHED = """
from clearml import Task
task = Task.init(project_name="weekend", task_name="base")
settings = {"x": 0}
task.connect(settings)
task.get_logger().report_scalar("loss", "total", (settings["x"] - 3) ** 2, 0)
"""


def test_a_weekend_of_automation(server, proxy):
    """A search of hyperparameters on ClearML's agent, triggers on models, data sets and tasks, and a schedule."""
    # The SDK's reporter is a fork that continues to use its parent's connections. With threads that call at that moment,
    # requests get mixed up on any server; then this program hangs or is refused.
    (server.home / "no.conf").write_text("sdk { development { report_use_subprocess: false } }\n")
    server.queue("default")
    server.queue("later")
    project = server.api("projects.create", name="weekend")["id"]
    base = server.api(
        "tasks.create", name="base", type="training", project=project, script=script(sys.executable, SEARCHED)
    )["id"]
    agent(server, sys.executable)
    try:
        assert "WEEKEND DONE" in server.run([sys.executable, HERE / "weekend.py", base], timeout=1200)
    finally:
        no_refusal(proxy)
