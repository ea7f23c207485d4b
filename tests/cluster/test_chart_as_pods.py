"""The chart as a user installs it, with its default values: the injector and the node driver are pods, from the image that
`images/cantle/Dockerfile` makes, and the API server calls the injector at its service."""

import json
import subprocess

import chart

from api import RESOURCE
from chart import NAMESPACE, ROOT
from processes import wait_until
from documented import LABELLED
from test_documented_pods import Documented, held
from test_pods import GIB

DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/cantle-webhook"
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/cantle-node"


def truth(worker):
    command = [ROOT / "dist/bin/cantle", "--sim-dir", worker.sim_dir, "sim", "truth", "-o", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)["gpus"]


def what_is_wrong(api):
    pods = api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    said = {}
    for each in pods:
        name = each["metadata"]["name"]
        try:
            said[name] = api.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log?tailLines=20")
        except Exception as error:
            said[name] = str(error)
    return [(each["metadata"]["name"], each["status"]) for each in pods], said


def wait_up(api, replicas):
    ready = lambda path, key: api.get(path)["status"].get(key, 0)
    up = lambda: ready(DEPLOYMENT, "readyReplicas") == replicas and ready(DAEMON_SET, "numberReady") == 1
    wait_until(up, 180, lambda: what_is_wrong(api))
    wait_until(lambda: api.items(f"{RESOURCE}/resourceslices"), 60, lambda: what_is_wrong(api))


def bundles(api):
    things = api.items("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")
    return [hook["clientConfig"].get("caBundle") for thing in things for hook in thing["webhooks"]]


def test_a_first_half_gpu_pod(plane, worker, built_images, namespace):
    import helm_python

    api = plane.api
    worker.forget_gpus()
    chart.delete(api, chart.standing())
    pods = Documented(api, namespace)
    try:
        with helm_python.Config(kubeconfig_path=str(plane.kubeconfig()), namespace=NAMESPACE) as helm:
            values = {"node": {"extraArgs": ["--sim-gpus", "1xA100-40GB"]}}
            helm.install(str(ROOT / "charts/cantle"), "cantle", values, namespace=NAMESPACE)
            try:
                wait_up(api, 2)
                wait_until(lambda: all(bundles(api)), 60, lambda: what_is_wrong(api))
                held(pods.fill(LABELLED), 20 << 10)
                (gpu,) = truth(worker)
                assert gpu["used_bytes"] <= 20 * GIB and len(gpu["processes"]) == 1
                # Both parts are replaced by others; the pod goes on.
                values["webhook"] = {"podAnnotations": {"version": "next"}}
                values["node"]["podAnnotations"] = {"version": "next"}
                before = pods.get("train-pod")["status"]["containerStatuses"]
                helm.upgrade(str(ROOT / "charts/cantle"), "cantle", values, namespace=NAMESPACE)
                wait_until(lambda: all_new(api), 180, lambda: what_is_wrong(api))
                held(pods.fill(LABELLED, "second"), 20 << 10)
                assert pods.get("train-pod")["status"]["containerStatuses"][0]["containerID"] == before[0]["containerID"]
                assert truth(worker)[0]["used_bytes"] <= 40 * GIB
                for name in ["train-pod", "second"]:
                    pods.delete(name)
                    pods.wait_gone(name)
                leases = worker.sim_dir / "node/leases"
                wait_until(lambda: not list(leases.glob("*.json")), 60, lambda: list(leases.iterdir()))
            finally:
                helm.uninstall("cantle")
        wait_until(lambda: not api.items(f"/api/v1/namespaces/{NAMESPACE}/pods"), 120, lambda: what_is_wrong(api))
        # The kubelet removes them half a minute after their driver has gone.
        wait_until(lambda: not api.items(f"{RESOURCE}/resourceslices"), 120, "the end of the node's devices")
    finally:
        chart.create(api, chart.standing())


def all_new(api):
    """Every pod of the chart is one of the upgrade, and ready."""
    pods = api.items(f"/api/v1/namespaces/{NAMESPACE}/pods")
    is_new = lambda pod: pod["metadata"].get("annotations", {}).get("version") == "next"
    conditions = lambda pod: {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return len(pods) == 3 and all(is_new(pod) and conditions(pod).get("Ready") == "True" for pod in pods)
