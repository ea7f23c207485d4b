"""Decisions of the cluster's own scheduler on the devices of a node, without a kubelet."""

import json

import pytest

from api import RESOURCE, ApiError, pod
from chart import wait_denied
from processes import wait_until

SLEEP = ["sleep", "600"]


class Pods:
    """The pods of a namespace."""

    def __init__(self, api, namespace):
        self.api, self.path = api, f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name, template=None, limits=None):
        self.api.create(self.path, pod(name, SLEEP, template, limits))

    def end(self, name):
        self.api.delete(f"{self.path}/{name}", 0)

    def is_placed(self, name):
        return bool(self.api.get(f"{self.path}/{name}")["spec"].get("nodeName"))

    def why(self, name):
        """The scheduler's message about a waiting pod."""
        conditions = self.api.get(f"{self.path}/{name}")["status"].get("conditions", [])
        said = [each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"]
        return said[0]["message"] if said else None

    def wait_placed(self, name):
        wait_until(lambda: self.is_placed(name), 60, lambda: f"{name} is not placed: {self.why(name)}")

    def wait_refused(self, name):
        # While the claim is being made, the scheduler says that.
        wait_until(lambda: "cannot allocate all claims" in (self.why(name) or ""), 60, lambda: f"{name}: {self.why(name)}")
        assert not self.is_placed(name)


@pytest.mark.since("1.36.2", "serves one kind of device on each GPU")
def test_a_nodes_devices_are_published_and_kept(plane, hand_made, make_driver):
    driver = make_driver(hand_made, "1xH100-80GB:mig,1xA100-40GB,1xA100-80GB:mig")
    devices = driver.devices()
    # Hopper changes its mode by itself; Ampere is what its administrator has made it.
    assert {"gpu-0-shared", "gpu-0-mig-1g-10gb-6", "gpu-1-shared"} <= set(devices)
    assert "gpu-2-shared" not in devices
    assert "gpu-2-mig-7g-80gb-0" in devices
    # A GPU that is one device needs no counters.
    assert [name for name, device in devices.items() if "consumesCounters" not in device] == ["gpu-1-shared"]
    assert devices["gpu-1-shared"]["capacity"]["memory"]["value"] == "40Gi"
    assert devices["gpu-1-shared"]["capacity"]["memory"]["requestPolicy"]["validRange"]["step"] == "2Mi"
    assert all(slice["metadata"]["ownerReferences"][0]["kind"] == "Node" for slice in driver.slices())
    generation = driver.slices()[0]["spec"]["pool"]["generation"]

    driver.stop()
    driver.start()
    wait_until(lambda: driver.log().count("waiting for the kubelet") == 2, 60, driver.log)
    assert {slice["spec"]["pool"]["generation"] for slice in driver.slices()} == {generation}, "nothing has changed"

    plane.api.delete(f"{RESOURCE}/resourceslices/{driver.slices()[-1]['metadata']['name']}")
    newer = lambda: driver.published() and driver.slices()[0]["spec"]["pool"]["generation"] > generation
    wait_until(lambda: newer() and set(driver.devices()) == set(devices), 60, driver.log)


@pytest.mark.since("1.36.2", "serves one kind of device on each GPU")
def test_the_nodes_label_puts_its_gpus_into_mig_mode(plane, hand_made, make_driver):
    instances = lambda driver: [name for name in driver.devices() if "-mig-" in name]
    driver = make_driver(hand_made, "1xA100-40GB,1xH100-80GB")
    assert not instances(driver), "they have never been in MIG mode"
    driver.stop()
    plane.api.merge(f"/api/v1/nodes/{hand_made}", {"metadata": {"labels": {"cdmo.clear.ml/gpu-partitioning": "mig"}}})
    driver.start()
    wait_until(lambda: driver.published() and instances(driver), 60, driver.log)
    # The H100 serves shares too, as before; the A100 would need a reset, and the log reports it.
    assert {name[:5] for name in instances(driver)} == {"gpu-1"}
    assert {"gpu-0-shared", "gpu-1-shared"} <= set(driver.devices())
    assert "nvidia-smi -i 0 -mig 1" in driver.log()


def test_a_driver_writes_slices_of_its_own_node_only(plane, hand_made, make_driver):
    """Even with the token of another node's driver."""
    driver = make_driver(hand_made, "1xA100-40GB")
    (written,) = [s for s in driver.slices() if s["spec"].get("devices")][:1]
    config = json.loads((driver.home / "driver.kubeconfig").read_text())
    theirs = plane.api.with_token(config["users"][0]["user"]["token"])
    foreign = {"metadata": {"name": "foreign"}, "spec": {**written["spec"], "nodeName": "another"}}
    thing = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **foreign}
    wait_denied(lambda: theirs.create(f"{RESOURCE}/resourceslices?dryRun=All", thing), "may write ResourceSlices of that node only")
    with pytest.raises(ApiError, match="may write ResourceSlices of that node only"):
        theirs.create(f"{RESOURCE}/resourceslices", thing)
    with pytest.raises(ApiError, match="forbidden"):
        theirs.items("/api/v1/secrets")


