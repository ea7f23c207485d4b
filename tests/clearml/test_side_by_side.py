"""Tasks of ClearML's SDK as a new user has them: no clearml.conf, an empty home, several at once on one machine."""

import os
import sys

from conftest import wait_until
from ours import command, daemon, ended

# `make soak` runs 32.
TASKS = int(os.environ.get("CANTLE_TEST_SIDE_BY_SIDE", "4"))

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


def test_tasks_side_by_side_have_environments_of_their_own(server):
    """Each installs a package, or copies what another has installed; none disturbs another, and nothing of theirs stays."""
    home = fresh(server)
    server.queue("eighth")
    daemon(server, "--queue", "eighth=0.125", "--polling-interval", "0.2", TMPDIR=str(home / "tmp"))
    base = sdk_task(server, "import six, sys\nprint('ran in', sys.prefix, six.__version__, flush=True)\n", ["six==1.17.0"])
    tasks = [server.api("tasks.clone", task=base, new_task_name=str(n))["id"] for n in range(TASKS)]
    for task in tasks:
        server.api("tasks.enqueue", task=task, queue_name="eighth")
    states = ended(server, *tasks, seconds=300 + 30 * TASKS)
    assert states == ["completed"] * TASKS, [server.log_of(t)[-3000:] for t, s in zip(tasks, states) if s != "completed"][:2]
    wait_until(lambda: all("ran in" in server.log_of(task) for task in tasks), 60, "the logs")
    builds = home / ".clearml/venvs-builds"
    prefixes = {line.split()[2] for task in tasks for line in server.log_of(task).splitlines() if line.startswith("ran in")}
    assert len(prefixes) == TASKS and all(str(builds) in prefix for prefix in prefixes), prefixes
    left = lambda: [path for path in (home / ".clearml").glob("venvs-builds*/*")]
    wait_until(lambda: not left(), 60, f"the directories of tasks are gone: {left()}")
    [entry] = [path for path in (home / ".clearml/venvs-cache").iterdir() if path.is_dir()]
    # Now a broken entry, as a kill in the middle of its removal leaves it: it is found, and thrown away.
    [lost] = entry.glob("lib/python*/site-packages/six.py")
    lost.unlink()
    again = server.api("tasks.clone", task=base, new_task_name="again")["id"]
    server.api("tasks.enqueue", task=again, queue_name="eighth")
    assert ended(server, again, seconds=300) == ["completed"], server.log_of(again)[-3000:]
