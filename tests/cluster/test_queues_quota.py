"""Quotas of projects across a real cluster: what is idle is lent, and taken back from running pods when its owner needs it."""

import os
import time

import pytest

from api import pod
from processes import wait_until
from queues import FINAL

HALF = {"labels": {"required-resources": "0.5", "clearml-injector/fraction": "0.500"}}
WHOLE = {"labels": {"clearml-injector/fraction": "1"}}
INSTANCE = {"resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}}}
GLUE = {"queues": {"half": {"templateOverrides": HALF}, "whole": {"templateOverrides": WHOLE}, "mig": {"templateOverrides": INSTANCE}}}
# A program that has half a second's work to do after SIGTERM.
TIDY = "trap 'sleep 0.5; echo tidied; exit 0' TERM; echo begun; while :; do sleep 0.1; done"


class Projects:
    """Projects with quotas, and their tasks."""

    def __init__(self, server, **quotas):
        self.server = server
        for name, quota in quotas.items():
            self.set(name, **quota)
        self.ids = {each["name"]: each["id"] for each in server.api("projects.get_all")["projects"]}

    def set(self, name, gpu, limit=None):
        quota = {"deserved": round(gpu * 1000), "weight": 1}
        if limit is not None:
            quota["limit"] = round(limit * 1000)
        self.server.api("cantle.set_quota", project=name, quota={"gpu": quota})

    def submit(self, project, queue, *argv):
        return self.server.submit(queue, *argv, project=self.ids[project])

    def held_milli(self, project):
        views = self.server.api("cantle.get_projects")["projects"]
        return next(view["allocated_milli"] for view in views if view["name"] == project)


def is_on_node(server, task):
    return server.message(task) == "running on node worker"


def wait_running(server, tasks, queues):
    seen = lambda: "\n".join(server.message(task) for task in tasks) + queues.log()
    wait_until(lambda: all(is_on_node(server, task) for task in tasks), 240, seen)


def wait_states(server, tasks, wanted, queues):
    """A task that makes room goes back when its pod has ended and all of the pod's log has come."""
    states = lambda: sorted(server.status(task) for task in tasks)
    wait_until(lambda: states() == wanted, 180, lambda: f"{states()}\n{queues.log()}")


def wait_held(projects, **milli):
    """What the server counts for each project."""
    held = lambda: {name: projects.held_milli(name) for name in milli}
    wait_until(lambda: held() == milli, 60, held)


def stop(server, queues, tasks):
    """While the node's driver is there: the kubelet lets no pod go without it."""
    for task in tasks:
        if server.status(task) not in FINAL:
            server.api("tasks.stop", task=task)
    ours = lambda: [each for each in queues.pods() if "clearml-task-id" in each["metadata"].get("labels", {})]
    wait_until(lambda: not ours(), 180, queues.log)


@pytest.mark.dra("Quotas of projects lend and take back")
def test_what_was_lent_is_taken_back(make_queues, server, injector, start):
    driver = start("2xH100-80GB")
    queues = make_queues(GLUE)
    projects = Projects(server, a={"gpu": 1}, b={"gpu": 1})
    lent = [projects.submit("a", "half", "sh", "-c", TIDY) for _ in range(4)]
    more = projects.submit("a", "half", "sh", "-c", TIDY)
    wait_running(server, lent, queues)
    # Over its quota, as nobody else needs it.
    wait_held(projects, a=2000)
    wait_until(lambda: "project a holds 2 GPUs" in server.message(more), 60, lambda: server.message(more))
    assert queues.pod_of(more) is None, "it waits in its queue, not as a pod"

    began = time.monotonic()
    owner = projects.submit("b", "whole", "sleep", "600")
    wait_running(server, [owner], queues)
    print(f"\nreclaimed: the owner's task runs after {time.monotonic() - began:.1f} s")
    wait_states(server, lent, ["in_progress"] * 2 + ["queued"] * 2, queues)
    back = [task for task in lent if server.status(task) == "queued"]
    for task in back:
        assert server.log_of(task).count("tidied") == 1, "it had its grace, and goes back with all of its log: " + server.log_of(task)
        wait_until(lambda: "waiting: " in server.message(task), 60, lambda: server.message(task))
    reasons = [event["message"] for event in server.api("cantle.get_events", limit=500)["events"] if event["kind"] == "reclaim"]
    assert len(reasons) == 2 and all("reclaimed by project b" in reason for reason in reasons), reasons
    wait_held(projects, a=1000, b=1000)
    wait_until(lambda: len(driver.leases()) == 3, 60, "two halves and a whole")

    server.api("tasks.stop", task=owner)
    wait_running(server, lent, queues)
    times = lambda: [server.log_of(task).count("begun") for task in back]
    wait_until(lambda: times() == [2, 2], 60, lambda: f"they run again, once more: {times()}")
    stop(server, queues, [*lent, more])


@pytest.mark.parametrize("attempt", range(int(os.environ.get("CANTLE_TEST_ATTEMPTS", "1"))))
def test_a_stranger_a_limit_and_a_killed_controller(make_queues, server, injector, start, plane, namespace, attempt):
    start("2xH100-80GB")
    path = f"/api/v1/namespaces/{namespace}/pods"
    stranger = pod("stranger", ["sleep", "600"])
    stranger["metadata"]["labels"] = WHOLE["labels"]
    plane.api.create(path, stranger)
    phase = lambda: plane.api.get(f"{path}/stranger")["status"]["phase"]
    wait_until(lambda: phase() == "Running", 180, phase)
    queues = make_queues(GLUE)
    projects = Projects(server, a={"gpu": 0.5}, b={"gpu": 0.5})
    lent = [projects.submit("a", "half", "sh", "-c", TIDY) for _ in range(3)]
    wait_running(server, lent[:2], queues)
    words = lambda: server.message(lent[2])
    wait_until(lambda: "waiting: " in words(), 60, words)
    assert queues.pod_of(lent[2]) is None, "the stranger's GPU is no room"
    # A pod that no queue made has a record of its own, and a task's pod is its task's.
    names = lambda: sorted(line["name"] for line in server.usage("task") if line["kind"] == "allocated")
    wait_until(lambda: names() == [f"{namespace}/stranger", "task", "task"], 60, lambda: server.usage("task"))

    owner = projects.submit("b", "half", "sleep", "600")
    reclaimed = lambda: [event for event in server.api("cantle.get_events", limit=500)["events"] if event["kind"] == "reclaim"]
    wait_until(reclaimed, 120, queues.log)
    queues.kill(queues.ready()[:1])
    wait_running(server, [owner], queues)
    print("\nreclaimed through the end of the controller")
    assert len(reclaimed()) == 1
    wait_states(server, lent, ["in_progress", "queued", "queued"], queues)
    times = lambda: [server.log_of(task).count("begun") for task in lent[:2]]
    wait_until(lambda: times() == [1, 1], 60, lambda: f"each has run once: {times()}")
    assert phase() == "Running", "nobody stops a stranger's pod"

    projects.set("a", 0.5, limit=0.5)
    server.api("tasks.stop", task=owner)
    waits = [task for task in lent if server.status(task) == "queued"]
    told = lambda: "\n".join(server.message(task) for task in waits)
    wait_until(lambda: "its limit is 0.5 GPU" in told(), 120, told)
    # The kubelet still ends their former pod.
    made = [new for task in waits if (new := queues.pod_of(task)) and "deletionTimestamp" not in new["metadata"]]
    assert not made
    stop(server, queues, lent)
    plane.api.delete(f"{path}/stranger", 1)
    wait_until(lambda: not plane.api.items(path), 60, "the end of the stranger")


def test_instances_of_mig_count_by_their_slices(make_queues, server, start):
    driver = start("1xH100-80GB:mig")
    queues = make_queues(GLUE)
    projects = Projects(server, a={"gpu": 0.5}, b={"gpu": 0.5})
    lent = [projects.submit("a", "mig", "sleep", "600") for _ in range(2)]
    wait_running(server, lent, queues)
    # 4 of 8 memory slices each.
    wait_held(projects, a=1000)
    owner = projects.submit("b", "mig", "sleep", "600")
    wait_running(server, [owner], queues)
    wait_states(server, lent, ["in_progress", "queued"], queues)
    wait_held(projects, a=500, b=500)
    assert [each["profile"] for each in driver.truth()[0]["mig"]] == ["3g.40gb"] * 2
    stop(server, queues, [*lent, owner])
