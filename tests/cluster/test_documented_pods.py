"""The manifests that ClearML documents, in real pods. Their names, labels, resources and images are as documented; the images
hold a Debian, and the programs take all GPU memory that they get. On this node every container sees all GPUs, as with NVIDIA's
runtime: only its slice holds a pod back."""

import pytest
import yaml

from documented import LABELED, MIG
from processes import wait_until
from test_pods import FILL, OUT_OF_MEMORY, Pods, used

GIB = 1 << 30
GIB_IN_MIB = 1 << 10

# Queue default0250: the label next to the older resource, which the API server itself refuses.
OLDER = """
apiVersion: v1
kind: Pod
metadata:
  name: default0250
  labels:
    required-resources: "0.25"
    clearml-injector/fraction: "0.250"
spec:
  containers:
  - name: task
    image: localhost/cantle-test:1
    resources:
      limits:
        nvidia.com/gpu: 1
        clear.ml/fraction-1: "0.25"
"""
OLDEST = OLDER.replace('    clearml-injector/fraction: "0.250"\n', "").replace("default0250", "default0250-old")
# The documented command lacks the import.
LIMITED = """
apiVersion: v1
kind: Pod
metadata:
  name: train-pod
  labels:
    app: trainme
spec:
  hostPID: true
  containers:
  - name: train-container
    image: clearml/fractional-gpu:u22-cu12.3-8gb
    command: ['python3', '-c', 'import torch; print(f"Free GPU Memory: (free, global) {torch.cuda.mem_get_info()}")']
"""
PLAIN = """
apiVersion: v1
kind: Pod
metadata:
  name: plain
spec:
  containers:
  - name: plain
    image: localhost/cantle-test:1
"""


class Documented(Pods):
    def fill(self, manifest, name=None):
        """Creates the pod with the program that takes what it gets; gives what it said."""
        thing = yaml.safe_load(manifest)
        thing["spec"]["containers"][0]["command"] = ["python3", "-c", FILL]
        thing["metadata"]["name"] = name or thing["metadata"]["name"]
        self.api.create(self.path, thing)
        return self.said(thing["metadata"]["name"])


@pytest.fixture
def pods(start, plane, injector, namespace):
    return Documented(plane.api, namespace)


def held(said, limit_mib):
    """The pod saw its limit, and got it but for its context and the last step."""
    assert (said["total"], said["code"]) == (limit_mib, OUT_OF_MEMORY), said
    assert limit_mib - GIB_IN_MIB < said["taken"] < limit_mib, said


@pytest.mark.dra("A fraction by ClearML's label, held by the limit")
def test_fractions_by_label_and_by_the_older_resource(pods, start):
    driver = start("1xA100-40GB")
    plain = pods.fill(PLAIN)
    assert plain["total"] == 40 << 10 and plain["taken"] > 39 << 10, f"negative control: {plain}"
    pods.delete("plain")
    pods.wait_gone("plain")
    wait_until(lambda: used(driver) == 0, 60, driver.truth)

    held(pods.fill(LABELED), 20 << 10)
    held(pods.fill(OLDER), 10 << 10)
    held(pods.fill(OLDEST), 10 << 10)
    (gpu,) = driver.truth()
    assert gpu["used_bytes"] <= 40 * GIB and len(gpu["processes"]) == 3


@pytest.mark.dra("A MIG instance by `nvidia.com/mig-…`")
def test_a_mig_instance_by_its_resource(pods, start, mig_worker):
    driver = start("1xA100-40GB:mig")
    said = pods.fill(MIG)
    (instance,) = driver.truth()[0]["mig"]
    assert instance["profile"] == "3g.20gb"
    device = f"gpu-0-mig-3g-20gb-{instance['start']}"
    memory = driver.devices()[device]["capacity"]["memory"]["value"]
    held(said, int(memory.removesuffix("Mi")))


def test_an_image_with_a_limit(pods, start, built_images):
    driver = start("1xA100-40GB")
    pods.api.create(pods.path, yaml.safe_load(LIMITED))
    context = 512 << 20
    expected = f"Free GPU Memory: (free, global) {(8 * GIB - context, 8 * GIB)}\n"
    wait_until(lambda: pods.log("train-pod") == expected, 90, lambda: (pods.log("train-pod"), pods.get("train-pod")["status"]))
    # Its program ends and starts again, with a context each time.
    pods.delete("train-pod")
    pods.wait_gone("train-pod")
    held(pods.fill(LIMITED, "greedy"), 8 << 10)
    assert used(driver) <= 8 * GIB
    assert pods.fill(PLAIN)["taken"] > 30 << 10, "negative control"
