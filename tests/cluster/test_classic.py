"""The classic path on a real kubelet, with nothing of claims on devices: what the extender gave is what pods have."""

import collections
import concurrent.futures
import functools
import json

import pytest

import musl
import own_libcuda
import shares
import test_packing
import user_namespaces
from api import PARTITIONED, RESOURCE
from api import node as node_object
from classic import GPUS, LABEL, PLACEMENTS, ClassicNode, ClassicPods, Extender, give_slots, placements, running
from documented import MIG
from gpu_objects import rows, wait_shown
from injector import pod
from page import Shell
from processes import free_ports, wait_until
from test_churn import check_node
from test_documented_pods import held
from test_gpu_quota import Team, counts_add_up, slices_are_counted
from test_kueue import Jobs, counts_eighths
from test_kueue import kueue as kueue
from test_look import cantle as cantle
from test_metrics import each_pod_is_measured
from test_pods import OUT_OF_MEMORY, lost_and_found, nothing_is_lost
from test_two_nodes import gives_what_it_has
from worker import KUBELET_DIR

GIB = 1 << 30


@pytest.fixture(scope="module")
def system(plane, tmp_path_factory):
    """Injector and scheduler."""
    with running(plane, tmp_path_factory.mktemp("classic")) as scheduler:
        yield scheduler


@pytest.fixture
def start(system, make_node):
    """Starts the device plugin of a node."""
    return functools.partial(make_node, ClassicNode)


@pytest.fixture
def on_worker(worker, start):
    def on_worker(gpus, *flags, on=worker):
        node = start(on.name, on.with_gpus(gpus), *flags)
        node.wait_registered()
        return node

    return on_worker


@pytest.fixture
def pods(on_worker, plane, namespace):
    """Pods of a namespace; they end before the plugin does."""
    return ClassicPods(plane.api, namespace)


@pytest.mark.classic("A fraction by ClearML's label, held by the limit", "A pod waits for room, and starts when it is free", "`kubectl` shows what is free on each GPU")
def test_shares_hold_and_a_waiting_one_starts(plane, pods, on_worker, programs, tmp_path):
    node = on_worker("1xA100-80GB", "--gpu-objects")
    pods.ask("half", "0.500")
    pods.ask("quarter", annotations={"gpu-memory": "20480"})
    half, quarter = pods.said("half"), pods.said("quarter")
    assert (half["total"], half["code"]) == (40 << 10, OUT_OF_MEMORY)
    assert (quarter["total"], quarter["code"]) == (20 << 10, OUT_OF_MEMORY)
    assert (40 << 10) - 1024 < half["taken"] < (40 << 10)
    (gpu,) = node.truth()
    assert gpu["used_bytes"] <= 60 * GIB and len(gpu["processes"]) == 2
    total_mib = gpu["memory_bytes"] >> 20
    wait_shown(Shell(plane, programs, tmp_path), [("shared", total_mib - half["total"] - quarter["total"], 2, "Healthy")], node.log)
    spec = pods.get("half")["spec"]
    assert "resourceClaims" not in spec and spec["schedulerName"] == "cantle-scheduler"

    pods.ask("third", "0.500")
    wait_until(lambda: "needs 0.5 GPU" in pods.why("third"), 60, lambda: pods.get("third")["status"])
    # No pod bypasses the scheduler: a pod that it has not placed has no slice.
    pods.ask("smuggled", "0.125", node=node.node)
    wait_until(lambda: "cantle's scheduler has not placed it" in pods.waits_for("smuggled"), 60, lambda: pods.get("smuggled")["status"])
    pods.delete("smuggled")
    assert len(node.leases()) == 2
    pods.delete("half")
    assert pods.said("third")["total"] == 40 << 10
    pods.wait_gone("half")
    assert len(node.leases()) == 2
    assert not plane.api.items(f"{RESOURCE}/resourceclaims")
    pods.delete("third")
    pods.delete("quarter")
    wait_until(lambda: not node.leases() and not node.placements(), 60, node.log)


@pytest.mark.classic("A pod in a user namespace (`hostUsers: false`), held by the limit")
def test_a_pod_in_a_user_namespace(pods, on_worker, programs):
    user_namespaces.need_runtime(programs)
    node = on_worker("1xA100-80GB")
    pods.ask("half", "0.500", ("python3", "-c", user_namespaces.MAPPED_FILL), **user_namespaces.SPEC)
    held(pods.said("half"), 40 << 10)
    assert node.truth()[0]["used_bytes"] <= 40 * GIB


