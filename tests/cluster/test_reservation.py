"""Slices next to NVIDIA's device plugin: it allocates no GPU that has slices, and cantle uses no GPU that it has allocated."""

import signal

import pytest

from api import ApiError, pod
from classic import RESERVATIONS, ClassicNode, ClassicPods, running
from image import IMAGES
from nvidia import NvidiaPlugin
from processes import wait_until
from test_pods import OUT_OF_MEMORY, Pods
from test_queues_quota import GLUE, TIDY, Projects, stop, wait_held, wait_running, wait_states

VALUES = {"path": "classic", "reservation": {"enabled": True}}
SLEEP = ["sleep", "600"]
GIB = 1 << 30


@pytest.fixture(scope="module")
def system(plane, worker, programs, tmp_path_factory):
    """Injector and scheduler."""
    if not (programs / "nvidia-device-plugin").exists():
        pytest.skip("NVIDIA's device plugin could not be built (tests/cluster/assets/build.sh)")
    folder = tmp_path_factory.mktemp("reservation")
    with running(plane, folder, VALUES, "--reservation-image", IMAGES["test"]) as scheduler:
        yield scheduler


@pytest.fixture
def on_worker(system, worker, programs, make_node, tmp_path):
    """Starts both device plugins of the worker node."""
    started = []

    def on_worker(gpus, replicas=None, **sharing):
        machine = worker.with_gpus(gpus)
        plugin = NvidiaPlugin(programs / "nvidia-device-plugin", tmp_path, machine, replicas, **sharing)
        started.append(plugin.program.start())
        # What the node says may be of the plugin of an earlier test: a pod that comes too early fails for good.
        wait_until(lambda: "Registered device plugin for 'nvidia.com/gpu'" in plugin.program.log(), 60, plugin.program.log)
        node = make_node(ClassicNode, worker.name, machine, "--reservation")
        node.wait_registered()
        count = int(gpus.split("x")[0]) * (replicas or 1)
        node.wait_allocatable("nvidia.com/gpu", str(count))
        return node

    yield on_worker
    for program in started:
        program.stop()


class Reservations(Pods):
    """The pods that reserve GPUs."""

    def __init__(self, api):
        super().__init__(api, RESERVATIONS)

    def list(self):
        return self.api.items(self.path)

    def wait_running_on(self, gpus):
        phases = lambda: [pod["status"]["phase"] for pod in self.list()]
        wait_until(lambda: phases() == ["Running"] * gpus, 180, phases)

    def wait_none(self, node):
        left = lambda: [self.list(), node.reservations(), node.placements(), node.leases()]
        wait_until(lambda: not any(left()), 240, lambda: f"{left()}\n{node.log()}")


@pytest.fixture
def reservations(plane):
    return Reservations(plane.api)


@pytest.fixture
def pods(on_worker, plane, namespace):
    """Pods of a namespace; they end before the plugins do."""
    return ClassicPods(plane.api, namespace)


class Foreign(Pods):
    """Pods that ask NVIDIA's device plugin for whole GPUs, as cantle was not there."""

    def ask(self, name):
        self.api.create(self.path, pod(name, SLEEP, limits={"nvidia.com/gpu": "1"}))

    def take(self, name, node):
        """A GPU, or a replica of one. The node reports the holders of its GPUs every two seconds; a pod that asks before waits."""
        self.ask(name)
        self.wait_running(name)
        wait_until(lambda: any(gpu["holder"] != "nobody" for gpu in node.gpus()), 60, node.gpus)

    def wait_short(self, name):
        wait_until(lambda: "Insufficient nvidia.com/gpu" in self.why(name), 60, lambda: self.get(name)["status"])


@pytest.fixture
def foreign(pods):
    return Foreign(pods.api, pods.path.split("/")[-2])


@pytest.mark.classic("NVIDIA's device plugin assigns other GPUs of the node")
def test_fifty_pods_at_once_have_one_reservation_for_each_gpu(pods, foreign, reservations, on_worker):
    node = on_worker("4xA100-40GB")
    names = [f"p{at}" for at in range(50)]
    for name in names:
        pods.ask(name, "0.0625", **({} if name == "p0" else {"command": SLEEP}))
    wait_until(lambda: len(node.placements()) == 50, 400, lambda: f"{len(node.placements())} placed\n{node.log()[-2000:]}")
    assert len(reservations.list()) == 4
    reserving = {f"{RESERVATIONS}/{pod['metadata']['name']}" for pod in reservations.list()}
    assert {gpu["holder"]["pod"] for gpu in node.gpus()} == reserving
    foreign.ask("foreign")
    foreign.wait_short("foreign")
    first = pods.said("p0")
    assert first["total"] == 40 * 1024 // 16 and first["code"] == OUT_OF_MEMORY
    assert sum(gpu["used_bytes"] for gpu in node.truth()) <= first["total"] << 20
    assert not foreign.get("foreign")["spec"].get("nodeName") and len(reservations.list()) == 4
    for name in names:
        pods.delete(name)
    foreign.wait_running("foreign")
    reservations.wait_none(node)
    wait_until(lambda: sum(gpu["holder"] != "nobody" for gpu in node.gpus()) == 1, 60, node.gpus)


