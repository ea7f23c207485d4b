"""What a user's claim, a claim that is gone and a process outside of cantle do on a real node: the GPUs themselves are the witness."""

import os

import pytest

from api import RESOURCE, pod
from gpu_objects import PATH
from processes import Program, wait_until
from test_pods import FILL, OUT_OF_MEMORY, Pods, used

GIB = 1 << 30


@pytest.fixture
def pods(start, plane, namespace, templates):
    """They end before the driver does, which the kubelet needs for that."""
    return Pods(plane.api, namespace)


def instance_claim(fraction=None):
    parameters = {"compute": "even", **({"fraction": fraction} if fraction else {})}
    exactly = {"deviceClassName": "mig-1g.5gb.gpu.cantle.dev", "selectors": [{"cel": {"expression": 'device.attributes["gpu.cantle.dev"].start == 0'}}]}
    config = {"requests": ["gpu"], "opaque": {"driver": "gpu.cantle.dev", "parameters": parameters}}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": [config]}}


def test_no_parameter_makes_an_instance_larger(pods, start, plane, namespace):
    """The scheduler has allocated an eighth of the GPU."""
    driver = start("1xA100-40GB:mig")

    claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"

    def create(name, fraction):
        plane.api.create(claims, {"metadata": {"name": name}, "spec": instance_claim(fraction)})
        made = pod(name, ["python3", "-c", FILL])
        made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
        made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        plane.api.create(pods.path, made)

    def end(name):
        """No pod owns the claim, so nobody else deletes it."""
        pods.delete(name)
        pods.wait_gone(name)
        plane.api.delete(f"{claims}/{name}")

    notes = lambda name: [event["message"] for event in plane.api.items(f"/api/v1/namespaces/{namespace}/events") if event["involvedObject"]["name"] == name]
    create("most", "0.9")
    words = "and the claim for a 1g.5gb MIG instance, which has its own memory; remove fraction"
    wait_until(lambda: any(words in note for note in notes("most")), 120, lambda: (notes("most"), driver.log()))
    assert not driver.truth()[0]["mig"] and not driver.leases()
    end("most")
    # Negative control: without the fraction, the claim is served.
    create("plain", None)
    said = pods.said("plain")
    assert said["total"] < 5 << 10 and said["code"] == OUT_OF_MEMORY
    assert [instance["profile"] for instance in driver.truth()[0]["mig"]] == ["1g.5gb"]
    end("plain")


def test_a_claim_that_is_gone_ends_its_pods_use(pods, start, plane, namespace):
    """An administrator may do what the policies forbid to users."""
    driver = start("1xA100-80GB")
    pods.create("half", "half")
    pods.create("quarter", "quarter")
    assert pods.said("half")["code"] == pods.said("quarter")["code"] == OUT_OF_MEMORY
    before = used(driver)
    claim = pods.get("half")["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{claim}"
    plane.api.merge(path, {"metadata": {"finalizers": None}})
    plane.api.delete(path)
    # The driver asks once a minute.
    wait_until(lambda: used(driver) < 21 * GIB, 120, driver.log)
    assert before > 58 * GIB and len(driver.leases()) == 1
    assert "ending its processes and slices" in driver.log()
    ended = lambda: pods.get("half")["status"]["containerStatuses"][0]["state"].get("terminated")
    assert wait_until(ended, 60, lambda: pods.get("half")["status"])["exitCode"] == 137
    running = pods.get("quarter")["status"]["containerStatuses"][0]
    assert "running" in running["state"] and running["restartCount"] == 0
    # What is free is given to others.
    pods.create("next", "half")
    assert pods.said("next")["code"] == OUT_OF_MEMORY


def test_pods_go_where_no_stranger_is(pods, start, plane, tmp_path):
    """The stranger fills the GPU that would be taken first."""
    driver = start("2xA100-80GB", "--gpu-objects")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    stranger = Program("stranger", tmp_path, driver.machine.command("python3", "-c", FILL), env)
    stranger.start()
    try:
        taint = lambda name: [each["key"] for each in driver.devices()[name].get("taints", [])]
        wait_until(lambda: taint("gpu-0-shared") == ["gpu.cantle.dev/foreign"], 60, lambda: (driver.log(), stranger.log(), driver.truth()))
        assert taint("gpu-1-shared") == []
        of = lambda: plane.api.get(f"{PATH}/worker-gpu-0")["status"]
        wait_until(lambda: of()["mode"] == "foreign", 60, of)
        assert int(of()["free"].removesuffix("Mi")) < 1024 < 78 << 10 < int(of()["foreign"].removesuffix("Mi"))
        for name, template in [("half", "half"), ("quarter", "quarter")]:
            pods.create(name, template)
            assert pods.said(name)["code"] == OUT_OF_MEMORY
            assert pods.device(name) == "gpu-1-shared"
    finally:
        stranger.kill()
    wait_until(lambda: taint("gpu-0-shared") == [] and of()["mode"] == "idle", 60, lambda: (driver.log(), of()))
    pods.create("late", "half")
    assert pods.said("late")["code"] == OUT_OF_MEMORY and pods.device("late") == "gpu-0-shared"
