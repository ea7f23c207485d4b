"""Tasks of ClearML's SDK as a new user has them: no clearml.conf, an empty home, several at once on one machine."""

import sys

from conftest import wait_until
from ours import command, daemon, ended

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
