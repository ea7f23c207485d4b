"""Pods of a higher PriorityClass get the slices of lower ones: by cantle's injector, on a real scheduler and a real kubelet."""

import warnings

import pytest

from injector import Injector, pod
from processes import wait_until

LABEL = "clearml-injector/fraction"
CLASSES = {"test-high": 1000, "test-middle": 500, "test-never": 1000}


@pytest.fixture(scope="module")
def classes(plane):
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    for name, value in CLASSES.items():
        policy = "Never" if name == "test-never" else "PreemptLowerPriority"
        plane.api.create(path, {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy})
    yield
    for name in CLASSES:
        plane.api.delete(f"{path}/{name}")


class Team:
    """Pods of a namespace, and what is said about them."""

    def __init__(self, api, namespace, injector=None):
        self.api, self.namespace, self.injector = api, namespace, injector
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name, share, priority=None, **labels):
        made = pod({LABEL: share, **labels}, name=name)
        made["spec"]["terminationGracePeriodSeconds"] = 1
        if priority:
            made["spec"]["priorityClassName"] = priority
        self.api.create(self.path, made)

    def get(self, name):
        return self.api.find(f"{self.path}/{name}")

    def is_running(self, name):
        made = self.get(name)
        return made and made["status"]["phase"] == "Running" and "deletionTimestamp" not in made["metadata"]

    def wait_running(self, *names):
        for name in names:
            wait_until(lambda: self.is_running(name), 180, lambda: self.seen(name))

    def seen(self, *names):
        """For a failure: the states of those of these pods that do not run, their claims, all events, and the end of the injector's log."""
        found = {name: self.get(name) for name in names if not self.is_running(name)}
        events = self.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        claims = self.api.items(f"/apis/resource.k8s.io/v1/namespaces/{self.namespace}/resourceclaims")
        lines = [f"{name}: {made and made['status']}" for name, made in found.items()]
        lines += [f"{each['metadata']['name']}: {each.get('status')}" for each in claims]
        lines += [f"{each['involvedObject']['name']}: {each['reason']}: {each['message']}" for each in events]
        return "\n".join([*lines, self.injector.program.log()[-3000:]])

    def wait_for_all(self, count, running, names):
        """Waits until `count` pods run. In two runs of the gate, the fourth pod of four did not run after three minutes. kube-scheduler looks again at a pod
        that it has put aside after five minutes at the latest; what was seen before that is shown among the warnings of the run."""
        try:
            wait_until(lambda: len(running()) == count, 180, lambda: self.seen(*names()))
        except AssertionError as error:
            wait_until(lambda: len(running()) == count, 180, lambda: self.seen(*names()))
            warnings.warn(f"a pod ran only after three minutes: {error}", stacklevel=2)

    def has_waited(self, name):
        """kube-scheduler has tried it, and cantle has said what it lacks."""
        wait_until(lambda: self.said("NoRoomForSlice", name), 60, lambda: self.get(name))

    def said(self, reason, name):
        events = self.api.items(f"/api/v1/namespaces/{self.namespace}/events")
        return [each["message"] for each in events if each["reason"] == reason and each["involvedObject"]["name"] == name]


@pytest.fixture
def injector(plane, tmp_path):
    """One for each test: the last one starts others."""
    made = Injector(plane, tmp_path)
    yield made.start()
    made.remove()


@pytest.fixture
def team(plane, classes, injector, namespace):
    return Team(plane.api, namespace, injector)


