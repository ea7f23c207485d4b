"""Tasks in queues become pods on a real cluster: their states, their logs, and how many there are at once."""

import json
import os
import pathlib
import time

import pytest

from processes import wait_until
from queues import Witness
from test_pods import FILL

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The long form has five.
REPLICAS = int(os.environ.get("CANTLE_TEST_REPLICAS", "3"))
# The values that ClearML documents for fractions.
FRACTIONS = {
    "queues": {
        "default0500": {"templateOverrides": {"labels": {"required-resources": "0.5", "clearml-injector/fraction": "0.500"}}},
        "default0250": {"templateOverrides": {"labels": {"required-resources": "0.25", "clearml-injector/fraction": "0.250"}}},
        "plain": {},
        "odd": {"templateOverrides": {"labels": {"clearml-injector/fraction": "0.333"}}},
    },
}


@pytest.mark.dra("Tasks of queues get their share")
def test_the_documented_queues(make_queues, server, injector, start):
    driver = start("1xH100-80GB")
    queues = make_queues(FRACTIONS)
    command = json.dumps(["python3", "-c", FILL.replace("time.sleep(600)", "time.sleep(5)")])
    tasks = server.sdk(f"""
from clearml import Task
answer = []
for queue in ["default0500", "default0250"]:
    task = Task.create(project_name="P1", task_name=queue, task_type="training")
    task.set_parameter("cantle/command", {command!r})
    Task.enqueue(task, queue_name=queue)
    answer.append(task.id)
""")
    memory_mib = driver.truth()[0]["memory_bytes"] >> 20
    for task, share in zip(tasks, [0.5, 0.25]):
        wait_until(lambda: "total" in server.log_of(task), 240, lambda: server.message(task) + driver.log())
        words = server.log_of(task).split()
        assert 0 <= share * memory_mib - int(words[1]) < 4, words
        assert words[4:] == ["code", "2"], "no more than its share"
    assert [server.wait(task) for task in tasks] == ["completed", "completed"]
    odd = server.submit("odd", "true")
    assert server.wait(odd) == "failed" and "0.333" in server.message(odd), "the injector says why"
    wait_until(lambda: not queues.pods(), 120, queues.log)
    wait_until(lambda: not driver.leases(), 60, driver.log)


def test_a_queue_of_mig_instances(make_queues, server, start):
    driver = start("1xH100-80GB:mig")
    queues = make_queues({"queues": {"mig": {"templateOverrides": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}}}})
    tasks = [server.submit("mig", "sleep", "600") for _ in range(2)]
    for task in tasks:
        wait_until(lambda: server.message(task) == "running on node worker", 180, lambda: server.message(task) + queues.log())
    assert [each["profile"] for each in driver.truth()[0]["mig"]] == ["1g.10gb"] * 2
    for task in tasks:
        server.api("tasks.stop", task=task)
    wait_until(lambda: not driver.leases(), 60, driver.log)


def test_never_more_than_max_pods_while_replicas_are_killed(make_queues, server):
    """One of the controller's pods dies every other second, and once all die while two tasks run."""
    glue = {"queues": {"two": {"queueSettings": {"maxPods": 2}}}}
    # Short: the next replica waits for it whenever the leader was killed.
    queues = make_queues(glue, replicas=REPLICAS, lease="6s")
    tasks, ends = [], []
    with Witness(queues, seed=9, every_s=2, all_at=2) as witness:
        # Where replicas start slowly, few are there to be killed: more tasks then.
        while len(tasks) < 8 or (witness.kills <= 2 and len(tasks) < 80):
            more = [server.submit("two", "sh", "-c", "echo it ran; sleep 1") for _ in range(8)]
            tasks += more
            ends += [server.wait(task, "completed", "failed", seconds=300) for task in more]
    assert ends == ["completed"] * len(tasks), queues.log()
    assert witness.most == 2 and witness.kills > 2 and witness.all_killed
    assert {task: len(uids) for task, uids in witness.uids.items()} == dict.fromkeys(tasks, 1), "each in one pod"
    assert [server.log_of(task).count("it ran") for task in tasks] == [1] * len(tasks)