@pytest.mark.classic("The kubelet restarts")
def test_a_kubelet_that_restarts_loses_nothing(pods, on_worker, worker):
    node = on_worker("1xA100-80GB")
    pods.ask("half", "0.500")
    assert pods.said("half")["total"] == 40 << 10
    before = pods.get("half")["status"]["containerStatuses"][0]["containerID"]
    (lease,) = node.leases()
    worker.restart_kubelet()
    node.wait_registered(2)
    pods.ask("quarter", "0.250")
    assert pods.said("quarter")["total"] == 20 << 10
    status = pods.get("half")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (before, 0)
    assert lease in node.leases() and len(node.leases()) == 2


@pytest.mark.classic("The API server does not answer")
def test_nothing_is_lost_while_the_api_server_is_away(pods, on_worker, plane):
    nothing_is_lost(pods, on_worker("1xA100-80GB"), plane)


@pytest.mark.since("1.36.0", "does not report the health of slots")
@pytest.mark.classic("A GPU is lost")
def test_a_lost_gpu_is_told_and_leaves_the_other(plane, pods, on_worker, programs, tmp_path):
    node, shell = on_worker("2xA100-80GB", "--gpu-objects"), Shell(plane, programs, tmp_path)
    lost_and_found(pods, node, lambda: [row["HEALTH"] for row in rows(shell)] == ["Lost", "Healthy"])


@pytest.mark.classic("Two nodes with different GPUs")
def test_each_node_gives_what_it_has(second_worker, pods, on_worker):
    gives_what_it_has(pods, on_worker("1xA100-80GB"), on_worker("1xA100-80GB", on=second_worker))


@pytest.fixture
def team(system, pods, on_worker, namespace):
    class ClassicTeam(Team):
        def is_refused(self, name, why):
            return why in pods.why(name)

    on_worker("4xA100-40GB")
    return ClassicTeam(pods.api, namespace, system.extender.program.log)


@pytest.mark.classic("A quota of the namespace on `requests.nvidia.com/gpu` counts slices")
def test_a_quota_of_gpus_counts_slices_that_have_a_place(team, cantle):
    slices_are_counted(team, cantle)


def test_two_kinds_of_counts_add_up_on_the_classic_path(team):
    counts_add_up(team)


@pytest.mark.classic("Kueue counts a Job's slices and holds it back")
def test_kueue_counts_eighths(plane, kueue, on_worker, namespace):
    on_worker("1xA100-40GB")
    counts_eighths(Jobs(plane.api, namespace))


@pytest.mark.classic("Metrics of each pod")
def test_use_limit_and_refusals_of_each_pod(pods, on_worker, namespace):
    (port,) = free_ports(1)
    each_pod_is_measured(pods, namespace, on_worker("1xA100-80GB", "--observe-listen", f"127.0.0.1:{port}"), port)


def test_a_pod_that_is_deleted_before_its_start_leaves_its_place_at_once(plane, pods, on_worker):
    node = on_worker("1xA100-80GB")
    never = pod({LABEL: "1.000"}, name="never")
    never["spec"]["containers"][0]["image"] = "localhost/nowhere:1"
    plane.api.create(pods.path, never)
    wait_until(lambda: "nowhere" in pods.waits_for("never"), 60, lambda: pods.get("never")["status"])
    assert len(node.placements()) == 1 and not node.leases()
    pods.delete("never")
    wait_until(lambda: not node.placements(), 30, node.log)


def test_a_plugin_killed_between_allocate_and_start(pods, on_worker, worker):
    node = on_worker("1xA100-80GB")
    # The plugin's call to the kubelet then has no answer, so it stays between the two steps.
    socket = worker.machine.path(KUBELET_DIR / "pod-resources/kubelet.sock")
    away = socket.with_name("away.sock")
    socket.rename(away)
    try:
        pods.ask("half", "0.500")
        wait_until(lambda: "no slice" in node.log(), 60, node.log)
        node.program.kill()
    finally:
        away.rename(socket)
    assert not node.leases() and len(node.placements()) == 1
    assert not node.truth()[0]["processes"], "it has not started"
    node.start()
    half = pods.said("half")
    assert (half["total"], half["code"]) == (40 << 10, OUT_OF_MEMORY)
    assert len(node.leases()) == 1


@pytest.mark.classic("The node driver is killed while it makes an instance")
def test_a_plugin_killed_while_it_makes_an_instance(pods, on_worker):
    node = on_worker("1xA100-40GB:mig")
    # Between the GPU instance and its compute instance, when the lease does not name it yet.
    node.faults("nvmlGpuInstanceCreateComputeInstance delay_ms=60000 once\n")
    pods.ask("instance", limits={"nvidia.com/mig-3g.20gb": "1"}, command=["sleep", "600"])
    wait_until(lambda: node.truth()[0]["mig"], 60, node.log)
    node.program.kill()
    node.faults("")
    assert len(node.leases()) == 1
    node.start()
    pods.wait_running("instance")
    assert len(node.truth()[0]["mig"]) == 1 and len(node.leases()) == 1


