"""Parts of the public trace "openb" on a cluster: `tests/cluster/run.sh -s -o python_files=bench_openb.py`. Their pods arrive one after the other
on their nodes, which are hand-made. kube-scheduler is as it is, and the injector nominates. The same part in the same order goes through
`cantle simulate`. As in the FGD experiment, no pod ends, and none is tried twice.

`cantle simulate` knows which sizes the trace requests how often. The injector knows it from the pods that came before: other pods of the trace, which are
gone when the part begins.

Once with the pods that request GPUs, which the injector packs. Once with all pods of the trace: kube-scheduler spreads those without a GPU over
the nodes, where they take the CPU that GPUs need."""

import collections
import copy
import csv
import json
import os
import random
import subprocess

import pytest

from api import RESOURCE, node
from bench_cluster import clone
from chart import ROOT
from driver import CANTLE
from injector import pod
from processes import wait_until

OPENB = ROOT.parent / "shared/data/openb"
NODES, PODS = "openb_node_list_gpu_node.csv", "openb_pod_list_default.csv"
SEEDS = [int(seed) for seed in os.environ.get("CANTLE_BENCH_SEEDS", "42").split(",")]
GPUS = int(os.environ.get("CANTLE_BENCH_GPUS", "100"))
# No node of the trace has more.
NODE_GPUS = 8
# A little more is requested than there is: the figure is the mean around 100 %.
INFLATE = 1.01
# The pods that came before.
BEFORE = 300
# The default of `cantle simulate`, and what it would be without knowledge of the trace.
POLICIES = ("worth", "binpack")
# The mean of all seeds. One part differs by more: one pod with eight GPUs is eight points of 100 GPUs.
WITHIN_POINTS = 1


