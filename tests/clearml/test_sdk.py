"""ClearML's SDK, unmodified, against our server."""

import pytest

TRAIN = """
from clearml import OutputModel, Task
task = Task.init(project_name='P1', task_name='train', auto_connect_frameworks=False, output_uri=True)
params = task.connect({'lr': 0.1, 'n': 3})
task.connect_configuration({'a': {'b': 1}}, name='conf')
logger = task.get_logger()
for i in range(50):
    logger.report_scalar('loss', 'train', 1 / (i + 1), i)
logger.report_single_value('best', 0.25)
logger.report_plotly('plot', 'series', figure={'data': [{'type': 'scatter', 'x': [1, 2], 'y': [3, 4]}], 'layout': {}}, iteration=0)
print('hello from the task')
task.upload_artifact('numbers', {'a': 1}, wait_on_upload=True)
open('weights.bin', 'wb').write(b'weights')
OutputModel(task=task, name='net').update_weights('weights.bin', auto_delete_file=False)
task.set_base_docker('python:3.11-slim', docker_arguments='--ipc=host')
answer = task.id
task.flush(wait_for_uploads=True)
task.close()
"""


@pytest.mark.gate
def test_a_task_from_init_to_close_and_all_it_leaves_behind(server):
    task = server.sdk(TRAIN)
    assert server.status(task) == "completed"
    seen = server.sdk(f"""
from clearml import Task
task = Task.get_task(task_id={task!r})
answer = dict(
    params=task.get_parameters(),
    conf=task.get_configuration_object_as_dict('conf'),
    scalars=task.get_reported_scalars()['loss']['train'],
    all_scalars=task.get_all_reported_scalars()['loss']['train']['y'],
    last=task.get_last_scalar_metrics()['loss']['train'],
    single=task.get_reported_single_values(),
    console=''.join(task.get_reported_console_output(10)),
    plots=len(task.get_reported_plots()),
    artifact=task.artifacts['numbers'].get(),
    model=open(task.models['output'][-1].get_local_copy()).read(),
    docker=task.get_base_docker(),
    by_name=[t.id for t in Task.get_tasks(project_name='P1', task_name='train')],
    queried=Task.query_tasks(project_name='P1', task_filter=dict(status=['completed'])),
)
""")
    exact = [1 / (i + 1) for i in range(50)]
    assert seen["params"] == {"General/lr": "0.1", "General/n": "3"}
    assert seen["conf"] == {"a": {"b": 1}}
    assert seen["scalars"]["x"] == list(range(50))
    assert seen["scalars"]["y"] == seen["all_scalars"] == exact
    assert seen["last"] == {"last": exact[-1], "min": exact[-1], "max": 1.0}
    assert seen["single"] == {"best": 0.25}
    assert "hello from the task" in seen["console"]
    assert seen["plots"] == 1
    assert seen["artifact"] == {"a": 1}
    assert seen["model"] == "weights"
    assert seen["docker"] == "python:3.11-slim --ipc=host"
    assert seen["by_name"] == seen["queried"] == [task]


def test_create_clone_enqueue_poll_edit_delete(server):
    server.queue("default")
    (server.home / "job.py").write_text("print('job')\n")
    answer = server.sdk("""
from clearml import Task
task = Task.create(project_name='P1', task_name='job', script='job.py', docker='python:3.11-slim')
seen = [task.get_status()]
try:
    Task.enqueue(task, queue_name='nope')
except ValueError as error:
    refusal = str(error)
Task.enqueue(task, queue_name='default')
task.reload()
seen.append(task.get_status())
Task.dequeue(task)
task.reload()
seen.append(task.get_status())
task.mark_started(force=True)
task.mark_failed(status_message='broken', force=True)
seen.append(task.get_status())
task.reset(force=True)
seen.append(task.get_status())
copy = Task.clone(source_task=task, name='copy')
copy.set_parameters({'General/lr': 2})
copy.add_tags(['red'])
red = [t.id for t in Task.get_tasks(project_name='P1', tags=['red'])]
answer = dict(seen=seen, refusal=refusal, parent=copy.parent == task.id, params=copy.get_parameters(),
              red=red == [copy.id], deleted=bool(copy.delete()), gone=Task.query_tasks(task_name='copy'))
""")
    assert answer["seen"] == ["created", "queued", "created", "failed", "created"]
    assert 'Could not find queue named "nope"' in answer["refusal"]
    assert answer["parent"] and answer["red"] and answer["deleted"]
    assert answer["params"] == {"General/lr": "2"}
    assert answer["gone"] == []


def test_the_raw_api_client(server):
    answer = server.sdk("""
from clearml.backend_api.session.client import APIClient
client = APIClient()
queue = client.queues.create(name='q')
client.workers.register(worker='w:1', queues=[queue.id])
answer = dict(
    queues=[q.name for q in client.queues.get_all()],
    workers=[w.id for w in client.workers.get_all()],
    entries=client.queues.get_by_id(queue=queue.id).entries,
)
""")
    assert answer == {"queues": ["q"], "workers": ["w:1"], "entries": []}


def test_wrong_credentials_are_told_so(server):
    import requests

    assert requests.get(f"{server.url}/auth.login", auth=("x", "y"), timeout=60).status_code == 401
    answer = requests.get(f"{server.url}/v2.13/tasks.get_all", json={}, timeout=60)
    assert answer.status_code == 401 and answer.json()["meta"]["result_subcode"] == 20
    stale = {"Authorization": "Bearer e30.e30.x"}
    answer = requests.get(f"{server.url}/tasks.get_all", json={}, headers=stale, timeout=60)
    assert answer.status_code == 401 and answer.json()["meta"]["result_subcode"] == 30
