"""ClearML's real clients, newest and older, through a proxy that counts each request. A refusal that ClearML's server would not give
is a failure. `CANTLE_TEST_WEEKS=N` repeats the week, as `make soak` does."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import ROOT, wait_until
from proxy import Proxy

HERE = pathlib.Path(__file__).parent
WEEKS = int(os.environ.get("CANTLE_TEST_WEEKS", "1"))

# Refusals that ClearML's own server gives as well, as the facts about its API say: endpoint, status and what the message says.
THEIRS = [
    # The SDK takes the name of a queue for an id first.
    ("queues.get_by_id", 400, b"Invalid queue id"),
]


def interpreter(version):
    """Python with this minor version of ClearML's clients."""
    if version == "newest":
        return sys.executable
    made = [ROOT / "tests/venv.sh", f".venv-clearml-{version}", f"tests/clearml/requirements-{version}.txt"]
    if subprocess.run(made, cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip(f"ClearML's clients {version} cannot be installed here")
    return str(ROOT / f".venv-clearml-{version}/bin/python")


@pytest.fixture
def proxy(server):
    proxy = Proxy(server.url)
    server.env |= {
        "CLEARML_API_HOST": proxy.url,
        "CLEARML_WEB_HOST": proxy.url,
        "CLEARML_FILES_HOST": f"{proxy.url}/files",
    }
    yield proxy
    proxy.close()


def is_theirs(refusal):
    name, status, _, text = refusal
    return any((name, status) == (known, code) and said in text for known, code, said in THEIRS)


def no_refusal(proxy):
    ours = [refusal for refusal in proxy.refusals if not is_theirs(refusal)]
    assert ours == []


@pytest.mark.parametrize("version", ["newest", "2.0", "1.18"])
def test_a_week_of_the_sdk(server, proxy, version):
    python = interpreter(version)
    server.queue("default")
    for _ in range(WEEKS):
        out = server.run([python, HERE / "week.py"], timeout=600, CLEARML_CACHE_DIR=str(server.home / f"cache-{version}"))
        assert "WEEK DONE" in out
        # The next one begins with nothing of this one: the run of Monday is found by its name.
        ids = [task["id"] for task in server.api("tasks.get_all", only_fields=["id"])["tasks"]]
        server.api("tasks.delete_many", ids=ids, force=True)
        server.api("models.delete_many", ids=[model["id"] for model in server.api("models.get_all")["models"]])
    no_refusal(proxy)
    assert sum(proxy.counts.values()) > 100, proxy.counts
    print(f"{version}: {sum(proxy.counts.values())} requests of {len({name for name, _ in proxy.counts})} endpoints")


@pytest.mark.parametrize("version", ["newest", "2.0"])
def test_an_agent_that_runs_a_task(server, proxy, version):
    """The agents are 3.0 and 2.0."""
    python = interpreter(version)
    queue = server.queue("default")
    script = {"binary": python, "entry_point": "job.py", "working_dir": ".", "diff": "print('step', 6 * 7)\n"}
    task = server.api("tasks.create", name="job", type="training", script=script)["id"]
    server.api("tasks.enqueue", task=task, queue=queue)
    no_install = {"CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": python, "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL": "1"}
    words = [python, "-m", "clearml_agent", "daemon", "--queue", "default", "--cpu-only", "--foreground"]
    server.start(words, "agent.log", CLEARML_WORKER_NAME="node1", PYTHONUNBUFFERED="1", **no_install)
    wait_until(lambda: server.status(task) in ("completed", "failed"), 120, "the task's end")
    assert server.status(task) == "completed", server.log_of(task) + server.text("agent.log")
    assert "step 42" in server.log_of(task)
    no_refusal(proxy)
