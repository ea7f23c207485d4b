"""Tasks of ClearML's SDK as a new user has them: no clearml.conf, an empty home, several at once on one machine."""

import os
import pathlib
import signal
import sys
import time

from conftest import GPUS, wait_until
from ours import command, daemon, ended

# `make soak` runs 32. Each run of ClearML's agent is ten seconds of the processor.
TASKS = int(os.environ.get("CANTLE_TEST_SIDE_BY_SIDE", "3"))

# A task that an agent runs uploads models to where the server says, not to where its code says; so the address is given.
MODEL = """
from clearml import OutputModel
from clearml.backend_api import Session
open('net.bin', 'w').write('7')
to = Session.get_files_server_host()
OutputModel(task=task, name='net').update_weights('net.bin', upload_uri=to, auto_delete_file=False, async_enable=False)
"""

UPLOADS = """
import numpy
from clearml import Task
task = Task.init(output_uri=True, auto_connect_frameworks=False, auto_resource_monitoring=False)
task.upload_artifact('weights', {'a': 1}, wait_on_upload=True)
task.get_logger().report_image('shots', 'one', iteration=0, image=numpy.zeros((8, 8, 3), dtype='uint8'))
task.flush(wait_for_uploads=True)
print('page', task.get_output_log_web_page(), flush=True)
"""


def fresh(server):
    """The server's environment as a program has it that only knows its home."""
    home = server.home / "fresh"
    home.mkdir()
    (home / "tmp").mkdir()
    lost = ["CLEARML_WEB_HOST", "CLEARML_FILES_HOST", "CLEARML_CONFIG_FILE", "CLEARML_CACHE_DIR"]
    for name in lost:
        server.env.pop(name)
    server.env["HOME"] = str(home)
    return home


def test_a_task_knows_the_addresses_of_its_server(server):
    """Without a clearml.conf, and on a port that ClearML's SDK cannot guess from."""
    import requests

    fresh(server)
    queue = server.queue("half_gpu")
    daemon(server, "--queue", "half_gpu=0.5")
    (server.home / "job.py").write_text(UPLOADS + MODEL)
    task = command(server, "uploads", sys.executable, str(server.home / "job.py"))
    server.api("tasks.enqueue", task=task, queue=queue)
    assert ended(server, task, seconds=240) == ["completed"], server.log_of(task)
    wait_until(lambda: "page " in server.log_of(task), 60, "the log")
    page = next(line[5:] for line in server.log_of(task).splitlines() if line.startswith("page "))
    assert page.startswith(f"{server.url}/ui/") and requests.get(page, timeout=60).status_code == 200, page
    files = [path.name for path in (server.data / "files").rglob("*") if path.is_file()]
    assert len(files) == 3, f"an artifact, an image and a model: {files}"


def test_deleting_a_task_with_files_is_no_error(server):
    """The server deletes the files, then the SDK asks for each, an administrator's as well as a member's."""
    server.api("projects.create", name="P1", description="")
    anna = server.api("cantle.add_user", name="anna", role="member", project="P1")
    keys = {"CLEARML_API_ACCESS_KEY": anna["access_key"], "CLEARML_API_SECRET_KEY": anna["secret_key"]}
    job = UPLOADS.replace("Task.init(", "Task.init('P1', 'deleted', ") + "{}\ntask.close()\nanswer = task.id\n"
    delete = "from clearml import Task\nanswer = bool(Task.get_task(task_id={!r}).delete(raise_on_error=True))\n"
    for model, who in [(MODEL, {}), ("", keys)]:
        task = server.sdk(job.replace("{}\n", model), **who)
        assert server.sdk(delete.format(task), **who) is True
        assert [path for path in (server.data / "files").rglob("*") if task in str(path)] == []
    assert list((server.data / "files").iterdir()) == [], "directories that are empty go too"


def sdk_task(server, text, packages):
    """A task whose code and packages ClearML's agent sets up, as `clearml-task` makes it."""
    (server.home / "job.py").write_text(text)
    words = ["--project", "P1", "--name", "base", "--script", "job.py", "--skip-task-init", "--packages", *packages]
    out = server.run(["clearml-task", *words], CLEARML_WEB_HOST=server.url, CLEARML_FILES_HOST=f"{server.url}/files")
    return next(word[3:] for line in out.splitlines() for word in line.split() if word.startswith("id="))


