"""Kueue as it is, from its own chart, counts the slices of Jobs: in eighths of GPUs where a Job has `nvidia.com/gpu` in addition to ClearML's label,
in memory where it names a claim template. test_classic.py has the first of the classic path. Only in the soak:
Kueue takes minutes to build (CANTLE_TEST_KUEUE)."""

import json
import os

import pytest

import image
from api import ApiError, claim_template, pod
from page import Shell
from processes import wait_until
from test_look import LABEL
from test_pods import Pods

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
IMAGE = "localhost/kueue:test"
MEMORY = "gpu-memory"
# The page's, but for what a cluster of one small node needs.
CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": ":8081"},
    "metrics": {"bindAddress": ":8443"},
    "webhook": {"port": 9443},
    "integrations": {"frameworks": ["batch/job"]},
    "resources": {
        "deviceClassMappings": [
            {
                "name": MEMORY,
                "deviceClassNames": ["shared.gpu.cantle.dev"],
                "sources": [{"capacity": {"name": "memory", "driver": "gpu.cantle.dev", "deviceSelector": {"cel": {"expression": "true"}}}}],
            }
        ]
    },
}
VALUES = {
    "controllerManager": {
        "featureGates": [{"name": "KueueDRAIntegrationConsumableCapacity", "enabled": True}],
        "manager": {
            "image": {"repository": "localhost/kueue", "tag": "test", "pullPolicy": "Never"},
            "podSecurityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        },
        "nodeSelector": {"kubernetes.io/hostname": "worker"},
    },
    "managerConfig": {"controllerManagerConfigYaml": json.dumps(CONFIG)},
}


@pytest.fixture(scope="module")
def kueue(plane, worker, programs, tmp_path_factory):
    """One pod of it, installed by helm."""
    if not os.environ.get("CANTLE_TEST_KUEUE") or not (programs / "kueue").exists():
        pytest.skip("Kueue is for the soak: CANTLE_TEST_KUEUE=yes tests/cluster/run.sh -k kueue")
    home = tmp_path_factory.mktemp("kueue")
    image.program(programs / "kueue", home / "kueue.tar", IMAGE, place="manager")
    worker.runtime.load(home / "kueue.tar")
    shell = Shell(plane, programs, home)
    (home / "values.json").write_text(json.dumps(VALUES))
    shell.run(f"helm install kueue {programs / 'kueue-chart'} --namespace kueue-system --create-namespace --values values.json --wait --timeout 6m")
    yield shell
    # Their finalizers are Kueue's.
    shell.run("kubectl delete --all --all-namespaces --timeout=3m workloads.kueue.x-k8s.io,localqueues.kueue.x-k8s.io")
    shell.run("kubectl delete --all --timeout=3m clusterqueues.kueue.x-k8s.io,resourceflavors.kueue.x-k8s.io")
    shell.run("helm uninstall kueue --namespace kueue-system --wait; kubectl delete namespace kueue-system")


class Jobs(Pods):
    def __init__(self, api, namespace):
        super().__init__(api, namespace)
        self.namespace, self.jobs = namespace, f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def queue(self, resource, quota):
        """A LocalQueue of a ClusterQueue with so much of a resource."""
        name = f"{self.namespace}-{resource}".replace("nvidia.com/", "")
        flavor = {"name": name, "resources": [{"name": resource, "nominalQuota": quota}]}
        spec = {"namespaceSelector": {}, "resourceGroups": [{"coveredResources": [resource], "flavors": [flavor]}]}
        self.make(f"{KUEUE}/resourceflavors", {"kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}})
        self.make(f"{KUEUE}/clusterqueues", {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec})
        queue = {"kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": name}}
        self.make(f"{KUEUE}/namespaces/{self.namespace}/localqueues", queue)
        return name

    def make(self, path, thing):
        def made():
            try:
                return self.api.create(path, {"apiVersion": "/".join(path.split("/")[2:4]), **thing})
            except ApiError as refused:
                # Its webhook is ready before its endpoint is known to the API server.
                if refused.code != 500:
                    raise
                return None

        wait_until(made, 60, f"Kueue's webhook for {path}")

    def submit(self, name, queue, labels=None, template=None, limits=None):
        thing = pod(name, ["sh", "-c", "nvidia-smi --query-gpu=memory.total --format=csv,noheader; sleep 600"], template, limits)
        metadata = {"labels": labels or {}}
        job = {"kind": "Job", "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}}}
        self.make(self.jobs, job | {"spec": {"suspend": True, "template": {"metadata": metadata, "spec": thing["spec"]}}})

    def is_suspended(self, name):
        return self.api.get(f"{self.jobs}/{name}")["spec"]["suspend"]

    def pod_of(self, job):
        found = [each["metadata"]["name"] for each in self.api.items(f"{self.path}?labelSelector=job-name%3D{job}")]
        return found[0] if found else None

    def runs_with(self, job, mib):
        name = wait_until(lambda: self.pod_of(job), 90, self.workloads)
        self.wait_running(name)
        wait_until(lambda: f"{mib} MiB" in self.api.get(f"{self.path}/{name}/log"), 60, lambda: self.get(name)["status"])

    def end(self, job):
        self.api.call("DELETE", f"{self.jobs}/{job}?propagationPolicy=Background")

    def workloads(self):
        return [(each["metadata"]["name"], each.get("status")) for each in self.api.items(f"{KUEUE}/namespaces/{self.namespace}/workloads")]

    def reserved(self, queue):
        """The count of Kueue."""
        status = self.api.get(f"{KUEUE}/clusterqueues/{queue}").get("status", {})
        return [each["total"] for flavor in status.get("flavorsUsage", []) for each in flavor["resources"]]


@pytest.fixture
def jobs(plane, injector, start, namespace, kueue):
    start("1xA100-40GB")
    return Jobs(plane.api, namespace)


@pytest.mark.dra("Kueue counts a Job's slices and holds it back")
def test_kueue_counts_eighths_beside_the_label(jobs):
    counts_eighths(jobs)


def counts_eighths(jobs):
    queue = jobs.queue("nvidia.com/gpu", "6")
    half = {"labels": {LABEL: "0.500"}, "limits": {"nvidia.com/gpu": 4}}
    jobs.submit("first", queue, **half)
    jobs.runs_with("first", 20 << 10)
    jobs.submit("second", queue, **half)
    jobs.submit("quarter", queue, labels={LABEL: "0.250"}, limits={"nvidia.com/gpu": 2})
    jobs.runs_with("quarter", 10 << 10)
    wait_until(lambda: jobs.reserved(queue) == ["6"], 60, lambda: jobs.reserved(queue))
    # There is room on the GPU, and none in the quota.
    assert jobs.is_suspended("second") and not jobs.pod_of("second"), jobs.workloads()
    jobs.end("first")
    jobs.runs_with("second", 20 << 10)
    for job in ["second", "quarter"]:
        jobs.end(job)


def test_kueue_counts_the_memory_of_claim_templates(plane, jobs, namespace):
    queue = jobs.queue(MEMORY, "25Gi")
    templates = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates"
    plane.api.create(templates, claim_template("gpu-10g", "shared.gpu.cantle.dev", "10Gi"))
    for name in ["a", "b", "c"]:
        jobs.submit(name, queue, template="gpu-10g")
    wait_until(lambda: sum(not jobs.is_suspended(name) for name in ["a", "b", "c"]) == 2, 90, jobs.workloads)
    (held,) = [name for name in ["a", "b", "c"] if jobs.is_suspended(name)]
    running = sorted({"a", "b", "c"} - {held})
    for name in running:
        jobs.runs_with(name, 10 << 10)
    assert jobs.reserved(queue) == ["20Gi"], jobs.reserved(queue)
    assert jobs.is_suspended(held)
    jobs.end(running[0])
    jobs.runs_with(held, 10 << 10)
    for job in [running[1], held]:
        jobs.end(job)
