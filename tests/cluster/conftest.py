"""A real cluster for the whole session: its control plane, and a worker node where this machine allows one."""

import fcntl
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import built
import chart
import image
from api import PARTITIONED, RESOURCE, claim_template, node
from control_plane import OWN_NODE, ControlPlane
from driver import Driver
from injector import Injector, end_pods
from processes import wait_until
from queues import Queues, Server
from worker import KUBELET_DIR, RUNTIME, Worker
from worker_machine import Machine

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A directory that the runs of two clusters share: the run that takes a file of tests makes a directory for it there (run.sh).
TAKEN = os.environ.get("CANTLE_TEST_TAKEN")
OURS = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    name = item.path.stem
    if TAKEN and name not in OURS:
        try:
            os.mkdir(pathlib.Path(TAKEN) / name)
        except FileExistsError:
            return True
        OURS.add(name)
    return None


@pytest.fixture(autouse=True)
def known_to_this_version(request):
    """Tests of what an older Kubernetes cannot do, by the documentation, are skipped there."""
    since = request.node.get_closest_marker("since")
    if since:
        version = request.getfixturevalue("plane").api.get("/version")["gitVersion"]
        numbers = lambda text: [int(each) for each in text.lstrip("v").split("+")[0].split("-")[0].split(".")]
        needed, why = since.args
        if numbers(version) < numbers(needed):
            pytest.skip(f"Kubernetes {version} {why}")


@pytest.fixture(scope="session")
def programs():
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("no Kubernetes programs; run tests/cluster/run.sh")
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def folder():
    # Short: the kubelet's sockets are below it, and the name of a socket has 107 characters at most.
    made = pathlib.Path(tempfile.mkdtemp(prefix="k8s"))
    # As /var/lib/containerd: root of a user namespace reaches the root directory of its container.
    made.chmod(0o711)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def plane(programs, folder):
    yield from run_plane(ControlPlane(folder, programs))


def run_plane(plane):
    """Until the end of its tests, with what stays of the chart."""
    try:
        plane.start()
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": chart.NAMESPACE}})
        chart.create(plane.api, chart.standing())
        yield plane
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def worker(programs, folder, plane):
    yield from run_worker(programs, folder, plane)


@pytest.fixture
def second_worker(programs, folder, plane, worker):
    """Another node, on a machine of its own."""
    made = folder / "second"
    made.mkdir()
    yield from run_worker(programs, made, plane, name="second")
    plane.api.delete("/api/v1/nodes/second")
    shutil.rmtree(made, ignore_errors=True)


def run_worker(programs, folder, plane, **which):
    missing = RUNTIME.missing(programs)
    if not OWN_NODE or missing or not shutil.which("runc"):
        pytest.skip("a kubelet with real pods needs root, namespaces, ip, runc and a container runtime" + (f"; missing: {', '.join(missing)}" if missing else ""))
    archive = folder / "images.tar"
    rootfs = subprocess.run([ROOT / "tests/rootfs.sh"], check=True, capture_output=True, text=True).stdout.strip()
    image.archive(pathlib.Path(rootfs), archive)
    worker = Worker(folder, programs, plane, **which)
    try:
        worker.start(archive)
        archive.unlink()
        # Its runtime gives the driver to every container, and starts none where there is no driver.
        worker.with_gpus("1xA100-40GB")
        yield worker
    finally:
        worker.stop()


@pytest.fixture(scope="session")
def built_images(worker, folder):
    """Images as users build them; see built.py."""
    archive = pathlib.Path(TAKEN or folder) / "built.tar"
    with open(archive.with_suffix(".lock"), "w") as lock:
        # The other cluster's run may be about to build them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            built.build(folder, archive)
    worker.runtime.load(archive)
    # In place of the registry that the pages name.
    worker.runtime.tag(f"docker.io/{built.CANTLE}", "registry.example/cantle:0.1.0")
    if not TAKEN:
        archive.unlink()


@pytest.fixture(scope="session")
def scheduler_image(worker, plane, programs, folder):
    """Kubernetes' own, under the name that it has in the chart."""
    archive = folder / "scheduler.tar"
    version = plane.api.get("/version")["gitVersion"]
    image.program(programs / "kube-scheduler", archive, f"registry.k8s.io/kube-scheduler:{version}")
    worker.runtime.load(archive)
    archive.unlink()