class Part:
    """Some nodes of the trace, and its pods, both in an order that the seed draws."""

    def __init__(self, seed, gpus, wanted):
        drawn = random.Random(seed)
        nodes, pods = (list(csv.DictReader((OPENB / name).read_text().splitlines())) for name in (NODES, PODS))
        drawn.shuffle(nodes)
        drawn.shuffle(pods)
        pods = [task for task in pods if wanted(task)]
        self.nodes, self.pods = [], []
        while self.gpus() < gpus:
            self.nodes.append(nodes.pop())
        while sum(map(milli, self.pods)) < self.gpus() * 1000 * INFLATE:
            self.pods.append(pods.pop())
        self.before = [task for task in pods if milli(task)][:BEFORE]

    def gpus(self):
        return sum(int(node["gpu"]) for node in self.nodes)

    def simulated(self, folder, policy):
        """The allocation at 100 %, by `cantle simulate`."""
        for name, rows in {"nodes.csv": self.nodes, "pods.csv": self.pods}.items():
            with open(folder / name, "w", newline="") as file:
                table = csv.DictWriter(file, rows[0])
                table.writeheader()
                table.writerows(rows)
        words = ["--nodes", folder / "nodes.csv", "--pods", folder / "pods.csv", "--in-order", "--inflate", str(INFLATE), "--policy", policy]
        done = subprocess.run([CANTLE, "simulate", "--trace", "openb", *words, "-o", "json"], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["allocation_percent_at_100"]


def milli(task):
    return int(task["num_gpu"]) * int(task["gpu_milli"])


WITH_GPUS, ALL = "pods with GPUs", "all pods"


@pytest.fixture(params=[(seed, WITH_GPUS) for seed in SEEDS] + [(SEEDS[0], ALL)], ids=str)
def part(plane, hand_made, make_driver, request):
    """The nodes with their GPUs. All have the same memory, as in the simulation: the trace does not contain it."""
    if not OPENB.is_dir():
        pytest.skip(f"the trace is not in {OPENB}")
    seed, which = request.param
    part = Part(seed, GPUS, milli if which == WITH_GPUS else lambda task: True)
    driver = make_driver(hand_made, f"{NODE_GPUS}xA100-40GB")
    (slice,) = wait_until(driver.published, 60, driver.log)
    plane.api.merge(f"/api/v1/nodes/{hand_made}", {"spec": {"unschedulable": True}})
    made = []
    for task in part.nodes:
        # Without a kubelet; conftest.py knows such nodes by their name.
        name = f"hand-{task['sn']}"
        thing = node(name)
        amounts = {"cpu": f"{task['cpu_milli']}m", "memory": f"{task['memory_mib']}Mi", "pods": "1000"}
        thing["status"]["allocatable"] = thing["status"]["capacity"] = {**thing["status"]["capacity"], **amounts}
        plane.api.create("/api/v1/nodes", thing)
        made.append(f"/api/v1/nodes/{name}")
        own = copy.deepcopy(slice)
        own["spec"]["devices"] = own["spec"]["devices"][: int(task["gpu"])]
        for device in own["spec"]["devices"]:
            device["attributes"]["uuid"]["string"] += f"-{name}"
        made.append(clone(plane.api, own, name))
    yield part
    for path in made:
        plane.api.delete(path)


def as_pod(task):
    """As a user of Run:ai's annotations or ClearML's label writes it."""
    gpus, part = int(task["num_gpu"]), int(task["gpu_milli"])
    is_share = gpus == 1 and part < 1000
    annotations = {"gpu-fraction": f"{part / 1000:g}"} if is_share else {}
    labels = {"clearml-injector/fraction": str(gpus)} if gpus and not is_share else {}
    thing = pod(labels, annotations, name=task["name"])
    thing["spec"]["containers"][0]["resources"] = {"requests": {"cpu": f"{task['cpu_milli']}m", "memory": f"{task['memory_mib']}Mi"}}
    return thing


def is_placed(api, path):
    """True or False once kube-scheduler has decided."""

    def decided():
        seen = api.get(path)
        if seen["spec"].get("nodeName"):
            return "placed"
        said = [each.get("message", "") for each in seen["status"].get("conditions", []) if each["type"] == "PodScheduled"]
        # Before it, the pod waits for its gate and for its claim.
        return "refused" if any("nodes are available" in message for message in said) else None

    return wait_until(decided, 120, lambda: api.get(path)["status"]) == "placed"


def request_before(api, pods, tasks):
    """They come and go as pods do that nobody had room for, so that the nodes are empty afterwards."""
    for task in tasks:
        api.create(pods, as_pod({**task, "name": f"before-{task['name']}"}))

    def waiting():
        return [each for each in api.items(pods) if each["spec"].get("schedulingGates")]

    wait_until(lambda: not waiting(), 300, lambda: f"{len(waiting())} pods with a gate")
    for task in tasks:
        api.delete(f"{pods}/before-{task['name']}", 0)
    claims = f"{RESOURCE}/resourceclaims"
    wait_until(lambda: not api.items(pods) and not api.items(claims), 120, "pods that were deleted, or their claims, are there")


@pytest.fixture(scope="module")
def figures():
    """What was allocated on the cluster and by the simulation, part by part."""
    return []


def test_parts_of_openb(plane, part, injector, namespace, tmp_path, request, figures):
    api, pods, capacity = plane.api, f"/api/v1/namespaces/{namespace}/pods", part.gpus() * 1000
    seed, which = request.node.callspec.params["part"]
    request_before(api, pods, part.before)
    arrived = allocated = 0
    means = collections.defaultdict(list)
    for task in part.pods:
        api.create(pods, as_pod(task))
        arrived += milli(task)
        if is_placed(api, f"{pods}/{task['name']}"):
            allocated += milli(task)
        else:
            # It is not tried twice.
            api.delete(f"{pods}/{task['name']}", 0)
        means[round(100 * arrived / capacity)].append(100 * allocated / capacity)
    here = sum(means[100]) / len(means[100])
    simulated = {policy: part.simulated(tmp_path, policy) for policy in POLICIES}
    print(f"\nopenb, seed {seed}, {which}: {len(part.pods)} on {len(part.nodes)} nodes with {part.gpus()} GPUs. Allocated when 100 % are requested:")
    print(f"on the cluster {here:.2f} %, " + ", ".join(f"cantle simulate --policy {policy} {value:.2f} %" for policy, value in simulated.items()))
    if which == WITH_GPUS:
        figures.append((here, simulated["worth"]))


def test_the_mean_is_that_of_the_simulation(figures):
    if not figures:
        pytest.skip("no part was placed")
    here, simulated = (sum(column) / len(figures) for column in zip(*figures, strict=True))
    print(f"\nopenb, mean of {len(figures)}: on the cluster {here:.2f} %, cantle simulate {simulated:.2f} %")
    assert abs(here - simulated) <= WITHIN_POINTS
