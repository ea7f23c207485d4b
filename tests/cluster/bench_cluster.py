"""Measures the overhead of cantle in a cluster: `tests/cluster/run.sh -s -o python_files=bench_cluster.py`. Each is compared with the same thing without cantle."""

import concurrent.futures
import contextlib
import copy
import os
import pathlib
import statistics
import time

import pytest

from api import RESOURCE, claim_template, node
from injector import pod
from processes import wait_until

FRACTION = {"clearml-injector/fraction": "0.500"}
PAIRS = int(os.environ.get("CANTLE_BENCH_PAIRS", "20"))
START_MAX_MS = 300
PODS = int(os.environ.get("CANTLE_BENCH_PODS", "1000"))
# A pod with a claim template takes two calls of the controller manager and three of the scheduler, which make 20 and 50 per second
# where nobody says otherwise. Where the injector creates the claim, the scheduler makes two calls.
LIMITS = {"default limits": [], "no limits": ["--kube-api-qps=5000", "--kube-api-burst=5000"]}
CALLS = "apiserver_admission_webhook_admission_duration_seconds"


def test_start_of_a_pod(plane, injector, start, namespace):
    """From the call that creates a pod to the first word of its program, with a slice and without, by turns."""
    start("1xA100-40GB")
    path = f"/api/v1/namespaces/{namespace}/pods"

    def start_ms(name, labels):
        thing = pod(labels, name=name)
        thing["spec"]["containers"][0]["command"] = ["sh", "-c", "date +%s%N; exec sleep 600"]
        thing["spec"]["terminationGracePeriodSeconds"] = 1
        began = time.time_ns()
        plane.api.create(path, thing)
        running = lambda: plane.api.get(f"{path}/{name}")["status"]["phase"] == "Running"
        wait_until(running, 60, lambda: plane.api.get(f"{path}/{name}")["status"])
        said = wait_until(lambda: plane.api.get(f"{path}/{name}/log"), 60, "its first word")
        plane.api.delete(f"{path}/{name}", 1)
        wait_until(lambda: plane.api.find(f"{path}/{name}") is None, 60, "its end")
        return (int(str(said)) - began) / 1e6

    start_ms("first", FRACTION)
    pairs = [(start_ms(f"with-{at}", FRACTION), start_ms(f"without-{at}", {})) for at in range(PAIRS)]
    extra = statistics.median(one - other for one, other in pairs)
    with_ms, without_ms = (statistics.median(side) for side in zip(*pairs))
    print(f"\nstart of a pod: {with_ms:.0f} ms with a slice, {without_ms:.0f} ms without; median of {PAIRS} differences {extra:.0f} ms")
    assert extra <= START_MAX_MS