@pytest.fixture
def label(plane, worker):
    """Puts labels on the worker's node, until the end of the test."""
    node, labels = f"/api/v1/nodes/{worker.name}", {}

    def label(**wanted):
        labels.update(wanted)
        plane.api.merge(node, {"metadata": {"labels": wanted}})

    yield label
    plane.api.merge(node, {"metadata": {"labels": dict.fromkeys(labels)}})


@pytest.fixture
def mig_worker(worker, label):
    """The worker as ClearML documents it: its administrator has put the GPU into MIG mode and labeled the node."""
    label(**{"nvidia.com/gpu.product": "A100-SXM4-40GB", **PARTITIONED})
    return worker


@pytest.fixture
def namespace(plane, request, make_node):
    """A namespace of the test's own; all in it is gone at the end, before what runs on the nodes: without that the kubelet
    lets no pod go."""
    # Tests of two files may have the same name, and a namespace takes its time to go.
    of_file = f"{request.module.__name__}-{request.node.name}".replace("test_", "")
    name = re.sub("[^a-z0-9]+", "-", of_file.lower())[:60].strip("-")
    api = plane.api
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: api.find(account), 60, "a service account of the namespace")
    yield name
    wait_until(lambda: end_pods(api, name), 180, lambda: [(pod["metadata"], pod["status"]) for pod in api.items(f"/api/v1/namespaces/{name}/pods")])
    wait_until(lambda: not api.items(f"{RESOURCE}/namespaces/{name}/resourceclaims"), 120, "the end of all claims")
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def hand_made(plane, request):
    """A node without a kubelet, for decisions of the scheduler alone."""
    name = "hand-" + re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    plane.api.create("/api/v1/nodes", node(name))
    yield name
    plane.api.delete(f"/api/v1/nodes/{name}")
    slices = lambda: [s for s in plane.api.items(f"{RESOURCE}/resourceslices") if s["spec"].get("nodeName") == name]
    wait_until(lambda: not slices(), 120, "the end of the node's slices, which the node owns")


@pytest.fixture(scope="module")
def injector(plane, tmp_path_factory):
    """The injector next to the API server, for the tests of a file."""
    made = Injector(plane, tmp_path_factory.mktemp("injector"))
    yield made.start()
    made.remove()


@pytest.fixture
def make_node(plane, folder):
    """Starts what runs on a node, a Driver or a kind of it, on a worker's machine or on one that has these GPUs and nothing else;
    stopped at the end."""
    made, machines = [], []

    def make(kind, node_name, machine, *flags):
        home = pathlib.Path(tempfile.mkdtemp(prefix="d", dir=folder))
        kubelet_dir = KUBELET_DIR
        if isinstance(machine, str):
            if os.geteuid() != 0:
                pytest.skip("a machine with GPUs and a fresh /run needs root")
            machines.append(Machine(machine))
            machine, kubelet_dir = machines[-1], home / "kubelet"
        made.append(kind(plane, home, node_name, machine, flags, kubelet_dir))
        return made[-1].start()

    yield make
    for each in made:
        each.remove()
    for machine in machines:
        machine.stop()


@pytest.fixture
def make_driver(make_node):
    """Starts the DRA driver of a node."""
    return functools.partial(make_node, Driver)


@pytest.fixture
def start(worker, make_driver):
    """Starts the DRA driver of a node, usually the first; the kubelet knows it when this returns."""

    def start(gpus, *flags, on=worker):
        driver = make_driver(on.name, on.with_gpus(gpus), *flags)
        wait_until(lambda: "registered with the kubelet" in driver.log(), 60, driver.log)
        return driver

    return start


@pytest.fixture
def server(worker, tmp_path):
    """A ClearML server, ours."""
    server = Server(tmp_path)
    yield server
    server.close()


@pytest.fixture
def make_queues(plane, built_images, server, namespace):
    """Installs the controller that makes pods of the server's tasks."""
    made = []

    def make(glue, **options):
        made.append(Queues(plane, server, namespace, glue, **options))
        return made[-1]

    make.made = made
    yield make
    for each in made:
        # Shown if the test has failed.
        print(each.log())
        each.remove()


@pytest.fixture
def templates(plane, namespace):
    """Claim templates by short names: half, quarter, whole of an 80 GB GPU."""
    path = f"{RESOURCE}/namespaces/{namespace}/resourceclaimtemplates"
    for template in [
        claim_template("half", "shared.gpu.cantle.dev", "40Gi"),
        claim_template("quarter", "shared.gpu.cantle.dev", "20Gi"),
        claim_template("whole", "whole.gpu.cantle.dev"),
    ]:
        plane.api.create(path, template)