def test_two_extenders_at_once_give_different_room(plane, start, hand_made, namespace, tmp_path):
    node = start(hand_made, "2xA100-40GB")
    extenders = [Extender(plane, tmp_path, name=f"extender-{at}") for at in range(2)]
    pods = ClassicPods(plane.api, namespace)
    asked = [pods.ask(f"p{at}", annotations={"gpu-fraction": "0.375"}) for at in range(8)]
    try:
        for each in extenders:
            each.start()
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            errors = list(threads.map(lambda at: extenders[at % 2].bind(asked[at], hand_made), range(8)))
    finally:
        for each in extenders:
            each.program.stop()
    assert errors.count("") == 4 and all("needs 0.375 GPU" in error for error in errors if error), errors
    by_gpu = [slice["gpu"] for placement in node.placements().values() for slice in placement["slices"]]
    assert sorted(by_gpu.count(gpu) for gpu in set(by_gpu)) == [2, 2]


@pytest.mark.classic("GPUs of another size are added while a pod waits")
def test_a_pod_that_waits_gets_a_gpu_that_comes(plane, start, hand_made, namespace):
    node, pods, later = start(hand_made, "1xA100-40GB"), ClassicPods(plane.api, namespace), "hand-joins"
    place = lambda name: pods.get(name)["spec"].get("nodeName")
    given = lambda node, pod: [each["slices"][0]["memory_limit_bytes"] for each in node.placements().values() if each["pod"] == f"{namespace}/{pod}"]
    give_slots(plane.api, hand_made)
    pods.ask("first", "0.875")
    wait_until(lambda: place("first") == hand_made, 60, lambda: pods.get("first")["status"])
    pods.ask("waits", "0.875")
    wait_until(lambda: "needs 0.875 GPU, free 0.125" in pods.why("waits"), 60, lambda: pods.get("waits")["status"])
    plane.api.create("/api/v1/nodes", node_object(later))
    try:
        joined = start(later, "2xA100-80GB")
        give_slots(plane.api, later)
        wait_until(lambda: place("waits") == later, 60, lambda: pods.get("waits")["status"])
        # A fraction is of the GPU that the pod gets.
        assert (given(node, "first"), given(joined, "waits")) == ([35 * GIB], [70 * GIB])
        assert place("first") == hand_made
    finally:
        plane.api.delete(f"/api/v1/nodes/{later}")


@pytest.fixture
def packed_nodes(plane, hand_made, start):
    """As those of the DRA path; each GPU of the cluster is another one."""
    gpus = start(hand_made, f"{test_packing.GPUS}xA100-40GB").slices()

    def offer(name):
        plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {GPUS: gpus.replace("GPU-", f"GPU-{name}-")}}})
        give_slots(plane.api, name)
        return []

    with test_packing.nodes_as(plane, hand_made, offer) as names:
        yield names


@pytest.mark.classic("GPUs are filled before others are started")
def test_pods_fill_gpus_before_others_are_begun(plane, packed_nodes, namespace, system):
    def placed(count):
        used = test_packing.nodes_of(plane, namespace, count, system.extender.program.log)
        given = [(name, slice["gpu"]) for name in packed_nodes for each in placements(plane.api, name).values() for slice in each["slices"]]
        return used, collections.Counter(given)

    owners = test_packing.start_all(plane, namespace)
    test_packing.check_packed(packed_nodes, *placed(test_packing.PODS))
    test_packing.remove(plane, namespace, *owners)
    # No device plugin runs there, which would do this.
    for name in packed_nodes:
        plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {PLACEMENTS: None}}})
    with system.without_preference():
        test_packing.by_hand(plane, namespace, 64)
        test_packing.check_spread(*placed(64))
    test_packing.remove(plane, namespace)


def test_instances_of_a_gpu_in_mig_mode(pods, on_worker):
    node = on_worker("1xA100-40GB:mig")
    pods.ask("named", annotations={"mig-profile": "3g.20gb"}, command=["sleep", "600"])
    pods.ask("fraction", "0.500", command=["sleep", "600"])
    pods.wait_running("named")
    pods.wait_running("fraction")
    assert sorted((each["profile"], each["start"]) for each in node.truth()[0]["mig"]) == [("3g.20gb", 0), ("3g.20gb", 4)]
    pods.ask("third", "0.125")
    wait_until(lambda: "needs" in pods.why("third"), 60, lambda: pods.get("third")["status"])
    pods.delete("named")
    pods.wait_running("third")


