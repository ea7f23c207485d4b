"""Kubernetes' own gangs, of pods with slices. They are off by default in 1.36: the control plane of this file has them on, and makes a group for each
Job whose pods all run at once."""

import collections
import pathlib
import subprocess
import tempfile

import pytest
import yaml

import chart
from api import RESOURCE
from conftest import run_plane
from control_plane import ControlPlane
from injector import pod
from page import blocks
from processes import wait_until

pytestmark = pytest.mark.since("1.36", "has no Workload API with groups of pods")
LABEL = "clearml-injector/fraction"
GATES = "GenericWorkload=true,GangScheduling=true,WorkloadWithJob=true"


@pytest.fixture(scope="module")
def plane(programs):
    with tempfile.TemporaryDirectory(prefix="k8s-gangs") as folder:
        made = ControlPlane(pathlib.Path(folder), programs, gates=GATES, apis="scheduling.k8s.io/v1alpha2=true", fixed_port=False)
        yield from run_plane(made)


def job(name, count, fraction):
    """A Job whose pods Kubernetes places together or not at all."""
    template = pod({LABEL: fraction, "job": name})
    del template["metadata"]["name"]
    spec = {"parallelism": count, "completions": count, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


class Jobs:
    def __init__(self, plane, namespace):
        self.api, self.pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
        self.path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.events = f"/api/v1/namespaces/{namespace}/events"

    def create(self, *jobs):
        for each in jobs:
            self.api.create(self.path, each)

    def placed(self):
        """The number of pods of each Job that have a node."""
        pods = [each for each in self.api.items(self.pods) if each["spec"].get("nodeName")]
        return collections.Counter(each["metadata"]["labels"]["job"] for each in pods)

    def nominated(self):
        return [each["metadata"]["name"] for each in self.api.items(self.pods) if each["status"].get("nominatedNodeName")]

    def reasons(self, job):
        events = [each for each in self.api.items(self.events) if each["reason"] == "NoRoomForSlice"]
        return {each["message"] for each in events if each["involvedObject"]["name"].startswith(job)}

    def delete(self, name):
        self.api.call("DELETE", f"{self.path}/{name}?propagationPolicy=Background")
        # No kubelet ends them.
        for each in self.api.items(f"{self.pods}?labelSelector=job%3D{name}"):
            self.api.delete(f"{self.pods}/{each['metadata']['name']}", 0)


def test_jobs_are_placed_as_a_whole(plane, hand_made, make_driver, injector, namespace):
    driver = make_driver(hand_made, "4xA100-40GB")
    wait_until(driver.published, 60, "the devices")
    jobs = Jobs(plane, namespace)
    jobs.create(job("first", 3, "1"), job("second", 3, "1"))
    seen = lambda: f"{jobs.placed()}\n{[(each['metadata']['name'], each['spec'].get('schedulingGroup'), each['status']) for each in plane.api.items(jobs.pods)]}"
    wait_until(lambda: 3 in jobs.placed().values(), 60, seen)
    (runs,) = jobs.placed()
    waits = "second" if runs == "first" else "first"
    # A pod may have had its nomination before the others of its group were there.
    whole = "1 GPU for each of 3 tasks at once"
    wait_until(lambda: any(whole in reason for reason in jobs.reasons(waits)), 60, lambda: f"{jobs.reasons(waits)}\n{seen()}")
    wait_until(lambda: not jobs.nominated(), 60, seen)
    assert jobs.placed() == {runs: 3}, "the pods of the group that waits have no node"
    name = next(each["metadata"]["name"] for each in plane.api.items(jobs.pods) if each["metadata"]["labels"]["job"] == waits)
    said = subprocess.run([chart.ROOT / "dist/bin/cantle", "why", "--kubeconfig", plane.kubeconfig(), f"{namespace}/{name}"], capture_output=True, text=True)
    assert whole in said.stdout, said
    # The GPU that is left serves others meanwhile.
    jobs.create(job("small", 2, "0.500"))
    wait_until(lambda: jobs.placed()["small"] == 2, 60, seen)
    jobs.delete("small")
    jobs.delete(runs)
    wait_until(lambda: jobs.placed()[waits] == 3, 120, seen)
    # The page's group, with pods of any controller.
    group, member_of = (yaml.safe_load(block) for block in blocks((chart.ROOT / "docs/kubernetes.md").read_text()) if "ulingGroup:" in block or "PodGroup" in block)
    plane.api.create(f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups", group)
    for name in ["own-0", "own-1"]:
        member = pod({LABEL: "1", "job": "own"}, name=name)
        plane.api.create(jobs.pods, {**member, "spec": {**member["spec"], **member_of}})
    wait_until(lambda: jobs.reasons("own"), 60, seen)
    assert jobs.placed() == {waits: 3}
    claims = plane.api.items(f"{RESOURCE}/namespaces/{namespace}/resourceclaims")
    given = [result["device"] for claim in claims for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])]
    assert len(given) == len(set(given)) == 3, given
    jobs.delete(waits)
    wait_until(lambda: jobs.placed() == {"own": 2}, 120, seen)
