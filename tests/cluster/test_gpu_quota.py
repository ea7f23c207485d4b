"""A ResourceQuota on `requests.nvidia.com/gpu` counts the slices of pods, in GPUs. The node is hand-made, with the devices that a driver
has published of a machine with simulated GPUs; Kubernetes' own part of the quota, and kube-scheduler, are as they are."""

import concurrent.futures

import pytest

from injector import pod
from processes import wait_until
from test_look import LABEL, cantle  # noqa: F401

GATE = "cantle.dev/packing"


@pytest.fixture
def team(plane, injector, hand_made, make_driver, namespace):
    """A namespace on a cluster with room for far more than its quota; the pods of it."""
    make_driver(hand_made, "4xA100-40GB")

    class Team:
        path = f"/api/v1/namespaces/{namespace}"
        pods = f"{path}/pods"

        def quota(self, gpus):
            """Kubernetes does not count a pod in a quota that it has not seen yet, and counts again only after five minutes."""
            hard = {"hard": {"requests.nvidia.com/gpu": gpus}}
            plane.api.create(f"{self.path}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": hard})
            wait_until(lambda: self.used() == "0", 60, self.used)

        def used(self):
            """What Kubernetes itself counts."""
            status = plane.api.get(f"{self.path}/resourcequotas/gpus").get("status", {})
            return status.get("used", {}).get("requests.nvidia.com/gpu")

        def create(self, name, share, **spec):
            made = pod({LABEL: share}, name=name)
            made["spec"] |= spec
            plane.api.create(self.pods, made)

        def placed(self):
            """The witness is kube-scheduler: the pods that have a node."""
            return sorted(each["metadata"]["name"] for each in plane.api.items(self.pods) if each["spec"].get("nodeName"))

        def wait_placed(self, *names):
            wait_until(lambda: self.placed() == sorted(names), 120, lambda: f"{self.placed()}\n{injector.program.log()[-2000:]}")

        def is_held(self, name):
            gates = plane.api.get(f"{self.pods}/{name}")["spec"].get("schedulingGates", [])
            return GATE in [gate["name"] for gate in gates]

        def notes(self, name):
            events = plane.api.items(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
            return [each["note"] for each in events if each["reason"] == "ExceedsGpuQuota" and each["regarding"]["name"] == name]

    team = Team()
    team.namespace = namespace
    return team


@pytest.mark.dra("A quota of the namespace on `requests.nvidia.com/gpu` counts slices")
def test_a_quota_of_gpus_counts_slices(plane, team, cantle):  # noqa: F811
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
    wait_until(lambda: note in team.notes("late"), 60, lambda: team.notes("late"))
    assert team.is_held("late")
    (late,) = cantle.items("why", f"{team.namespace}/late")
    assert late["reason"] == note, late
    (mine,) = [each for each in cantle.items("projects") if each["namespace"] == team.namespace]
    assert (mine["given_milli"], mine["quota_gpus"]) == (1500, "1.5")
    # Room comes back.
    plane.api.delete(f"{team.pods}/b", 0)
    team.wait_placed("a", "c", "late")
    # Negative control: without the quota nothing holds a pod.
    team.create("more", "0.500")
    wait_until(lambda: team.notes("more"), 60, "the quota is full again")
    plane.api.delete(f"{team.path}/resourcequotas/gpus")
    team.wait_placed("a", "c", "late", "more")


def test_what_kubernetes_counts_and_slices_add_up(plane, team):
    team.quota("2")
    # No component serves it; Kubernetes counts it nevertheless.
    whole = pod(name="whole", limits={"nvidia.com/gpu": 1})
    plane.api.create(team.pods, whole)
    wait_until(lambda: team.used() == "1", 60, team.used)
    # Many at once, of which two fit: a late count would let more go.
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: team.create(f"p{at}", "0.500"), range(16)))
    wait_until(lambda: len(team.placed()) == 2, 120, team.placed)
    held = [f"p{at}" for at in range(16) if team.is_held(f"p{at}")]
    assert len(held) == 14, held
    wait_until(lambda: all(team.notes(name) for name in held), 60, "an event for each")
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
    (held,) = [name for name in ["b", "c"] if team.is_held(name)]
    wait_until(lambda: team.notes(held), 60, injector.program.log)