@pytest.mark.classic("A MIG instance by `nvidia.com/mig-…`", "MIG mode by the label of the node")
def test_the_documented_pod_gets_its_instance(pods, on_worker, mig_worker):
    node = on_worker("1xA100-40GB:mig")
    said = pods.fill(MIG)
    (instance,) = node.truth()[0]["mig"]
    assert instance["profile"] == "3g.20gb"
    (offered,) = json.loads(node.slices())
    (memory,) = [each["memory_bytes"] for each in offered["table"]["profiles"] if each["name"] == "3g.20gb"]
    held(said, memory >> 20)
    (container,) = pods.get("tf-benchmarks-mixed")["spec"]["containers"]
    assert container["resources"]["limits"] == {"cantle.dev/slice": "1"}


@pytest.mark.classic("Shares and instances come and go on one GPU")
def test_gpus_change_between_shares_and_instances(pods, on_worker, label):
    node = on_worker("2xH100-80GB")

    def running(name):
        check_node(node)
        return pods.get(name)["status"]["phase"] == "Running"

    def starts(name):
        wait_until(lambda: running(name), 180, lambda: (pods.get(name)["status"], node.log()))

    pods.ask("stays", "0.500")
    starts("stays")
    first = pods.said("stays")
    # From now on the other GPU serves instances.
    label(**PARTITIONED)
    pods.ask("small", limits={"nvidia.com/mig-1g.10gb": "1"}, command=["sleep", "600"])
    pods.ask("large", limits={"nvidia.com/mig-3g.40gb": "1"}, command=["sleep", "600"])
    starts("small")
    starts("large")
    # No share comes to instances, and no instance to a share.
    pods.ask("share", "0.625")
    pods.ask("all", limits={"nvidia.com/mig-7g.80gb": "1"}, command=["sleep", "600"])
    wait_until(lambda: "needs 0.625 GPU, free 0.5 of GPU" in pods.why("share"), 60, lambda: pods.get("share")["status"])
    wait_until(lambda: "7g.80gb" in pods.why("all"), 60, lambda: pods.get("all")["status"])
    pods.delete("all")
    pods.delete("small")
    pods.delete("large")
    starts("share")
    # Each of both is rounded down to 2 MiB.
    assert abs(pods.said("share")["total"] - first["total"] * 5 / 4) <= 2
    assert not any(gpu["mig"] for gpu in node.truth()), "its instances made way"
    pods.delete("share")
    pods.ask("again", limits={"nvidia.com/mig-3g.40gb": "1"}, command=["sleep", "600"])
    starts("again")
    # Neither a pod nor the plugin was restarted.
    status = pods.get("stays")["status"]["containerStatuses"][0]
    assert status["restartCount"] == 0 and node.registrations() == 1
    by_pod = {each["pod"].split("/")[1]: each["slices"][0]["gpu"] for each in node.placements().values()}
    (gpu,) = [gpu for gpu in node.truth() if gpu["uuid"] == by_pod["stays"]]
    assert len(gpu["processes"]) == 1 and gpu["used_bytes"] > 38 * GIB and not gpu["mig"]


@pytest.mark.classic("An image with musl and without glibc (Alpine) is refused at its start, with the reason")
def test_an_image_of_musl_is_refused_with_the_reason(plane, system, worker, make_node, namespace, tmp_path):
    musl.load_image(worker, tmp_path)
    node = make_node(own_libcuda.CoveringClassicNode, worker.name, worker.with_gpus("1xA100-40GB"))
    node.wait_registered()
    musl.refused_with_the_reason(ClassicPods(plane.api, namespace))


@pytest.fixture
def with_old_driver(system, worker, folder, make_node, plane, namespace):
    """A node whose driver is older than an image with its own libcuda, and its pods."""

    def with_old_driver(kind):
        node = make_node(kind, worker.name, own_libcuda.machine(worker, folder))
        node.wait_registered()
        return ClassicPods(plane.api, namespace), node

    return with_old_driver


@pytest.mark.classic("An image with a newer libcuda of its own: the limit holds, and that libcuda is used")
def test_an_image_with_its_own_libcuda(with_old_driver):
    own_libcuda.held_with_its_own_libcuda(*with_old_driver(own_libcuda.CoveringClassicNode))


@pytest.mark.classic("Such an image on a node that cannot run cantle's program: the watchdog kills")
def test_a_node_that_covers_no_image(with_old_driver):
    own_libcuda.killed_past_its_slice(*with_old_driver(ClassicNode))


@pytest.mark.classic("A share of compute time by annotation: weighed, lent while unused, capped, and never promised twice")
def test_shares_of_compute_hold(pods, on_worker):
    shares.shares_hold(pods, on_worker("1xA100-40GB"))
