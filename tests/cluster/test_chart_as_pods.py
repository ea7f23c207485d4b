"""The chart as a user installs it, with its default values but for the path: its parts are pods, from the image that
`images/cantle/Dockerfile` makes and Kubernetes' own, and the API server calls the injector at its service."""

import contextlib
import json
import re

import pytest

import chart
import classic

from api import RESOURCE, node
from chart import NAMESPACE, ROOT
from driver import leases
from injector import wait_called
from page import Page, Shell
from processes import wait_until
from documented import LABELED
from test_check import check
from test_documented_pods import Documented, held
from test_pods import GIB

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PLAIN_INSTALL = f"helm install cantle charts/cantle --namespace {NAMESPACE}"
# Those that have one, and their pods at the default values.
PARTS = ("webhook", "node", "scheduler")


def what_is_wrong(api):
    said = {}
    for each in api.items(PODS):
        for container in each["spec"]["containers"]:
            name = f"{each['metadata']['name']}/{container['name']}"
            try:
                said[name] = api.get(f"{PODS}/{each['metadata']['name']}/log?tailLines=20&container={container['name']}")
            except Exception as error:
                said[name] = str(error)
    return [(each["metadata"]["name"], each["status"]) for each in api.items(PODS)], said


def all_up(api, pods, version):
    """Every pod of the chart is of this version, and ready."""
    there = api.items(PODS)
    is_new = lambda pod: pod["metadata"].get("annotations", {}).get("version") == version
    conditions = lambda pod: {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return len(there) == pods and all(is_new(pod) and conditions(pod).get("Ready") == "True" for pod in there)


def bundles(api):
    things = api.items("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")
    return [hook["clientConfig"].get("caBundle") for thing in things for hook in thing["webhooks"]]


@pytest.fixture
def shell(plane, programs, tmp_path):
    return Shell(plane, programs, tmp_path)


@contextlib.contextmanager
def installed(plane, shell, command, pods):
    """The chart as this command makes it a release; gives what upgrades it to another version."""
    api = plane.api

    def of(version):
        return " ".join(f"--set-string {part}.podAnnotations.version={version}" for part in PARTS)

    def wait_up(version):
        wait_until(lambda: all_up(api, pods, version), 300, lambda: what_is_wrong(api))
        wait_until(lambda: all(bundles(api)), 60, lambda: what_is_wrong(api))
        wait_called(api)

    def upgrade(version):
        shell.run(f"helm upgrade cantle charts/cantle --namespace {NAMESPACE} --reuse-values {of(version)}")
        wait_up(version)

    chart.delete(api, chart.standing())
    try:
        try:
            shell.run(f"{command} {of('first')}")
            wait_up("first")
            yield upgrade
        finally:
            shell.run(f"helm uninstall cantle --namespace {NAMESPACE} --ignore-not-found")
        wait_until(lambda: not api.items(PODS), 120, lambda: what_is_wrong(api))
    finally:
        chart.create(api, chart.standing())


def fractions_through_an_upgrade(api, worker, namespace, upgrade):
    pods = Documented(api, namespace)
    held(pods.fill(LABELED), 20 << 10)
    (gpu,) = worker.machine.truth()
    assert gpu["used_bytes"] <= 20 * GIB and len(gpu["processes"]) == 1
    # All parts are replaced; the pod continues.
    before = pods.get("train-pod")["status"]["containerStatuses"]
    upgrade("next")
    held(pods.fill(LABELED, "second"), 20 << 10)
    assert pods.get("train-pod")["status"]["containerStatuses"][0]["containerID"] == before[0]["containerID"]
    assert worker.machine.truth()[0]["used_bytes"] <= 40 * GIB
    for name in ["train-pod", "second"]:
        pods.delete(name)
        pods.wait_gone(name)
    wait_until(lambda: not leases(worker.machine), 60, lambda: leases(worker.machine))


@pytest.mark.dra("The chart is installed, upgraded and removed with a running pod")
def test_a_first_half_gpu_pod(plane, worker, built_images, shell, namespace):
    worker.with_gpus("1xA100-40GB")
    with installed(plane, shell, PLAIN_INSTALL, pods=3) as upgrade:
        wait_until(lambda: plane.api.items(f"{RESOURCE}/resourceslices"), 60, lambda: what_is_wrong(plane.api))
        fractions_through_an_upgrade(plane.api, worker, namespace, upgrade)
    # The kubelet removes them half a minute after their driver has gone.
    wait_until(lambda: not plane.api.items(f"{RESOURCE}/resourceslices"), 120, "the end of the node's devices")


def test_a_node_whose_driver_is_in_a_container(plane, worker, built_images, shell, namespace):
    """GPU Operator's driver container: what the node's pod sees in its own library directory has another path on the node."""
    machine = worker.with_gpus("1xA100-40GB", layout="driver-container")
    with installed(plane, shell, PLAIN_INSTALL, pods=3):
        wait_until(lambda: plane.api.items(f"{RESOURCE}/resourceslices"), 60, lambda: what_is_wrong(plane.api))
        pods = Documented(plane.api, namespace)
        held(pods.fill(LABELED), 20 << 10)
        assert machine.truth()[0]["used_bytes"] <= 20 * GIB
        specs = [json.loads(path.read_text()) for path in machine.path("/run/cdi").glob("cantle-*.json")]
        mounts = [mount for spec in specs for device in spec["devices"] for mount in device["containerEdits"]["mounts"]]
        hosts = {mount["hostPath"] for mount in mounts if mount["type"] == "bind"}
        # A program that the node can run covers the image's own copies of the driver's libraries.
        hosts |= {hook["path"] for spec in specs for device in spec["devices"] for hook in device["containerEdits"]["hooks"]}
        assert "/opt/cantle/lib/cantle" in hosts
        assert len(hosts) > 4 and all(machine.path(path).exists() for path in hosts), hosts
        assert not machine.path("/usr/lib/x86_64-linux-gnu/libcuda.so.1").exists(), "the node has it elsewhere"
        pods.delete("train-pod")
        pods.wait_gone("train-pod")
        no_device_that_the_node_has_not(plane.api, shell)
    chart.remove_devices(plane.api)


def no_device_that_the_node_has_not(api, shell):
    """The driver's files are copied to a directory that the node's pod has for itself."""
    place = "/spec/template/spec/containers/0/args/6"
    value = "--driver-files-dir=/tmp/driver"
    patch = json.dumps([{"op": "test", "path": place, "value": "--driver-files-dir=/opt/cantle/lib/driver"}, {"op": "replace", "path": place, "value": value}])
    shell.run(f"kubectl patch daemonset cantle-node --namespace {NAMESPACE} --type json --patch '{patch}'")
    said = lambda: shell.run(f"kubectl logs daemonset/cantle-node --namespace {NAMESPACE} --container node || true")
    wait_until(lambda: "does not have what a pod with a slice gets" in said(), 180, lambda: (said(), what_is_wrong(api)))
    devices = lambda: [device for each in api.items(f"{RESOURCE}/resourceslices") for device in each["spec"].get("devices", [])]
    wait_until(lambda: not devices(), 60, lambda: f"{devices()}\n{said()}")


def is_told_of_instances(plane, folder):
    """Where NVIDIA's device plugin has instances, pods that request them would still be given to cantle."""
    plugins = lambda: [each["verdict"] for each in check(plane, folder)[1].get("NVIDIA's device plugin", [])]
    assert not plugins()
    static = node("static-instances")
    # Nothing of the chart's goes there.
    static["spec"] = {"taints": [{"key": "test", "effect": "NoSchedule"}]}
    static["status"]["allocatable"] = static["status"]["capacity"] | {"nvidia.com/mig-1g.5gb": "7"}
    plane.api.create("/api/v1/nodes", static)
    try:
        assert plugins() == ["warning"]
    finally:
        plane.api.delete("/api/v1/nodes/static-instances")


def the_rest_of_the_page(api, shell, page, namespace):
    """The placements, and the GPUs that are reserved from NVIDIA's device plugin. That plugin is not here: see test_reservation.py."""
    page.next("pod with a label")
    placements = page.next("kubectl get node")
    pods = Documented(api, namespace)
    held(pods.fill(LABELED), 20 << 10)
    assert f"{namespace}/train-pod" in shell.run(placements, N="worker")
    pods.delete("train-pod")
    pods.wait_gone("train-pod")
    shell.run(page.next("helm upgrade"))
    assert '"GPU-' in shell.run(page.next("kubectl get pods --namespace cantle-reservation"), N="worker")
    page.end()


@pytest.mark.classic("The chart is installed, upgraded and removed with a running pod")
def test_a_first_half_gpu_pod_on_the_classic_path(plane, worker, built_images, scheduler_image, shell, namespace, tmp_path):
    """As its page says, block by block."""
    worker.with_gpus("1xA100-40GB")
    page = Page("kubernetes-classic.md")
    try:
        with installed(plane, shell, page.next("helm install"), pods=5) as upgrade:
            fractions_through_an_upgrade(plane.api, worker, namespace, upgrade)
            is_told_of_instances(plane, tmp_path)
            text = "".join(scraped(plane.api, part) for part in PARTS)
            # The second pod's; the server of the first one is gone.
            for line in ['cantle_extender_answers_total{call="bind",answer="placed"} 1', 'cantle_driver_prepared_total{answer="made"} 1']:
                assert text.splitlines().count(line) == 1, text
            documented = (ROOT / "docs/metrics.md").read_text()
            names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
            assert len(names) == 25 and all(f"`{name}`" in documented for name in names), names
            assert not plane.api.items(f"{RESOURCE}/resourceclaims")
            the_rest_of_the_page(plane.api, shell, page, namespace)
    finally:
        classic.forget(plane.api, worker.name)


def scraped(api, component):
    """The metrics of all pods of a part, one after the other."""
    pods = api.items(f"{PODS}?labelSelector=app.kubernetes.io/component%3D{component}")
    return "".join(api.get(f"{PODS}/{pod['metadata']['name']}:9402/proxy/metrics") for pod in pods)