@pytest.mark.dra("A pod of higher priority preempts")
def test_the_lowest_pod_that_is_enough_goes(team, start):
    driver = start("1xA100-40GB")
    team.create("middle", "0.500", "test-middle")
    team.create("low", "0.500")
    team.wait_running("middle", "low")
    # Negative controls: neither equal priority nor a class without preemption is a reason.
    team.create("equal", "0.500")
    team.create("polite", "0.500", "test-never")
    team.has_waited("equal")
    team.has_waited("polite")
    assert team.is_running("middle") and team.is_running("low")
    team.api.delete(f"{team.path}/polite", 0)

    team.create("high", "0.500", "test-high")
    team.wait_running("high")
    assert team.is_running("middle"), "one victim was enough"
    wait_until(lambda: team.get("low") is None, 60, lambda: team.get("low"))
    assert team.get("equal")["status"]["phase"] == "Pending"
    # The outside witness.
    assert len(driver.leases()) == 2
    (said,) = team.said("Preempting", "high")
    assert "needs 0.5 GPU" in said and f"evicted {team.namespace}/low (priority 0) from node worker" in said, said
    (said,) = team.said("Preempted", "low")
    assert f"by {team.namespace}/high (priority 1000), which needs 0.5 GPU" in said, said
    assert not team.said("Preempted", "middle")


def test_replicas_do_not_take_the_room_that_they_have_left(team, start, request):
    start("1xA100-40GB")
    template = pod({LABEL: "0.250", "app": "low"}, name="any")
    template["spec"] |= {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1}
    spec = {"replicas": 4, "selector": {"matchLabels": {"app": "low"}}, "template": {each: template[each] for each in ("metadata", "spec")}}
    replicas = f"/apis/apps/v1/namespaces/{team.namespace}/replicasets"
    request.addfinalizer(lambda: team.api.delete(f"{replicas}/low"))
    team.api.create(replicas, {"metadata": {"name": "low"}, "spec": spec})
    low = lambda: [each["metadata"]["name"] for each in team.api.items(f"{team.path}?labelSelector=app%3Dlow")]
    running = lambda: [name for name in low() if team.is_running(name)]
    team.wait_for_all(4, running, low)
    first = set(low())

    team.create("high", "1.000", "test-high")
    team.wait_running("high")
    wait_until(lambda: not first & set(low()), 60, low)
    assert not running(), "all four had to go, and others wait in their place"
    evicted = [name for name in first if team.said("Preempted", name)]
    assert len(evicted) == 4 and len(team.said("Preempting", "high")) == 4, "each of them once, and none twice"
    team.api.delete(f"{team.path}/high", 1)
    team.wait_for_all(4, running, low)


def test_a_disruption_budget_holds(team, start):
    start("1xA100-40GB")
    team.create("low", "0.750", app="low")
    team.wait_running("low")
    budgets = f"/apis/policy/v1/namespaces/{team.namespace}/poddisruptionbudgets"
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}
    team.api.create(budgets, {"metadata": {"name": "low"}, "spec": budget})
    counted = lambda: team.api.get(f"{budgets}/low").get("status", {}).get("currentHealthy") == 1
    wait_until(counted, 60, lambda: team.api.get(f"{budgets}/low"))
    team.create("high", "0.500", "test-high")
    said = lambda: "\n".join(team.said("NoRoomForSlice", "high"))
    wait_until(lambda: "PodDisruptionBudgets protect" in said(), 60, said)
    assert team.is_running("low") and not team.said("Preempted", "low")
    team.api.delete(f"{budgets}/low")
    team.wait_running("high")
    assert team.said("Preempted", "low")


def test_it_can_be_turned_off(plane, classes, namespace, hand_made, make_driver, tmp_path):
    """On a node without a kubelet: the test decides when an evicted pod ends."""
    make_driver(hand_made, "1xA100-40GB")
    team = Team(plane.api, namespace)
    is_told = lambda: "deletionTimestamp" in team.get("low")["metadata"]

    def high(*flags):
        injector = Injector(plane, tmp_path, *flags).start()
        try:
            team.create("low", "1.000")
            wait_until(lambda: team.get("low")["spec"].get("nodeName"), 60, lambda: team.get("low"))
            team.create("high", "0.500", "test-high")
            if flags:
                team.has_waited("high")
            else:
                wait_until(is_told, 60, lambda: team.get("low"))
            return is_told()
        finally:
            for name in ["high", "low"]:
                plane.api.delete(f"{team.path}/{name}", 0)
            wait_until(lambda: not plane.api.items(team.path), 60, "the end of both")
            injector.remove()

    assert not high("--no-preemption")
    assert high()
