"""A ResourceQuota on `requests.nvidia.com/gpu` counts the slices of pods, in GPUs. The node is hand-made, with the devices that a driver
has published of a machine with simulated GPUs; Kubernetes' own part of the quota, and kube-scheduler, are as they are. test_classic.py has
the same of the classic path, on a real kubelet."""

import concurrent.futures

import pytest

from injector import pod
from processes import wait_until
from test_look import LABEL, cantle  # noqa: F401

GATE = "cantle.dev/packing"


class Team:
    """A namespace on a cluster with room for far more than its quota; the pods of it."""

    def __init__(self, api, namespace, log):
        self.api, self.namespace, self.log = api, namespace, log
        self.path = f"/api/v1/namespaces/{namespace}"
        self.pods = f"{self.path}/pods"

    def quota(self, gpus):
        """Kubernetes does not count a pod in a quota that it has not seen yet, and counts again only after five minutes."""
        hard = {"hard": {"requests.nvidia.com/gpu": gpus}}
        self.api.create(f"{self.path}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
        wait_until(lambda: self.used() == "0", 60, self.used)

    def used(self):
        """What Kubernetes itself counts."""
        status = self.api.get(f"{self.path}/resourcequotas/gpus").get("status", {})
        return status.get("used", {}).get("requests.nvidia.com/gpu")

    def create(self, name, share, **spec):
        made = pod({LABEL: share}, name=name)
        made["spec"] |= spec
        self.api.create(self.pods, made)

    def placed(self):
        """The witness is kube-scheduler: the pods that have a node."""
        return sorted(each["metadata"]["name"] for each in self.api.items(self.pods) if each["spec"].get("nodeName"))

    def wait_placed(self, *names):
        wait_until(lambda: self.placed() == sorted(names), 120, lambda: f"{self.placed()}\n{self.log()[-2000:]}")

    def is_refused(self, name, why):
        """Is it held, and told why?"""
        gates = self.api.get(f"{self.pods}/{name}")["spec"].get("schedulingGates", [])
        return GATE in [gate["name"] for gate in gates] and any(why in note for note in self.notes(name))

    def notes(self, name):
        events = self.api.items(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [each["note"] for each in events if each["reason"] == "ExceedsGpuQuota" and each["regarding"]["name"] == name]


@pytest.fixture
def team(plane, injector, hand_made, make_driver, namespace):
    make_driver(hand_made, "4xA100-40GB")
    return Team(plane.api, namespace, injector.program.log)


@pytest.mark.dra("A quota of the namespace on `requests.nvidia.com/gpu` counts slices")
def test_a_quota_of_gpus_counts_slices(team, cantle):  # noqa: F811
    slices_are_counted(team, cantle)


def slices_are_counted(team, cantle):  # noqa: F811
    team.quota("1500m")
    for name in ["a", "b", "c"]:
        team.create(name, "0.500")
    team.wait_placed("a", "b", "c")
    # Affinities of its own keep it from being packed, not from being counted.
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "any", "operator": "Exists"}]}},
    ]}}
    team.create("late", "0.125", affinity=affinity)
    note = f"needs 0.125 GPU; namespace {team.namespace} has 1.5 of the 1.5 that ResourceQuota gpus allows"
    wait_until(lambda: team.is_refused("late", note), 60, team.log)
    (late,) = cantle.items("why", f"{team.namespace}/late")
    assert late["reason"] == note, late
    (mine,) = [each for each in cantle.items("projects") if each["namespace"] == team.namespace]
    assert (mine["given_milli"], mine["quota_gpus"]) == (1500, "1.5")
    # Room comes back.
    team.api.delete(f"{team.pods}/b", 0)
    team.wait_placed("a", "c", "late")
    # Negative control: without the quota nothing holds a pod.
    team.create("more", "0.500")
    wait_until(lambda: team.is_refused("more", "needs 0.5 GPU; namespace"), 60, "the quota is full again")
    team.api.delete(f"{team.path}/resourcequotas/gpus")
    team.wait_placed("a", "c", "late", "more")


def test_what_kubernetes_counts_and_slices_add_up(team):
    counts_add_up(team)


def counts_add_up(team):
    team.quota("2")
    # No component serves it; Kubernetes counts it nevertheless.
    whole = pod(name="whole", limits={"nvidia.com/gpu": 1})
    team.api.create(team.pods, whole)
    wait_until(lambda: team.used() == "1", 60, team.used)
    # Many at once, of which two fit: a late count would let more go.
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: team.create(f"p{at}", "0.500"), range(16)))
    wait_until(lambda: len(team.placed()) == 2, 120, team.placed)
    others = {f"p{at}" for at in range(16)} - set(team.placed())
    wait_until(lambda: all(team.is_refused(name, "needs 0.5 GPU; namespace") for name in others), 60, "a reason for each")
    assert len(team.placed()) == 2


def test_the_next_replica_counts_what_is_there(plane, team, injector):
    team.quota("1")
    team.create("a", "0.500")
    team.wait_placed("a")
    injector.stop()
    injector.run()
    for name in ["b", "c"]:
        team.create(name, "0.500")
    wait_until(lambda: len(team.placed()) == 2, 120, injector.program.log)
    (held,) = {"a", "b", "c"} - set(team.placed())
    wait_until(lambda: team.is_refused(held, "needs 0.5 GPU; namespace"), 60, injector.program.log)
