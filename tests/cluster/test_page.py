"""The Kubernetes pages, block by block, from a cluster without anything of cantle's: the real helm and kubectl, the image of
images/cantle/Dockerfile, the chart's parts as pods. Stand-ins: the name NVIDIA's image has is that of a Debian, GPUs are simulated, and
the image lies on the node in place of a registry."""

import json

import pytest

import chart
import injector
from api import RESOURCE
from page import Page, Shell
from processes import wait_until
from queues import Server

HALF_MIB = 20 << 10
NVIDIA = "docker.io/nvidia/cuda:12.6.3-base-ubuntu22.04"


@pytest.fixture
def fresh(plane, worker, built_images):
    """Nothing of cantle's is in the cluster, not even its namespace."""
    api, namespace = plane.api, f"/api/v1/namespaces/{chart.NAMESPACE}"
    chart.delete(api, chart.standing())
    api.delete(namespace)
    wait_until(lambda: api.find(namespace) is None, 180, "the end of cantle's namespace")
    worker.runtime.tag("localhost/cantle-test:1", NVIDIA)
    worker.with_gpus("1xA100-40GB")
    yield plane
    for name in ["cantle-tasks", chart.NAMESPACE]:
        api.delete(f"/api/v1/namespaces/{name}")
        wait_until(lambda: api.find(f"/api/v1/namespaces/{name}") is None, 180, f"the end of {name}")
    api.create("/api/v1/namespaces", {"metadata": {"name": chart.NAMESPACE}})
    chart.create(api, chart.standing())
    chart.remove_devices(api)


def first_pod(api, page, shell):
    """From the empty cluster to a pod with half a GPU."""
    page.next("pod with a label ──► injector")
    # Built once for all tests, with the base that is here (built.py).
    assert "docker build -f images/cantle/Dockerfile" in page.next("make build")
    shell.run(page.next("kubectl label nodes"), NODE="worker")
    injector.wait_called(api)
    shell.run(page.next("kubectl --namespace cantle-system rollout"))
    shell.write("half.yaml", page.next("apiVersion: v1\nkind: Pod"))
    assert "20480MiB" in shell.run(page.next("kubectl apply -f half.yaml")), "half of 40 GiB"


