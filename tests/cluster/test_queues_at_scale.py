"""Many tasks in many queues on many nodes: how fast they become pods, by how many calls, and in how much memory. `make test` has
a short form; `make soak` has 1,000 tasks."""

import os
import pathlib
import re
import time

import pytest

from api import node
from processes import wait_until
from queues import Queues, Server, occupied

TASKS = int(os.environ.get("CANTLE_TEST_TASKS", "200"))
QUEUES = 20
NODES = 100
# What the controller itself asks of the API server. The scheduler binds by a subresource.
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


def memory_mib(program):
    status = pathlib.Path(f"/proc/{program.child.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) / 1024


def test_many_tasks_become_pods(plane, nodes, namespace, tmp_path, capsys):
    server = Server(tmp_path)
    template = {"nodeSelector": {"scale": "yes"}}
    queues = None
    try:
        for n in range(TASKS):
            server.submit(f"queue{n % QUEUES:02}", "true")
        glue = {"queue": [f"queue{n:02}" for n in range(QUEUES)], "basePodTemplate": template}
        before, began = calls(plane), time.monotonic()
        queues = Queues(plane, server, tmp_path, namespace, glue, lease="15s")
        # Asked of ClearML's server, so that only the controller's calls of the API server are counted.
        running = lambda: server.api("tasks.get_all", status=["in_progress"], only_fields=["id"])["tasks"]
        wait_until(lambda: len(running()) == TASKS, 300, queues.log)
        seconds, per_task = time.monotonic() - began, (calls(plane) - before) / TASKS
        memory = memory_mib(queues.replicas[0])
        with capsys.disabled():
            print(f"\n{TASKS} tasks, {QUEUES} queues, {NODES} nodes: {TASKS / seconds:.0f} tasks/s to pods, ", end="")
            print(f"{per_task:.1f} API calls per task, {memory:.0f} MiB")
        wait_until(lambda: sum(map(occupied, queues.pods())) == TASKS, 60, queues.log)
        assert len({pod["metadata"]["name"] for pod in queues.pods()}) == TASKS, "one each"
        assert per_task < 10 and memory <= 100
    finally:
        if queues:
            queues.remove()
        server.close()
