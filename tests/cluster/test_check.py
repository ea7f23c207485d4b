"""`cantle check kubernetes` before anything of cantle's is there, and with it."""

import json
import os
import subprocess

import pytest

import chart
from driver import CANTLE
from injector import Injector, pod
from processes import wait_until


def check(plane, folder):
    words = [CANTLE, "check", "kubernetes", "--kubeconfig", plane.kubeconfig(), "-o", "json"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 7), done.stderr
    found = {}
    for each in json.loads(done.stdout)["items"]:
        found.setdefault(each["check"], []).append(each)
    return done.returncode, found


def test_a_cluster_is_judged_by_what_it_has(plane, hand_made, make_driver, tmp_path):
    chart.remove_devices(plane.api)
    code, found = check(plane, tmp_path)
    assert code == 7
    assert found["path"][0]["verdict"] == "good" and "mixed" in found["path"][0]["found"]
    assert [each["verdict"] for each in found["feature gate"]] == ["good"] * 3, found["feature gate"]
    assert found["devices"][0]["found"] == "no node offers GPUs"
    assert found["injector"][0]["verdict"] == "warning"
    assert "helm install" in found["parts"][0]["hint"]

    make_driver(hand_made, "1xA100-40GB")
    injector = Injector(plane, tmp_path)
    try:
        injector.start()
        code, found = check(plane, tmp_path)
        assert found["devices"][0]["verdict"] == "good", found["devices"]
        assert found["injector"][0]["found"] == "cantle-webhook: half a GPU becomes cantle-fraction-5000"
        assert "pods" not in found and "quotas" not in found
        what_has_no_effect_is_found(plane, tmp_path)
        injector.stop()
        code, found = check(plane, tmp_path)
        assert (code, found["injector"][0]["verdict"]) == (7, "bad")
        assert "connection refused" in found["injector"][0]["found"], "what the API server says"
    finally:
        injector.remove()


def what_has_no_effect_is_found(plane, folder):
    overlooked, quota = "/api/v1/namespaces/kube-system/pods", "/api/v1/namespaces/default/resourcequotas"
    thing = pod({"clearml-injector/fraction": "0.500"}, name="overlooked")
    # It must not run.
    thing["spec"]["schedulerName"] = "none"
    plane.api.create(overlooked, thing)
    # The injector counts the one, not the other.
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    plane.api.create(quota, {"metadata": {"name": "counted"}, "spec": hard})
    plane.api.create(quota, {"metadata": {"name": "scoped"}, "spec": hard | {"scopes": ["NotTerminating"]}})
    try:
        _, found = check(plane, folder)
        assert "kube-system/overlooked" in found["pods"][0]["found"] and "does not see namespace kube-system" in found["pods"][0]["found"]
        assert found["quotas"][0]["found"].startswith("default/scoped of"), found["quotas"]
    finally:
        plane.api.delete(f"{overlooked}/overlooked", 0)
        for name in ["counted", "scoped"]:
            plane.api.delete(f"{quota}/{name}")


def test_nodes_with_limits_of_kai_are_refused(plane, hand_made, make_driver, tmp_path):
    """Its daemon runs on real GPUs only: here the node says what that daemon says (a stand-in)."""
    before = make_driver(hand_made, "1xA100-40GB")
    path = f"/api/v1/nodes/{hand_made}"
    conditions = plane.api.get(path)["status"]["conditions"]
    theirs = {**conditions[0], "type": "gpu-fractioning.nvidia.com/Ready", "status": "True"}
    plane.api.merge(f"{path}/status", {"status": {"conditions": [*conditions, theirs]}})
    _, found = check(plane, tmp_path)
    (judged,) = found["NvFractions"]
    assert judged["verdict"] == "bad" and hand_made in judged["found"] and "node.nodeSelector" in judged["hint"]
    before.stop()
    before.program.start()
    with pytest.raises(AssertionError, match="ended with 8"):
        wait_until(before.program.check, 60, before.log)
    last = before.log().strip().splitlines()[-1]
    assert f"node {hand_made} has condition gpu-fractioning.nvidia.com/Ready" in last, last
