"""`cantle check kubernetes` before anything of cantle's is there, and with it."""

import json
import os
import subprocess

from api import RESOURCE
from driver import CANTLE
from injector import Injector, pod
from processes import wait_until


def check(plane, folder):
    words = [CANTLE, "check", "kubernetes", "--kubeconfig", plane.kubeconfig(), "-o", "json"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 7), done.stderr
    found = {}
    for each in json.loads(done.stdout)["items"]:
        found.setdefault(each["check"], []).append(each)
    return done.returncode, found


def test_a_cluster_is_judged_by_what_it_has(plane, hand_made, make_driver, tmp_path):
    # What another test's driver published goes half a minute after it, when the kubelet is sure.
    wait_until(lambda: not plane.api.items(f"{RESOURCE}/resourceslices"), 120, "the end of others' devices")
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
    # Nobody is to run it.
    thing["spec"]["schedulerName"] = "none"
    plane.api.create(overlooked, thing)
    plane.api.create(quota, {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    try:
        _, found = check(plane, folder)
        assert "kube-system/overlooked" in found["pods"][0]["found"] and "does not see namespace kube-system" in found["pods"][0]["found"]
        assert found["quotas"][0]["found"].startswith("default/gpus"), found["quotas"]
    finally:
        plane.api.delete(f"{overlooked}/overlooked", 0)
        plane.api.delete(f"{quota}/gpus")
