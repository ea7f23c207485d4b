"""`cantle gpus`, `why` and `projects` read a cluster without any server of cantle's. The node is hand-made, with the devices that a
driver has published of a machine with simulated GPUs; kube-scheduler places the pods."""

import json
import os
import subprocess

import pytest

from driver import CANTLE
from injector import pod
from processes import wait_until

LABEL = "clearml-injector/fraction"


@pytest.fixture
def cantle(plane, tmp_path):
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def run(*words):
        words = [CANTLE, *words, "--kubeconfig", plane.kubeconfig()]
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)

    def items(*words):
        done = run(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["items"]

    run.items = items
    return run


def test_a_cluster_says_who_has_what_and_why_a_pod_waits(plane, injector, hand_made, make_driver, namespace, cantle):
    driver = make_driver(hand_made, "2xA100-40GB")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    create = lambda name, share: plane.api.create(pods, pod({LABEL: share}, name=name))
    is_placed = lambda name: plane.api.get(f"{pods}/{name}")["spec"].get("nodeName")
    for name in ["one", "two"]:
        create(name, "0.750")
        wait_until(lambda: is_placed(name), 60, name)
    create("late", "0.500")
    says = lambda: [c for c in plane.api.get(f"{pods}/late")["status"].get("conditions", []) if c.get("reason") == "Unschedulable"]
    wait_until(says, 60, lambda: plane.api.get(f"{pods}/late"))

    here = [gpu for gpu in cantle.items("gpus") if gpu["node"] == hand_made]
    assert [(gpu["given_milli"], gpu["given_bytes"] >> 30) for gpu in here] == [(750, 30), (750, 30)], here
    # The outside witness: the driver's own devices.
    assert {gpu["uuid"] for gpu in here} == {each["attributes"]["uuid"]["string"] for each in driver.devices().values()}
    assert {name for gpu in here for name in gpu["pods"]} == {f"{namespace}/one", f"{namespace}/two"}

    (mine,) = [each for each in cantle.items("projects") if each["namespace"] == namespace]
    assert (mine["running"], mine["waiting"], mine["given_milli"]) == (2, 1, 1500)

    (late,) = cantle.items("why", f"{namespace}/late")
    assert late["state"] == "waiting" and late["request"] == "0.5 GPU", late
    assert "0.5" in late["reason"] and "0.25" in late["reason"], late["reason"]
    assert [each["node"] for each in late["nodes"]] == [hand_made]
    text = cantle("why", f"{namespace}/late").stdout
    assert f"{namespace}/late is waiting, asks for 0.5 GPU" in text, text
    (one,) = cantle.items("why", f"{namespace}/one")
    assert one["state"] == "placed" and "0.75 GPU, 30 GiB, of GPU-" in one["reason"], one
    missing = cantle("why", f"{namespace}/nobody")
    assert missing.returncode == 3 and f"no pod {namespace}/nobody" in missing.stderr, missing.stderr

    # The same where people look first.
    events = lambda: [each for each in plane.api.items(f"/api/v1/namespaces/{namespace}/events") if each["reason"] == "NoRoomForSlice"]
    # There is another event if the words change.
    wait_until(lambda: any("0.25" in event["message"] for event in events()), 60, events)
    assert {event["involvedObject"]["name"] for event in events()} == {"late"}, events()
    plane.api.delete(f"{pods}/one", 0)
    wait_until(lambda: is_placed("late"), 60, "room")
    (late,) = cantle.items("why", f"{namespace}/late")
    assert late["state"] == "placed", late