# A console script names the interpreter that installed it, and so does a copy of it.
SCRIPT = """
import subprocess, sys
said = subprocess.run([sys.prefix + "/bin/tabulate"], input="a b", capture_output=True, text=True, check=True).stdout
print("ran in", sys.prefix, "script", "a  b" in said, flush=True)
"""
PACKAGES = ["tabulate==0.9.0"]


def all_at_once(server, base, count):
    """Clones that run at the same time and complete; their logs and the seconds from the first to the last."""
    tasks = [server.api("tasks.clone", task=base, new_task_name=str(n))["id"] for n in range(count)]
    began = time.monotonic()
    for task in tasks:
        server.api("tasks.enqueue", task=task, queue_name="eighth")
    states = ended(server, *tasks, seconds=300 + 30 * count)
    seconds = time.monotonic() - began
    failed = [task for task, state in zip(tasks, states) if state != "completed"]
    assert not failed, f"{len(failed)} of {count}: " + server.log_of(failed[0])[-3000:]
    wait_until(lambda: all("ran in" in server.log_of(task) for task in tasks), 60, "the logs")
    return [server.log_of(task) for task in tasks], seconds


def installed(logs):
    """The number of environments that were not copied."""
    return sum("Using Cached environment" not in log for log in logs)


def test_tasks_side_by_side_have_environments_of_their_own(server):
    """One of them installs the packages, the others wait and copy; none disturbs another, and nothing of theirs stays."""
    home = fresh(server)
    server.queue("eighth")
    last = int(GPUS.split("x")[0]) - 1
    words = ["--queue", "eighth=0.125", "--polling-interval", "0.2"]
    daemon(server, *words, gpus=f"0-{last}", TMPDIR=str(home / "tmp"))
    base = sdk_task(server, SCRIPT, PACKAGES)
    for cache, count in [("empty", TASKS), ("full", TASKS - 1)]:
        logs, seconds = all_at_once(server, base, count)
        print(f"{count} tasks, cache {cache}: {installed(logs)} environments installed, {seconds:.0f} s")
        assert installed(logs) == (1 if cache == "empty" else 0)
        said = {line for log in logs for line in log.splitlines() if line.startswith("ran in")}
        assert len(said) == 1 and said.pop().endswith("script True"), "one path for all, and scripts that run there"
    left = lambda: [path for path in (home / ".clearml").glob("venvs-builds*/*")]
    wait_until(lambda: not left(), 60, f"the directories of tasks are gone: {left()}")
    [entry] = [path for path in (home / ".clearml/venvs-cache").iterdir() if path.is_dir()]
    # Now a broken entry, as a kill in the middle of its removal leaves it: it is found, and thrown away.
    [lost] = entry.glob("lib/python*/site-packages/tabulate/__init__.py")
    lost.unlink()
    logs, _ = all_at_once(server, base, 1)
    assert installed(logs) == 1


def agent_of(task):
    """The process that sets up this task."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if task.encode() in words and b"execute" in words and b"__sdk-task" not in words and b"__task-init" not in words:
            return int(process.name)
    return None


def test_a_builder_that_is_killed_leaves_its_place_to_the_next(server):
    home = fresh(server)
    server.queue("eighth")
    daemon(server, "--queue", "eighth=0.125", "--polling-interval", "0.2", TMPDIR=str(home / "tmp"))
    base = sdk_task(server, SCRIPT, PACKAGES)
    tasks = [server.api("tasks.clone", task=base, new_task_name=str(n))["id"] for n in range(3)]
    for task in tasks:
        server.api("tasks.enqueue", task=task, queue_name="eighth")
    waits = lambda task: "waiting for another task to install" in server.log_of(task)
    wait_until(lambda: sum(waits(task) for task in tasks) == 2, 120, "two wait")
    [builder] = [task for task in tasks if not waits(task)]
    os.kill(wait_until(lambda: agent_of(builder), 60, "the builder"), signal.SIGKILL)
    others = [task for task in tasks if task != builder]
    assert ended(server, *others, seconds=300) == ["completed"] * 2, server.log_of(others[0])[-3000:]
    assert ended(server, builder) == ["failed"]
    assert installed([server.log_of(task) for task in others]) == 1