@pytest.mark.since("1.36.0", "has no taints of devices")
def test_a_lost_gpu_is_tainted_and_leaves_the_others(plane, hand_made, make_driver, namespace, templates):
    driver = make_driver(hand_made, "2xA100-80GB")
    pods = Pods(plane.api, namespace)
    tainted = lambda: {name: device.get("taints") for name, device in driver.devices().items() if device.get("taints")}
    assert set(driver.devices()) == {"gpu-0-shared", "gpu-1-shared"} and not tainted()
    driver.faults("* gpu=0 error=15\n")
    (taints,) = wait_until(tainted, 60, driver.log).values()
    assert set(tainted()) == {"gpu-0-shared"}
    assert [(taint["key"], taint["effect"]) for taint in taints] == [("gpu.cantle.dev/lost", "NoSchedule")]
    pods.create("first", "whole")
    pods.wait_placed("first")
    pods.create("second", "whole")
    pods.wait_refused("second")
    driver.faults("")
    pods.wait_placed("second")
    assert not tainted()


@pytest.mark.since("1.36.2", "serves one kind of device on each GPU")
def test_shares_and_partitions_never_meet_on_a_gpu(plane, hand_made, make_driver, namespace, templates):
    make_driver(hand_made, "1xH100-80GB:mig")
    pods = Pods(plane.api, namespace)
    pods.create("half", "half")
    pods.create("quarter", "quarter")
    pods.wait_placed("half")
    pods.wait_placed("quarter")
    pods.create("third", "half")
    pods.create("exclusive", "whole")
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"})
    for name in ["third", "exclusive", "partition"]:
        pods.wait_refused(name)
    pods.end("exclusive")
    pods.end("partition")
    pods.end("half")
    pods.wait_placed("third")
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"})
    pods.wait_refused("partition")
    pods.end("third")
    pods.end("quarter")
    pods.wait_placed("partition")
    pods.create("share", "quarter")
    pods.wait_refused("share")


def test_partitions_leave_room_for_the_large_ones(plane, hand_made, make_driver, namespace, templates):
    make_driver(hand_made, "1xH100-80GB:mig")
    pods = Pods(plane.api, namespace)
    for at in range(3):
        pods.create(f"small-{at}", limits={"nvidia.com/mig-1g.10gb": "1"})
        pods.wait_placed(f"small-{at}")
    # They went where no large one can be, or to one half.
    pods.create("large", limits={"nvidia.com/mig-3g.40gb": "1"})
    pods.wait_placed("large")


def test_whole_gpus_by_number(plane, hand_made, make_driver, namespace, templates):
    """As with the chart's value `deviceClasses.gpuResource`, under a unique name."""
    make_driver(hand_made, "2xA100-80GB")
    classes = f"{RESOURCE}/deviceclasses"
    spec = plane.api.get(f"{classes}/whole.gpu.cantle.dev")["spec"]
    plane.api.create(classes, {"metadata": {"name": "counted.example.com"}, "spec": {**spec, "extendedResourceName": "example.com/gpu"}})
    try:
        pods = Pods(plane.api, namespace)
        pods.create("two", limits={"example.com/gpu": "2"})
        pods.wait_placed("two")
        pods.create("quarter", "quarter")
        pods.wait_refused("quarter")
        pods.end("two")
        pods.wait_placed("quarter")
    finally:
        plane.api.delete(f"{classes}/counted.example.com")
