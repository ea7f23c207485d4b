"""Real pods on a real kubelet: what the scheduler gave is what they have, and no more."""

import json
import os
import time

import pytest

from api import PARTITIONED, RESOURCE, ApiError, pod
from processes import wait_until

FILL = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
free, total, code, taken = ctypes.c_size_t(), ctypes.c_size_t(), 0, 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
while code == 0:
    pointer = ctypes.c_uint64()
    code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20))
    taken += 256 if code == 0 else 0
print("total", total.value >> 20, "taken", taken, "code", code, flush=True)
time.sleep(600)
"""
OUT_OF_MEMORY = 2
GIB = 1 << 30


class Pods:
    def __init__(self, api, namespace):
        self.api, self.path = api, f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name, template=None, limits=None, command=("python3", "-c", FILL)):
        self.api.create(self.path, pod(name, list(command), template, limits))

    def get(self, name):
        return self.api.get(f"{self.path}/{name}")

    def delete(self, name):
        self.api.delete(f"{self.path}/{name}", 1)

    def wait_gone(self, name):
        wait_until(lambda: self.api.find(f"{self.path}/{name}") is None, 120, f"the end of {name}")

    def wait_running(self, name):
        wait_until(lambda: self.get(name)["status"]["phase"] == "Running", 180, lambda: self.get(name)["status"])

    def why(self, name):
        """The scheduler's reason for not placing it, or nothing."""
        conditions = self.get(name)["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), "")

    def device(self, name):
        """The scheduler's allocation."""
        claim = self.get(name)["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        claim = self.api.get(f"{self.path.replace('/api/v1', RESOURCE).removesuffix('pods')}resourceclaims/{claim}")
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        return result["device"]

    def health(self, name):
        """The kubelet's status of the pod's device."""
        (container,) = self.get(name)["status"]["containerStatuses"]
        told = [each for of in container.get("allocatedResourcesStatus", []) for each in of["resources"]]
        return told[0]["health"] if told else None

    def log(self, name):
        try:
            return self.api.get(f"{self.path}/{name}/log")
        except ApiError as refused:
            # Its container is being made, for the first time or once more; or (404) its kubelet does not know the pod yet.
            assert refused.code in (400, 404), refused
            return ""

    def said(self, name):
        """The pod's first line, as a dict of its words."""
        self.wait_running(name)
        log = wait_until(lambda: self.log(name), 60, lambda: self.get(name)["status"])
        words = log.split()
        return {words[at]: int(words[at + 1]) for at in range(0, 6, 2)}


@pytest.fixture
def pods(start, plane, namespace, templates):
    """Pods of a namespace. They end before the driver does, which the kubelet needs for that."""
    return Pods(plane.api, namespace)


def used(driver, gpu=0):
    return driver.truth()[gpu]["used_bytes"]


@pytest.mark.dra("A pod waits for room, and starts when it is free")
def test_shares_hold_and_a_waiting_one_starts(pods, start):
    driver = start("1xH100-80GB:mig")
    pods.create("half", "half")
    pods.create("quarter", "quarter")
    half, quarter = pods.said("half"), pods.said("quarter")
    assert (half["total"], half["code"]) == (40 << 10, OUT_OF_MEMORY)
    assert (quarter["total"], quarter["code"]) == (20 << 10, OUT_OF_MEMORY)
    # The context is charged to the slice; what is left of it is less than one more step.
    assert (40 << 10) - 1024 < half["taken"] < (40 << 10)
    assert used(driver) <= 60 * GIB and len(driver.truth()[0]["processes"]) == 2
    assert not driver.truth()[0]["mig"], "a GPU with shares has no partitions"

    pods.create("third", "half")
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"})
    refused = lambda name: any(c.get("reason") == "Unschedulable" for c in pods.get(name)["status"].get("conditions", []))
    wait_until(lambda: refused("third") and refused("partition"), 60, "two pods that wait")
    pods.delete("partition")
    pods.delete("half")
    assert pods.said("third")["total"] == 40 << 10
    pods.wait_gone("half")
    assert len(driver.leases()) == 2


def test_a_pod_gets_the_partition_it_asks_for(pods, start):
    driver = start("1xH100-80GB:mig")
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"}, command=("sleep", "600"))
    pods.wait_running("partition")
    (instance,) = driver.truth()[0]["mig"]
    assert instance["profile"] == "1g.10gb"
    # Freed lazily: the instance stays as room, and makes way when a share comes.
    pods.delete("partition")
    wait_until(lambda: not driver.leases(), 60, driver.log)
    pods.create("quarter", "quarter")
    assert pods.said("quarter")["total"] == 20 << 10
    assert not driver.truth()[0]["mig"]


@pytest.mark.dra("The node driver is killed while it makes an instance")
def test_a_killed_driver_leaks_nothing(pods, start):
    driver = start("1xH100-80GB:mig")
    # Between the GPU instance and its compute instance, when the lease does not name it yet.
    driver.faults("nvmlGpuInstanceCreateComputeInstance delay_ms=60000 once\n")
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"}, command=("sleep", "600"))
    wait_until(lambda: driver.truth()[0]["mig"], 60, driver.log)
    driver.program.kill()
    driver.faults("")
    driver.start()
    pods.wait_running("partition")
    assert len(driver.truth()[0]["mig"]) == 1 and len(driver.leases()) == 1
    pods.delete("partition")
    pods.wait_gone("partition")
    wait_until(lambda: not driver.leases(), 60, driver.log)


@pytest.mark.dra("A GPU is lost")
def test_a_lost_gpu_is_told_and_leaves_the_other(pods, start):
    driver = start("2xA100-80GB")
    lost_and_found(pods, driver, lambda: driver.devices()["gpu-0-shared"].get("taints"))


def lost_and_found(pods, driver, is_told):
    """The pod on the lost GPU stays as it is; others get the other GPU, and wait for the first once that is full."""
    pods.create("half", "half")
    assert pods.said("half")["code"] == OUT_OF_MEMORY
    before = used(driver)
    assert before and not used(driver, 1)
    wait_until(lambda: pods.health("half") == "Healthy", 60, lambda: pods.get("half")["status"])
    driver.faults("* gpu=0 error=15\n")
    wait_until(lambda: pods.health("half") == "Unhealthy", 60, lambda: (pods.get("half")["status"], driver.log()))
    # The kubelet and the API server hear of it at different times; until the latter does, a pod may still be placed there.
    wait_until(is_told, 60, driver.log)
    for name in ("quarter", "half"):
        pods.create(f"other-{name}", name)
        assert pods.said(f"other-{name}")["code"] == OUT_OF_MEMORY
    assert used(driver) == before and 58 * GIB < used(driver, 1) <= 60 * GIB
    pods.create("waits", "half")
    wait_until(lambda: pods.why("waits"), 60, lambda: pods.get("waits")["status"])
    assert pods.health("other-half") == "Healthy"
    driver.faults("")
    wait_until(lambda: pods.health("half") == "Healthy", 60, lambda: pods.get("half")["status"])
    assert pods.said("waits")["code"] == OUT_OF_MEMORY
    assert pods.get("half")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert before < used(driver) <= 80 * GIB


@pytest.mark.dra("MIG mode by the label of the node")
def test_the_nodes_label_is_heeded_while_pods_run(pods, start, label):
    driver = start("2xH100-80GB")
    serving = lambda: {name[:5] for name in driver.devices() if "-mig-" in name}
    pods.create("half", "half", command=("sleep", "600"))
    pods.wait_running("half")
    assert pods.device("half") == "gpu-0-shared" and not serving()
    label(**PARTITIONED)
    wait_until(lambda: serving() == {"gpu-1"}, 60, driver.log)
    pods.create("partition", limits={"nvidia.com/mig-1g.10gb": "1"}, command=("sleep", "600"))
    pods.wait_running("partition")
    shared, divided = driver.truth()
    assert not shared["mig"] and [instance["profile"] for instance in divided["mig"]] == ["1g.10gb"]
    status = pods.get("half")["status"]["containerStatuses"][0]
    assert "running" in status["state"] and status["restartCount"] == 0
    pods.delete("half")
    wait_until(lambda: serving() == {"gpu-0", "gpu-1"}, 60, driver.log)


@pytest.mark.dra("The API server does not answer")
def test_without_the_api_server_nothing_is_lost(pods, start, plane):
    nothing_is_lost(pods, start("1xH100-80GB:mig"), plane)


def nothing_is_lost(pods, driver, plane):
    pods.create("half", "half")
    assert pods.said("half")["code"] == OUT_OF_MEMORY
    before = (driver.leases(), driver.truth(), driver.slices())
    container = pods.get("half")["status"]["containerStatuses"][0]["containerID"]
    plane.server.kill()
    # Two minutes in `make soak`: longer than any client waits for an answer.
    time.sleep(float(os.environ.get("CANTLE_TEST_AWAY_S", "8")))
    assert (driver.leases(), driver.truth()) == before[:2]
    driver.program.check()
    plane.start_server()
    pods.create("quarter", "quarter")
    assert pods.said("quarter")["code"] == OUT_OF_MEMORY
    status = pods.get("half")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (container, 0)
    assert len(driver.leases()) == 2 and driver.slices() == before[2]


@pytest.mark.dra("The kubelet restarts")
def test_a_kubelet_that_restarts_loses_nothing(pods, start, worker):
    driver = start("1xH100-80GB:mig")
    pods.create("half", "half")
    assert pods.said("half")["total"] == 40 << 10
    before = (driver.leases(), used(driver), pods.get("half")["status"]["containerStatuses"][0]["containerID"])
    worker.restart_kubelet()
    wait_until(lambda: driver.log().count("registered with the kubelet") >= 2, 60, driver.log)
    pods.create("quarter", "quarter")
    assert pods.said("quarter")["code"] == OUT_OF_MEMORY
    status = pods.get("half")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (before[2], 0)
    assert len(driver.leases()) == 2 and set(before[0]) < set(driver.leases())


def test_the_next_driver_takes_over(pods, start):
    driver = start("1xH100-80GB:mig")
    pods.create("half", "half", command=("sleep", "600"))
    pods.wait_running("half")
    (spec,) = driver.cdi_dir.glob("cantle-*.json")
    (device,) = json.loads(spec.read_text())["devices"]
    nodes = {node["path"] for node in device["containerEdits"]["deviceNodes"]}
    assert nodes == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    files = {mount["hostPath"] for mount in device["containerEdits"]["mounts"]}
    real = {f"/usr/lib/{os.uname().machine}-linux-gnu/{name}.so.{driver.machine.driver()}" for name in ["libcuda", "libnvidia-ml"]}
    assert real < files, "the installed driver's own"
    driver.stop()
    driver.start()
    assert spec.exists() and len(driver.leases()) == 1
    pods.delete("half")
    wait_until(lambda: not driver.leases() and not spec.exists(), 120, driver.log)
