"""`kubectl get gpus.cantle.dev`: what the node driver writes of its GPUs, next to what the GPUs themselves and the pods on them report."""

import json

import pytest

import chart
from api import ApiError
from gpu_objects import PATH, rows, wait_shown
from page import Shell
from processes import wait_until
from test_pods import Pods

GIB_MIB = 1 << 10


@pytest.fixture
def shell(plane, programs, tmp_path):
    return Shell(plane, programs, tmp_path)


@pytest.mark.dra("`kubectl` shows what is free on each GPU")
def test_kubectl_shows_what_is_free(start, plane, shell, namespace, templates):
    driver = start("2xA100-80GB", "--gpu-objects")
    pods = Pods(plane.api, namespace)
    # The outside witness: what the GPUs themselves report.
    total_mib = [gpu["memory_bytes"] >> 20 for gpu in driver.truth()]
    idle = [("idle", mib, 0, "Healthy") for mib in total_mib]
    table = wait_shown(shell, idle, driver.log)
    assert [(row["NAME"], row["NODE"], row["MEMORY"]) for row in table] == [(f"worker-gpu-{at}", "worker", f"{mib}Mi") for at, mib in enumerate(total_mib)]
    assert {row["MODEL"] for row in table} == {device["attributes"]["model"]["string"] for device in driver.devices().values()}
    assert [row["UUID"] for row in rows(shell, "cgpu --output wide")] == [gpu["uuid"] for gpu in driver.truth()]
    version = lambda: plane.api.get(f"{PATH}/worker-gpu-1")["metadata"]["resourceVersion"]
    untouched = version()

    limits_mib = []
    for name, template in {"half": "half", "quarter": "quarter"}.items():
        pods.create(name, template)
        # The limit as the program in the pod sees it.
        limits_mib.append(pods.said(name)["total"])
        free_mib = total_mib[0] - sum(limits_mib)
        wait_shown(shell, [("shared", free_mib, len(limits_mib), "Healthy"), idle[1]], driver.log)
    assert free_mib == 20 * GIB_MIB
    # The node's own record of the slices.
    leases = [json.loads(path.read_text()) for path in driver.leases()]
    held = [slice["memory_limit_bytes"] >> 20 for lease in leases for slice in lease["slices"]]
    assert sorted(held) == sorted(limits_mib)
    assert version() == untouched, "written though nothing has changed"

    pods.create("all", "whole", command=("sleep", "600"))
    wait_shown(shell, [("shared", free_mib, 2, "Healthy"), ("whole", 0, 1, "Healthy")], driver.log)
    driver.faults("* gpu=1 error=15\n")
    wait_shown(shell, [("shared", free_mib, 2, "Healthy"), ("whole", 0, 1, "Lost")], driver.log)
    driver.faults("")
    for name in ["half", "quarter", "all"]:
        pods.delete(name)
    wait_shown(shell, idle, driver.log)
    # Nobody keeps them current any more.
    driver.stop()
    assert plane.api.items(PATH) == []


def test_the_objects_go_with_the_gpu_and_with_the_node(plane, hand_made, make_driver):
    driver = make_driver(hand_made, "2xA100-40GB", "--gpu-objects")
    names = lambda: [each["metadata"]["name"] for each in plane.api.items(f"{PATH}?fieldSelector=spec.nodeName%3D{hand_made}")]
    both = [f"{hand_made}-gpu-0", f"{hand_made}-gpu-1"]
    wait_until(lambda: names() == both, 60, driver.log)
    a_driver_writes_objects_of_its_own_node_only(plane.api, driver, hand_made)
    # It has no time to delete them. The next one has one GPU less.
    driver.program.kill()
    assert names() == both
    driver = make_driver(hand_made, "1xA100-40GB", "--gpu-objects")
    wait_until(lambda: names() == both[:1], 60, driver.log)
    driver.program.kill()
    plane.api.delete(f"/api/v1/nodes/{hand_made}")
    wait_until(lambda: not names(), 120, names)


def a_driver_writes_objects_of_its_own_node_only(api, driver, node):
    config = json.loads((driver.home / "driver.kubeconfig").read_text())
    own = api.with_token(config["users"][0]["user"]["token"])
    spec = {"nodeName": "another", "index": 0, "uuid": "GPU-0", "model": "A100", "memory": "1Mi"}
    thing = {"apiVersion": "cantle.dev/v1alpha1", "kind": "GPU", "metadata": {"name": "another-gpu-0"}, "spec": spec}
    chart.wait_denied(lambda: own.create(f"{PATH}?dryRun=All", thing), "may write GPU objects of that node only")
    with pytest.raises(ApiError, match="may write GPU objects of that node only"):
        own.create(PATH, thing)
    # Under the other's name, with its own.
    with pytest.raises(ApiError, match="the name must be that of the node"):
        own.create(PATH, {**thing, "spec": {**spec, "nodeName": node}})
    # The negative control.
    api.create(PATH, thing)
    with pytest.raises(ApiError, match="may write GPU objects of that node only"):
        own.call("DELETE", f"{PATH}/another-gpu-0")
    api.delete(f"{PATH}/another-gpu-0")


def test_without_the_definition_the_driver_goes_on(plane, hand_made, make_driver):
    definition = [thing for thing in chart.standing() if thing["kind"] == chart.DEFINITION]
    chart.delete(plane.api, definition)
    try:
        driver = make_driver(hand_made, "1xA100-40GB", "--gpu-objects")
        wait_until(lambda: "GPU objects are not current" in driver.log(), 60, driver.log)
        assert set(driver.devices()) == {"gpu-0-shared"}
        driver.program.check()
    finally:
        chart.create(plane.api, definition)
    driver.stop()
    assert driver.log().count("GPU objects") == 1, driver.log()
    driver.start()
    # An attempt that the API server refuses is repeated after a minute.
    wait_until(lambda: plane.api.items(PATH), 120, driver.log)