def test_states_follow_pods(make_queues, server):
    queues = make_queues({
        "queue": "plain, nowhere, tight",
        "queues": {
            "nowhere": {"templateOverrides": {"nodeSelector": {"no": "node"}}},
            "pulls": {"templateOverrides": {"imagePullPolicy": "Always"}},
            "tight": {"templateOverrides": {"resources": {"limits": {"memory": "32Mi"}}}},
            "files": {"templateOverrides": {"fileMounts": [{"name": "it.sh", "folderPath": "/mnt/own", "fileContent": "echo from a file"}]}},
        },
    })
    eat = "a = bytearray(256 << 20)\nfor at in range(0, len(a), 4096): a[at] = 1"
    good = server.submit("plain", "sh", "-c", "echo first; echo last")
    bad = server.submit("plain", "sh", "-c", "echo oh; exit 3")
    image = server.submit("plain", "true", container={"image": "localhost/none:1"})
    # No registry listens there; in the tests a pod may fail to get its image for five seconds.
    pulls = server.submit("pulls", "true", container={"image": "127.0.0.1:9/none:1"})
    oom = server.submit("tight", "python3", "-c", eat)
    file = server.submit("files", "sh", "/mnt/own/it.sh")
    nothing = server.submit("plain")
    waits = server.submit("nowhere", "true")

    assert server.wait(good) == "completed"
    assert server.log_of(good) == "first\nlast\n"
    assert server.wait(bad) == "failed" and "exit code 3" in server.message(bad)
    assert server.log_of(bad) == "oh\n"
    assert server.wait(image) == "failed" and "ErrImageNeverPull" in server.message(image)
    assert server.wait(pulls) == "failed" and "127.0.0.1:9/none:1" in server.message(pulls), server.message(pulls)
    assert server.wait(oom) == "failed" and "out of memory" in server.message(oom) and "32Mi" in server.message(oom)
    assert server.wait(file) == "completed" and server.log_of(file) == "from a file\n"
    assert server.wait(nothing) == "failed" and "neither a command" in server.message(nothing)
    wait_until(lambda: "waiting for a place: 0/" in server.message(waits), 60, lambda: server.message(waits))
    server.api("tasks.stop", task=waits)
    wait_until(lambda: not queues.pods(), 120, queues.log)
    assert server.wait(waits) == "stopped"


def test_a_running_task_is_stopped_and_a_lost_one_runs_again(make_queues, server, plane, worker, request):
    # Whatever happens: the tests after this one need the node.
    request.addfinalizer(lambda: plane.api.merge(f"/api/v1/nodes/{worker.name}", {"spec": {"unschedulable": None}}))
    queues = make_queues({"queue": "q"})
    served = lambda: [queue["name"] for worker in server.api("workers.get_all")["workers"] for queue in worker["queues"]]
    wait_until(lambda: served() == ["q"], 60, queues.log)
    path = f"/api/v1/namespaces/{queues.namespace}/pods"
    stopped = server.submit("q", "sh", "-c", "echo begun; sleep 600")
    lost = server.submit("q", "sh", "-c", "echo begun; sleep 600")
    evicted = server.submit("q", "sh", "-c", "echo begun; sleep 600")
    for task in [stopped, lost, evicted]:
        wait_until(lambda: "begun" in server.log_of(task), 180, queues.log)
        wait_until(lambda: server.message(task) == "running on node worker", 60, lambda: server.message(task))

    server.api("tasks.stop", task=stopped)
    began = time.monotonic()
    is_told = lambda: (pod := queues.pod_of(stopped)) is None or pod["spec"].get("activeDeadlineSeconds") == 1
    wait_until(is_told, 60, queues.log)
    print(f"stopped: its pod was told after {time.monotonic() - began:.1f} s")
    assert server.wait(stopped) == "stopped"

    plane.api.delete(f"{path}/clearml-id-{lost}", 1)
    wait_until(lambda: server.log_of(lost).count("begun") == 2, 180, queues.log)
    drain(plane, worker, f"{path}/clearml-id-{evicted}")
    wait_until(lambda: "unschedulable" in server.message(evicted), 60, lambda: server.message(evicted))
    plane.api.merge(f"/api/v1/nodes/{worker.name}", {"spec": {"unschedulable": None}})
    wait_until(lambda: server.log_of(evicted).count("begun") == 2, 180, queues.log)
    for task in [lost, evicted]:
        assert server.status(task) == "in_progress", "it runs a second time"
        server.api("tasks.stop", task=task)
    wait_until(lambda: not queues.pods(), 120, queues.log)
    assert [server.wait(task) for task in [lost, evicted]] == ["stopped"] * 2


