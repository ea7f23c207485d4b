"""Pods with slices fill GPUs and nodes before others are begun. The nodes are hand-made, each with the devices that a driver has published
of a machine with simulated GPUs; kube-scheduler is as it is, with its default configuration."""

import collections
import concurrent.futures
import copy

import pytest

from api import RESOURCE, node
from bench_cluster import clone, whole_pool
from injector import Injector, pod
from processes import wait_until

LABEL = "clearml-injector/fraction"
NODES, GPUS, PODS = 8, 4, 64


@pytest.fixture
def nodes(plane, hand_made, make_driver):
    """Eight of four GPUs each; the first one is left out, its driver would tell them apart."""
    driver = make_driver(hand_made, f"{GPUS}xA100-40GB")
    slices = wait_until(lambda: whole_pool(driver), 60, "the devices")
    names, clones = [f"packed-{at}" for at in range(NODES)], []
    for name in names:
        plane.api.create("/api/v1/nodes", node(name))
        clones += [clone(plane.api, of_node(each, name), name) for each in slices]
    plane.api.merge(f"/api/v1/nodes/{hand_made}", {"spec": {"unschedulable": True}})
    yield names
    for path in [*clones, *(f"/api/v1/nodes/{name}" for name in names)]:
        plane.api.delete(path)


def of_node(slice, name):
    """Each GPU of the cluster is another one."""
    changed = copy.deepcopy(slice)
    for device in changed["spec"].get("devices", []):
        device["attributes"]["uuid"]["string"] += f"-{name}"
    return changed


def placed(plane, folder, namespace, *flags):
    """Where 64 pods of an eighth go: nodes, and GPUs of them."""
    api, pods = plane.api, f"/api/v1/namespaces/{namespace}/pods"
    injector = Injector(plane, folder, *flags)
    try:
        injector.start()
        # A former one's Lease runs out in fifteen seconds.
        log = injector.program.log
        wait_until(lambda: flags or "this replica leads" in log(), 60, log)
        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda at: api.create(pods, pod({LABEL: "0.125", "app": "packed"}, name=f"p{at}")), range(PODS)))
        there = lambda: [each["spec"]["nodeName"] for each in api.items(pods) if each["spec"].get("nodeName")]
        wait_until(lambda: len(there()) == PODS, 180, lambda: f"{len(there())} have a place\n{injector.program.log()[-2000:]}")
        claims = api.items(f"{RESOURCE}/namespaces/{namespace}/resourceclaims")
        results = [result for claim in claims for result in claim["status"]["allocation"]["devices"]["results"]]
        return collections.Counter(there()), {(result["pool"], result["device"]) for result in results}
    finally:
        for each in api.items(pods):
            api.delete(f"{pods}/{each['metadata']['name']}", 0)
        wait_until(lambda: not api.items(f"{RESOURCE}/namespaces/{namespace}/resourceclaims"), 120, "the end of all claims")
        injector.remove()


def test_pods_fill_gpus_before_others_are_begun(plane, nodes, namespace, tmp_path):
    # A Service selects them: then kube-scheduler spreads pods over nodes, whatever their other scores are.
    service = {"metadata": {"name": "packed"}, "spec": {"selector": {"app": "packed"}, "ports": [{"port": 80}]}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/services", service)
    used, gpus = placed(plane, tmp_path, namespace)
    print(f"\n{PODS} pods of 0.125: {len(used)} of {NODES} nodes, {len(gpus)} GPUs")
    assert set(used) <= set(nodes)
    # Two nodes hold them. A nomination is advice: on a busy machine some pods are placed before it has come.
    assert fullest_two(used) >= PODS // 2, used
    # Negative control: kube-scheduler alone.
    used, gpus = placed(plane, tmp_path, namespace, "--no-packing")
    print(f"without packing: {len(used)} of {NODES} nodes, {len(gpus)} GPUs")
    assert fullest_two(used) < PODS // 2, used


def fullest_two(used):
    return sum(count for _, count in used.most_common(2))
