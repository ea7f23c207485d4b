"""Code of ClearML's SDK as an ordinary Unix user: ClearML's agent, its environment and its caches are that user's."""

import json
import pathlib
import stat
import sys

import pytest
from conftest import BIN, wait_until
from ours import daemon, ended

USER, UID = "scientist", 4711
HOME = f"/run/homes/{USER}"
JOB = """
import getpass, json, os
from clearml import Task
task = Task.init()
print("found", json.dumps({
    "user": getpass.getuser(),
    "uid": os.getuid(),
    "home": os.environ["HOME"],
    "directory": os.getcwd(),
}), flush=True)
"""


@pytest.fixture
def scientist(server):
    """The machine has a user, whose home is empty."""
    # This is in a directory that is root's alone.
    del server.env["CLEARML_CACHE_DIR"]
    run = server.machine.path("/run")
    text = server.machine.path("/etc/passwd").read_text()
    (run / "passwd").write_text(f"{text}{USER}:x:{UID}:{UID}::{HOME}:/bin/sh\n")
    # The interpreter may be in the home of root, which is closed to others. It is open on this machine only.
    folders = pathlib.Path(sys.executable).resolve().parents
    for folder in [folder for folder in folders if not folder.stat().st_mode & stat.S_IXOTH]:
        layers = "mkdir -p /run/layer && mount -t tmpfs tmpfs /run/layer && mkdir /run/layer/upper /run/layer/work"
        overlay = f"mount -t overlay -o lowerdir={folder},upperdir=/run/layer/upper,workdir=/run/layer/work overlay {folder}"
        server.run(["sh", "-c", f"{layers} && {overlay} && chmod 711 {folder}"])
    server.run(["sh", "-c", f"mount --bind /run/passwd /etc/passwd && mkdir -p {HOME} && chown {UID}:{UID} {HOME} && chmod 700 {HOME}"])
    return server


def test_a_task_of_the_sdk_runs_as_the_user(scientist):
    server = scientist
    queue = server.queue("q")
    script = {"entry_point": "job.py", "working_dir": ".", "diff": JOB, "binary": f"{BIN}/python3"}
    task = server.api("tasks.create", name="t", type="training", script=script)["id"]
    # It finds the SDK where the test has it, so that nothing is fetched.
    env = {"CLEARML_AGENT_SKIP_PIP_VENV_INSTALL": f"{BIN}/python3", "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL": "1"}
    daemon(server, "--queue", "q=0.5", "--task-user", USER, **env)
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task, seconds=300) == ["completed"], server.log_of(task) + server.text("daemon.log")
    wait_until(lambda: "found {" in server.log_of(task), 60, lambda: server.log_of(task))
    found = json.loads(next(line for line in server.log_of(task).splitlines() if "found {" in line).split("found ")[1])
    assert (found["user"], found["uid"], found["home"]) == (USER, UID, HOME), found
    # Every task has its working directory at this place.
    assert found["directory"] == "/run/cantle/work/code", found
    # What it left in the home is the user's, and its working directory goes with the task.
    owners = server.run(["find", HOME, "-printf", "%u\n"]).split()
    assert set(owners) == {USER}, owners
    wait_until(lambda: not server.run(["sh", "-c", f"ls -d {HOME}/.clearml/venvs-builds/cantle-* || true"]).strip(), 60, "the removal")
