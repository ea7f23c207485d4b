"""Many tasks in many queues on many nodes: how fast they become pods, by how many calls, and in how much memory. `make test` has
a short form; `make soak` has 1,000 tasks."""

import concurrent.futures
import os
import pathlib
import re
import time

import pytest

from api import node
from processes import wait_until
from queues import occupied

TASKS = int(os.environ.get("CANTLE_TEST_TASKS", "200"))
QUEUES = 20
NODES = 100
# The controller's own calls to the API server. The scheduler binds by a subresource.
COUNTED = re.compile(r'^apiserver_request_total\{(?=.*resource="(pods|leases)")(?=.*subresource="")(?=.*verb="(POST|PATCH|PUT|DELETE|LIST)").* (\S+)$')


@pytest.fixture
def nodes(plane):
    names = [f"hand-scale-{n}" for n in range(NODES)]
    for name in names:
        plane.api.create("/api/v1/nodes", node(name, {"scale": "yes"}))
    yield names
    for name in names:
        plane.api.delete(f"/api/v1/nodes/{name}")


def calls(plane):
    found = (COUNTED.match(line) for line in plane.api.get("/metrics").splitlines())
    return sum(float(each.group(3)) for each in found if each)


def memory_mib(queues):
    (pid,) = queues.pids()
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) / 1024


def test_many_tasks_become_pods(plane, nodes, make_queues, server, capsys):
    names = [f"queue{n:02}" for n in range(QUEUES)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: server.submit(names[n % QUEUES], "true"), range(TASKS)))
    before = calls(plane)
    glue = {"queue": names, "basePodTemplate": {"nodeSelector": {"scale": "yes"}}}
    queues = make_queues(glue, is_awaited=False)
    # Asked of ClearML's server, so that only the controller's calls of the API server are counted.
    running = lambda: server.api("tasks.get_all", status=["in_progress"], only_fields=["id"])["tasks"]
    wait_until(running, 120, queues.log)
    began = time.monotonic()
    wait_until(lambda: len(running()) == TASKS, 300, queues.log)
    seconds, per_task = time.monotonic() - began, (calls(plane) - before) / TASKS
    memory = memory_mib(queues)
    with capsys.disabled():
        print(f"\n{TASKS} tasks, {QUEUES} queues, {NODES} nodes: {TASKS / seconds:.0f} tasks/s to pods, ", end="")
        print(f"{per_task:.1f} API calls per task, {memory:.0f} MiB")
    wait_until(lambda: sum(map(occupied, queues.pods())) == TASKS, 120, queues.log)
    assert len({pod["metadata"]["name"] for pod in queues.pods()}) == TASKS, "one each"
    assert per_task < 10 and memory <= 100