# GPUs that serve MIG instances cost it the square of the nodes, up to 1.36 (docs/kubernetes.md).
@pytest.mark.parametrize(("gpus", "nodes", "pods"), [("8xA100-80GB", 100, PODS), ("8xH100-80GB:mig", 10, PODS // 10)])
def test_a_thousand_pods_on_a_hundred_nodes(plane, injector, hand_made, make_driver, namespace, gpus, nodes, pods):
    """The speed at which the stock scheduler places shares, and the injector's time for each pod."""
    api, driver, made = plane.api, make_driver(hand_made, gpus), []
    slices = wait_until(driver.published, 60, driver.log)
    try:
        for at in range(nodes):
            name = f"bench-{at}"
            api.create("/api/v1/nodes", node(name))
            made.append(f"/api/v1/nodes/{name}")
            for slice in slices:
                made.append(clone(api, slice, name))
        views = {
            "in the injector": lambda: histogram(injector.observe("/metrics"), "cantle_webhook_seconds"),
            "as the API server sees it": lambda: histogram(api.get("/metrics"), CALLS, 'name="fraction.injector.cantle.dev"'),
        }
        before = {view: read() for view, read in views.items()}
        for name, flags in LIMITS.items():
            with calls_per_second(plane, flags):
                for what, labels in {"with half a GPU": FRACTION, "without": {}}.items():
                    rate, scheduled = create_and_schedule(api, namespace, pod(labels), pods)
                    print(f"\n{pods} pods {what}, {nodes} nodes of {gpus}, {name}: {rate:.0f} created/s, {scheduled:.0f} scheduled/s")
        for view, read in views.items():
            median, most = (quantile_ms(before[view], read(), part) for part in (0.5, 0.99))
            print(f"a call of the injector, {view}: half take at most {median:g} ms, 99 % at most {most:g} ms")
    finally:
        for path in made:
            api.delete(path)


SIZES = ["T4-16GB", "L4-24GB", "V100-32GB", "A100-40GB", "L40S-48GB", "A100-80GB", "H100-80GB", "H200-141GB"]


@pytest.fixture
def standby(injector):
    """The second of the chart's two replicas: it leads once the first one ends, and knows as much. Nobody calls it here."""
    program = injector.replica("standby")
    program.start()
    yield program
    program.stop()


def test_shares_in_a_cluster_of_eight_sizes(plane, injector, standby, make_driver, namespace):
    """The same where GPUs differ: a fraction is another amount of memory on each. The floor is what Kubernetes itself needs for a pod with
    a claim: one amount, no injector, no gate."""
    api, made = plane.api, []
    api.create(f"{RESOURCE}/namespaces/{namespace}/resourceclaimtemplates", claim_template("own", "shared.gpu.cantle.dev", "5Gi"))
    own = pod()
    own["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "own"}]
    own["spec"]["containers"][0]["resources"] = {"claims": [{"name": "own"}]}
    kinds = {"with an eighth of a GPU": pod({"clearml-injector/fraction": "0.125"}), "with a claim template": own, "without": pod()}
    try:
        for size in SIZES:
            name = f"size-{size.lower()}"
            api.create("/api/v1/nodes", node(name))
            made.append(f"/api/v1/nodes/{name}")
            driver = make_driver(name, f"8x{size}")
            slices = wait_until(driver.published, 60, driver.log)
            for at in range(100 // len(SIZES)):
                api.create("/api/v1/nodes", node(f"{name}-{at}"))
                made += [f"/api/v1/nodes/{name}-{at}", *(clone(api, slice, f"{name}-{at}") for slice in slices)]
        for name, flags in LIMITS.items():
            with calls_per_second(plane, flags):
                spent_ms(plane, injector.program, standby)
                for what, thing in kinds.items():
                    rate, scheduled = create_and_schedule(api, namespace, thing, PODS)
                    cpu = ", ".join(f"{program} {ms / PODS:.1f}" for program, ms in spent_ms(plane, injector.program, standby).items())
                    print(f"\n{PODS} pods {what}, eight sizes, {name}: {rate:.0f} created/s, {scheduled:.0f} scheduled/s; ms of CPU per pod: {cpu}")
    finally:
        for path in made:
            api.delete(path)


def spent_ms(plane, *replicas):
    """CPU time since this was last asked, by program."""
    spent = {}
    for program in [*plane.others, plane.server, plane.etcd, *replicas]:
        fields = pathlib.Path(f"/proc/{program.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        total = (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")
        spent[program.name] = total - SPENT.get(program.child.pid, 0)
        SPENT[program.child.pid] = total
    return spent


SPENT = {}


@contextlib.contextmanager
def calls_per_second(plane, flags):
    """Controller manager and scheduler with these limits of their calls."""
    plain = [program.argv for program in plane.others]
    try:
        for program in plane.others:
            program.stop()
            program.argv = [*program.argv, *flags]
            program.start()
        yield
    finally:
        for program, argv in zip(plane.others, plain):
            program.stop()
            program.argv = argv
            program.start()


def clone(api, slice, name):
    """A slice of one node as that of another."""
    thing = copy.deepcopy(slice)
    thing["metadata"] = {"name": slice["metadata"]["name"].replace(slice["spec"]["nodeName"], name)}
    thing["spec"]["nodeName"] = thing["spec"]["pool"]["name"] = name
    api.create(f"{RESOURCE}/resourceslices", thing)
    return f"{RESOURCE}/resourceslices/{thing['metadata']['name']}"


def create_and_schedule(api, namespace, thing, pods):
    """Pods created and placed per second; they are gone when it returns."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: api.create(path, {**thing, "metadata": {**thing["metadata"], "name": f"p{at}"}}), range(pods)))
    created_s = time.monotonic() - began
    # One pod at most, so that to ask costs the API server little.
    waiting = f"{path}?fieldSelector=spec.nodeName%3D&limit=1"
    wait_until(lambda: not api.items(waiting), 600, "a node for every pod")
    scheduled_s = time.monotonic() - began
    for at in range(pods):
        api.delete(f"{path}/p{at}", 0)
    claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims?limit=1"
    wait_until(lambda: not api.items(f"{path}?limit=1") and not api.items(claims), 300, "the end of all pods and claims")
    return pods / created_s, pods / scheduled_s


def histogram(text, name, label=""):
    """Bound in seconds, and how many were not slower."""
    found = {}
    for line in text.splitlines():
        if line.startswith(f"{name}_bucket{{") and label in line:
            bound = float(line.split('le="')[1].split('"')[0])
            found[bound] = found.get(bound, 0) + float(line.split()[-1])
    return found


def quantile_ms(before, after, part):
    counts = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = counts[max(counts)]
    return next(bound for bound, count in counts.items() if count >= part * total) * 1000