def test_a_gpu_is_either_cantles_or_another_pods(pods, foreign, reservations, on_worker):
    node = on_worker("1xA100-40GB")
    foreign.take("first", node)
    pods.ask("half", "0.500")
    wait_until(lambda: "GPU 0 is another pod's nvidia.com/gpu" in pods.why("half"), 60, lambda: pods.get("half")["status"])
    assert not reservations.list()
    foreign.delete("first")
    half = pods.said("half")
    assert (half["total"], half["code"]) == (20 << 10, OUT_OF_MEMORY)

    # The reservation is never evicted; if it is deleted, it comes back.
    reservations.wait_running_on(1)
    (before,) = reservations.list()
    name = before["metadata"]["name"]
    with pytest.raises(ApiError, match="disruption budget"):
        reservations.api.create(f"{reservations.path}/{name}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}})
    reservations.delete(name)
    renewed = lambda: [pod["metadata"]["uid"] for pod in reservations.list()] not in ([], [before["metadata"]["uid"]])
    wait_until(renewed, 60, reservations.list)
    reservations.wait_running_on(1)
    foreign.ask("second")
    foreign.wait_short("second")
    pods.ask("quarter", "0.250", command=SLEEP)
    pods.wait_running("quarter")
    (container,) = pods.get("half")["status"]["containerStatuses"]
    assert container["restartCount"] == 0 and len(node.leases()) == 2
    (gpu,) = node.truth()
    assert len(gpu["processes"]) == 1 and gpu["used_bytes"] <= 20 * GIB
    pods.delete("half")
    pods.delete("quarter")
    foreign.wait_running("second")
    reservations.wait_none(node)


def test_an_extender_killed_while_a_gpu_is_being_reserved(plane, system, pods, reservations, on_worker):
    node = on_worker("1xA100-40GB")
    # While the cluster's own scheduler is stopped, the reservation waits.
    (scheduler,) = [each for each in plane.others if each.name == "kube-scheduler"]
    scheduler.child.send_signal(signal.SIGSTOP)
    try:
        pods.ask("half", "0.500")
        wait_until(reservations.list, 60, system.extender.program.log)
        system.extender.program.kill()
    finally:
        scheduler.child.send_signal(signal.SIGCONT)
    assert not node.placements() and len(node.reservations()) == 1
    system.extender.program.start()
    half = pods.said("half")
    assert (half["total"], half["code"]) == (20 << 10, OUT_OF_MEMORY)
    assert len(reservations.list()) == 1
    pods.delete("half")
    reservations.wait_none(node)


@pytest.mark.classic("Tasks of queues get their share", "Quotas of projects lend and take back")
def test_quotas_lend_and_take_back_what_is_reserved(on_worker, make_queues, server, foreign, reservations):
    node = on_worker("3xA100-80GB")
    foreign.take("other", node)
    queues = make_queues(GLUE)
    projects = Projects(server, a={"gpu": 1}, b={"gpu": 1})
    lent = [projects.submit("a", "half", "sh", "-c", TIDY) for _ in range(4)]
    more = projects.submit("a", "half", "sh", "-c", TIDY)
    wait_running(server, lent, queues)
    assert len(reservations.list()) == 2
    wait_held(projects, a=2000)
    wait_until(lambda: "waiting: " in server.message(more), 60, lambda: server.message(more))
    assert queues.pod_of(more) is None, "the other pod's GPU is no room"

    owner = projects.submit("b", "whole", "sleep", "600")
    wait_running(server, [owner], queues)
    wait_states(server, lent, ["in_progress"] * 2 + ["queued"] * 2, queues)
    wait_held(projects, a=1000, b=1000)
    assert foreign.get("other")["status"]["phase"] == "Running" and len(reservations.list()) == 2
    stop(server, queues, [*lent, more, owner])
    reservations.wait_none(node)


def test_time_sliced_gpus_are_reserved_all_at_once(pods, foreign, reservations, on_worker):
    node = on_worker("2xA100-40GB", replicas=4)
    foreign.take("first", node)
    pods.ask("half", "0.500")
    wait_until(lambda: "cantle can have all 8 replicas or none" in pods.why("half"), 60, lambda: pods.get("half")["status"])
    assert not reservations.list(), "none waits for what it can't get"

    foreign.delete("first")
    half = pods.said("half")
    assert (half["total"], half["code"]) == (20 << 10, OUT_OF_MEMORY)
    pods.ask("whole", "1.000", command=SLEEP)
    pods.wait_running("whole")
    (reserving,) = reservations.list()
    assert reserving["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    foreign.ask("second")
    foreign.wait_short("second")
    pods.delete("half")
    wait_until(lambda: len(node.leases()) == 1, 60, node.leases)
    assert len(reservations.list()) == 1, "the other GPU has a slice"
    pods.delete("whole")
    foreign.wait_running("second")
    reservations.wait_none(node)


def test_a_plugin_that_gives_single_replicas_only_says_so(pods, on_worker):
    on_worker("1xA100-40GB", replicas=2, failRequestsGreaterThanOne=True)
    pods.ask("half", "0.500", command=SLEEP)
    wait_until(lambda: "maximum request size for shared resources is 1" in pods.why("half"), 60, lambda: pods.get("half")["status"])