def compute(page, shell):
    """The pod with annotations, and one with the claim that users write: each sees its part of the memory."""
    shell.write("weighted.yaml", page.next("apiVersion: v1\nkind: Pod"))
    shell.run("kubectl apply -f weighted.yaml")
    shell.write("template.yaml", page.next("apiVersion: resource.k8s.io/v1"))
    shell.run("kubectl apply -f template.yaml")
    container = {"name": "own", "image": NVIDIA, "command": ["nvidia-smi"], "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "weighted"}], "containers": [container]}
    for name in ["weighted", "own"]:
        if name == "own":
            shell.run(f"kubectl run own --image={NVIDIA} --restart=Never --overrides='{json.dumps({'spec': spec})}'")
        shell.run(f"kubectl wait pod/{name} --for=jsonpath='{{.status.phase}}'=Succeeded --timeout=5m")
        assert "10240MiB" in shell.run(f"kubectl logs {name}")


def look(page, shell, kubeconfig):
    # test_gangs.py creates them, where the feature is on.
    page.next("apiVersion: scheduling.k8s.io/v1alpha2\nkind: PodGroup")
    page.next("schedulingGroup:")
    page.next("needs 1 GPU for each of 3 tasks at once")
    # Of a pod that has a slice: test_gpu_objects.py.
    shown = shell.run(page.next("kubectl get gpus.cantle.dev")).splitlines()
    documented = page.next("NAME ").splitlines()
    assert shown[0].split() == documented[0].split()
    assert shown[1].split()[:4] == documented[1].split()[:4], shown
    text = page.next("cantle gpus --kubeconfig")
    said = shell.run(text.replace("NAMESPACE/POD", "default/half"), FILE=kubeconfig)
    assert "A100" in said and "default/half" in said, said
    inside = shell.run(page.next("kubectl create clusterrole"))
    assert "A100" in inside and "worker" in inside, inside


def quota(api, page, shell):
    shell.write("quota.yaml", page.next("apiVersion: v1\nkind: ResourceQuota"))
    shell.run("kubectl apply -f quota.yaml")
    shell.run("kubectl run counted --image=localhost/cantle-test:1 --labels=clearml-injector/fraction=0.125 --restart=Never -- sleep 600")
    # The form of the event; test_gpu_quota.py has the event itself.
    page.next("needs 0.5 GPU; namespace team has 2.25 of the 2.5")
    listed = lambda: json.loads(shell.run("cantle projects --kubeconfig \"$KUBECONFIG\" -o json"))["items"]
    counted = lambda: [each for each in listed() if each["namespace"] == "default" and (each["quota_gpus"], each["given_milli"]) == ("2.5", 125)]
    wait_until(counted, 60, lambda: json.dumps(listed()))


def queues(page, shell, server):
    """The controller as the chart's pod: the documented values, and each task sees its share."""
    keys = {"access_key=…": f"access_key={server.keys['access_key']}", "secret_key=…": f"secret_key={server.keys['secret_key']}"}
    secrets = page.next("kubectl create namespace")
    for empty, given in keys.items():
        assert empty in secrets
        secrets = secrets.replace(empty, given)
    shell.run(secrets)
    values = page.next("queueController:")
    assert "https://api.clearml.example.org" in values
    shell.write("queues.yaml", values.replace("https://api.clearml.example.org", server.url))
    shell.run(page.next("helm upgrade cantle"))
    for queue, mib in {"default0500": HALF_MIB, "default0250": HALF_MIB // 2}.items():
        command = ["sh", "-c", "nvidia-smi --query-gpu=memory.total --format=csv,noheader"]
        task = server.submit(queue, *command, container={"image": "localhost/cantle-test:1"})
        assert server.wait(task) == "completed", server.message(task) + server.log_of(task)
        assert f"{mib} MiB" in server.log_of(task), server.log_of(task)
    # An authority, and a controller without keys: test_kubernetes_tokens.py has both.
    page.next("queueController:\n  url: https://gpu1:8008")
    page.next("cantle users add queues --role agent")
    # A part of a queue's values.
    page.next("mig3g:")
    shell.write("weighted.yaml", page.next("agentk8sglue:\n  queues:\n    weighted"))
    shell.run("helm upgrade cantle charts/cantle --namespace cantle-system --reuse-values --wait -f weighted.yaml")
    command = ["sh", "-c", "nvidia-smi --query-gpu=memory.total --format=csv,noheader"]
    task = server.submit("weighted", *command, container={"image": "localhost/cantle-test:1"})
    assert server.wait(task) == "completed", server.message(task) + server.log_of(task)
    assert f"{HALF_MIB // 2} MiB" in server.log_of(task), server.log_of(task)
    # What a task's message looks like.
    page.next("waiting: needs 0.5 GPU")
    page.end()


def let_go(page, shell):
    found = lambda: "1 pod (default/held): " in shell.run("cantle check kubernetes || [ $? = 7 ]")
    wait_until(found, 60, "the pod that is held")
    shell.run(page.next("kubectl patch pod"), POD="held")
    shell.run("kubectl wait pod/held --for=jsonpath='{.status.phase}'=Running --timeout=2m")


def test_the_pages_from_an_empty_cluster(fresh, worker, programs, tmp_path):
    api = fresh.api
    page, shell = Page("kubernetes.md"), Shell(fresh, programs, tmp_path)
    server = Server(tmp_path)
    try:
        first_pod(api, page, shell)
        compute(page, shell)
        look(page, shell, fresh.kubeconfig())
        # As the injector leaves one that it dies over.
        plain = injector.pod(name="held")
        plain["spec"]["schedulingGates"] = [{"name": "cantle.dev/packing"}]
        api.create("/api/v1/namespaces/default/pods", plain)
        quota(api, page, shell)
        # The count of Kueue; test_kueue.py has Kueue itself.
        page.next("apiVersion: batch/v1\nkind: Job")
        page.next("deviceClassMappings:")
        shell.write("template.yaml", page.next("apiVersion: resource.k8s.io/v1"))
        shell.run("kubectl apply -f template.yaml")
        # The form of an event; test_preemption.py has the events themselves.
        page.next("needs 0.5 GPU, free 0.25 of")
        queues(Page("kubernetes-queues.md"), shell, server)
        let_go(page, shell)
        page.end()
    finally:
        # As the section on removal says: first the pods, then the release.
        server_end(api, server)
        shell.run("kubectl delete --ignore-not-found resourceclaimtemplate/gpu-10g resourceclaimtemplate/weighted quota/gpus pod/half pod/weighted pod/own pod/look pod/counted pod/held --grace-period=1; helm uninstall cantle --namespace cantle-system --wait")
        shell.run("kubectl delete --ignore-not-found clusterrole/cantle-view clusterrolebinding/cantle-view; kubectl label nodes worker nvidia.com/gpu.present-")
    left = lambda: [each["metadata"]["name"] for each in api.items(f"{RESOURCE}/resourceclaimtemplates")]
    wait_until(lambda: not left(), 120, left)


def server_end(api, server):
    """No pod of a task stays, which would need the controller to go."""
    tasks = lambda: api.items("/api/v1/namespaces/cantle-tasks/pods")
    wait_until(lambda: not tasks(), 120, lambda: [pod["metadata"]["name"] for pod in tasks()])
    server.close()