def drain(plane, worker, pod):
    """As `kubectl drain` does: nothing new comes to the node, and what is there has to go."""
    plane.api.merge(f"/api/v1/nodes/{worker.name}", {"spec": {"unschedulable": True}})
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod.rpartition("/")[2]}}
    plane.api.create(f"{pod}/eviction", eviction)


def test_the_task_of_a_lost_node_runs_again_when_nobody_runs_it(make_queues, server, plane, worker):
    # The controller is on that node too, and runs on while its kubelet is away, as one on another node would.
    queues = make_queues({"queue": "q"}, tolerations=[{"operator": "Exists"}])
    task = server.submit("q", "sh", "-c", "echo begun; sleep 600")
    wait_until(lambda: "begun" in server.log_of(task), 180, queues.log)
    wait_until(lambda: server.message(task) == "running on node worker", 60, lambda: server.message(task))
    first = queues.pod_of(task)["metadata"]["uid"]
    node = f"/api/v1/nodes/{worker.name}"
    worker.kubelet.kill()
    # The action of the node controller after a silence; in these tests it waits forever.
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    lost = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    gone = [*lost, {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]
    try:
        plane.api.call("PATCH", f"{node}/status", {"status": {"conditions": [ready]}}, "application/strategic-merge-patch+json")
        plane.api.merge(node, {"spec": {"taints": lost}})
        plane.api.delete(f"/api/v1/namespaces/{queues.namespace}/pods/clearml-id-{task}")
        wait_until(lambda: "it runs again when node worker" in server.message(task), 60, lambda: server.message(task))
        assert server.status(task) == "in_progress" and queues.pod_of(task)["metadata"]["uid"] == first, "it may still run"
        # The owner of the cluster says that it does not.
        plane.api.merge(node, {"spec": {"taints": gone}})
        wait_until(lambda: (pod := queues.pod_of(task)) and pod["metadata"]["uid"] != first, 180, queues.log)
    finally:
        worker.kubelet.start()
        plane.api.merge(node, {"spec": {"taints": None}})
    wait_until(worker.is_ready, 120, worker.kubelet.log)
    wait_until(lambda: server.log_of(task).count("begun") == 2, 180, lambda: server.message(task) + queues.log())
    server.api("tasks.stop", task=task)
    assert server.wait(task) == "stopped"


def test_a_script_of_the_sdk_in_a_pod(make_queues, server):
    """`clearml-agent execute` in the pod: it gets the script and its parameters from the server, and what the script reports is there."""
    packages = next((ROOT / ".venv-clearml/lib").glob("python3.*/site-packages"))
    if packages.parent.name != "python3.11":
        pytest.skip(f"the image has Python 3.11, ClearML's agent is installed here for {packages.parent.name}")
    queues = make_queues({
        "queue": "q",
        "webServerUrlReference": server.url,
        "fileServerUrlReference": f"{server.url}/files",
        "basePodTemplate": {
            # The server is on this machine's loopback.
            "hostNetwork": True,
            "env": [
                {"name": "PYTHONPATH", "value": "/clearml"},
                {"name": "CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL", "value": "1"},
                {"name": "CLEARML_AGENT_SKIP_PIP_VENV_INSTALL", "value": "/usr/bin/python3"},
            ],
            "volumes": [{"name": "clearml", "hostPath": {"path": str(packages.resolve())}}],
            "volumeMounts": [{"name": "clearml", "mountPath": "/clearml", "readOnly": True}],
        },
    })
    (server.home / "train.py").write_text("""
from clearml import Task
task = Task.init(project_name="P1", task_name="train")
options = task.connect({"epochs": 1})
print("epochs", options["epochs"])
task.get_logger().report_single_value("epochs", float(options["epochs"]))
""")
    # As an image has it that brings ClearML's agent along.
    setup = "printf '#!/bin/sh\\nexec python3 -m clearml_agent \"$@\"\\n' > /usr/bin/clearml-agent; chmod +x /usr/bin/clearml-agent"
    task = server.sdk(f"""
from clearml import Task
task = Task.create(project_name="P1", task_name="train", script={str(server.home / "train.py")!r}, add_task_init_call=False)
task.set_parameter("General/epochs", 7)
task.set_base_docker(docker_setup_bash_script={setup!r})
Task.enqueue(task, queue_name="q")
answer = task.id
""")
    assert server.wait(task, seconds=300) == "completed", server.log_of(task) + queues.log()
    assert "epochs 7" in server.log_of(task)
    values = server.task(task)["last_metrics"]
    assert [each["value"] for metric in values.values() for each in metric.values()] == [7.0], values
