"""Pods in the words of ClearML and Run:ai on the real API server: what they get, what is refused, and what happens while the
injector is away."""

import json

import pytest
import yaml

from api import RESOURCE, ApiError, claim_template, node
from documented import LABELED
from injector import pod
from processes import wait_until

FRACTIONS = ["0.0625", "0.125", "0.250", "0.375", "0.500", "0.625", "0.750", "0.875"]
LABEL = "clearml-injector/fraction"

# As ClearML documents them, in addition to documented.py; the image is one that is here.
DEPRECATED = """
apiVersion: v1
kind: Pod
metadata:
  name: train-pod-old
spec:
  containers:
  - name: train-container
    image: localhost/cantle-test:1
    command: ['sh', '-c', "sleep 600"]
    resources:
      limits:
        nvidia.com/gpu: 1
        clear.ml/fraction-1: "0.5"
"""
MIG = """
apiVersion: v1
kind: Pod
metadata:
  name: tf-benchmarks-mixed
spec:
  restartPolicy: Never
  containers:
    - name: tf-benchmarks-mixed
      image: localhost/cantle-test:1
      command: ['sh', '-c', "sleep 600"]
      resources:
        limits:
          nvidia.com/mig-1g.10gb: 1
"""


def refusal(injector, thing):
    with pytest.raises(ApiError) as refused:
        injector.dry_run(thing)
    return str(refused.value)


def claims_of(plane, namespace):
    return plane.api.items(f"{RESOURCE}/namespaces/{namespace}/resourceclaims")


def allocated(plane, namespace, count):
    """The scheduler's allocations, by pod."""
    def all_of_them():
        claims = [c for c in claims_of(plane, namespace) if c.get("status", {}).get("allocation")]
        return claims if len(claims) == count else None

    pods = lambda: [(p["metadata"]["name"], p["status"].get("conditions")) for p in plane.api.items(f"/api/v1/namespaces/{namespace}/pods")]
    claims = wait_until(all_of_them, 120, lambda: (claims_of(plane, namespace), pods()))
    return {c["metadata"]["ownerReferences"][0]["name"]: c["status"]["allocation"]["devices"]["results"] for c in claims}


def test_documented_manifests(plane, injector, hand_made, make_driver, namespace):
    make_driver(hand_made, "1xA100-40GB,1xH100-80GB:mig")
    with pytest.raises(ApiError, match="must be an integer"):
        # In a namespace without the injector (kube-system), Kubernetes itself refuses the older form.
        plane.api.create("/api/v1/namespaces/kube-system/pods?dryRun=All", yaml.safe_load(DEPRECATED))
    for manifest in [LABELED, DEPRECATED, MIG]:
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", yaml.safe_load(manifest))
    given = allocated(plane, namespace, 3)
    for name in ["train-pod", "train-pod-old"]:
        [share] = given[name]
        assert share["device"] == "gpu-0-shared" and share["consumedCapacity"]["memory"] == "20Gi", share
    [instance] = given["tf-benchmarks-mixed"]
    assert instance["device"].startswith("gpu-1-mig-1g-10gb"), instance


def test_a_pod_that_was_there_before_the_gpus(plane, injector, hand_made, make_driver, namespace):
    """It gets its share when a GPU comes: what a fraction is depends on the GPU."""
    thing = pod({LABEL: "0.250"}, name="early")
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", thing)
    make_driver(hand_made, "1xA100-40GB")
    [share] = allocated(plane, namespace, 1)["early"]
    assert share["consumedCapacity"]["memory"] == "10Gi"
    [claim] = claims_of(plane, namespace)
    assert claim["metadata"]["name"].startswith("cantle-fraction-2500-"), claim["metadata"]


def test_no_pod_waits_for_the_controller_manager(plane, injector, hand_made, make_driver, namespace):
    """It makes the claims of templates, at ten a second at most, and reports a template that it does not see yet as an error. The
    injector's claims are there without it; without any rate limit it is fast as well."""
    make_driver(hand_made, "8xA100-80GB")
    manager = plane.others[0]
    assert manager.name == "kube-controller-manager"
    manager.stop()
    try:
        for at in range(8):
            plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod({LABEL: "0.125"}, name=f"p{at}"))
        allocated(plane, namespace, 8)
    finally:
        manager.start()
    events = [event["reason"] for event in plane.api.items(f"/api/v1/namespaces/{namespace}/events")]
    assert "FailedResourceClaimCreation" not in events


@pytest.mark.dra("GPUs of another size are added while a pod waits")
def test_a_pod_that_waits_gets_a_claim_for_gpus_that_come(plane, injector, hand_made, make_driver, namespace):
    """Its first claim names the old sizes: it would wait forever next to free GPUs."""
    make_driver(hand_made, "1xA100-40GB")
    pods, later = f"/api/v1/namespaces/{namespace}/pods", "hand-joins"
    for name in ["first", "waits"]:
        plane.api.create(pods, pod({LABEL: "0.875"}, name=name))
        allocated(plane, namespace, 1)
    says = lambda: [c for c in plane.api.get(f"{pods}/waits")["status"].get("conditions", []) if c.get("reason") == "Unschedulable"]
    wait_until(says, 60, lambda: plane.api.get(f"{pods}/waits"))
    of = lambda name: next((c for c in claims_of(plane, namespace) if c["metadata"]["ownerReferences"][0]["name"] == name), None)
    wait_until(lambda: of("waits"), 60, "its first claim")
    before = {name: of(name)["metadata"] for name in ["first", "waits"]}
    plane.api.create("/api/v1/nodes", node(later))
    try:
        make_driver(later, "2xH100-80GB")
        [share] = allocated(plane, namespace, 2)["waits"]
        assert share["pool"] == later
        assert of("waits")["metadata"]["uid"] != before["waits"]["uid"]
        assert of("waits")["metadata"]["name"] == before["waits"]["name"], "the pod's status names it"
        assert of("first")["metadata"]["uid"] == before["first"]["uid"], "what has been given stays"
        placed = lambda: plane.api.get(f"{pods}/waits")["spec"].get("nodeName")
        assert wait_until(placed, 60, "its place") == later
        refused = plane.api.with_token(json.loads((injector.folder / "injector.kubeconfig").read_text())["users"][0]["user"]["token"])
        with pytest.raises(ApiError, match="may only create and delete its own claims"):
            refused.delete(f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{of('first')['metadata']['name']}")
    finally:
        for each in plane.api.items(pods):
            plane.api.delete(f"{pods}/{each['metadata']['name']}", 0)
        plane.api.delete(f"/api/v1/nodes/{later}")


def test_a_claim_of_somebody_else_is_never_used(plane, injector, hand_made, make_driver, namespace):
    """One that was there before the pod's: it has the name of an eighth, and asks for a whole GPU."""
    make_driver(hand_made, "2xA100-40GB")
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    kept = plane.api.get(f"{bindings}/cantle-webhook-claims")
    plane.api.delete(f"{bindings}/cantle-webhook-claims")
    claims, name = f"{RESOURCE}/namespaces/{namespace}/resourceclaims", "cantle-fraction-1250-0123456789abcdef"

    def is_made():
        try:
            spec = claim_template(name, "whole.gpu.cantle.dev")["spec"]["spec"]
            return plane.api.create(claims, {"metadata": {"name": name}, "spec": spec})
        except ApiError as error:
            assert "reserved for claims of the injector" in str(error)
            return None

    try:
        wait_until(is_made, 60, "the end of the policy")
    finally:
        plane.api.create(bindings, {"metadata": {"name": "cantle-webhook-claims"}, "spec": kept["spec"]})
    # As the injector writes pods: nobody else knows the name that it chooses.
    thing = pod({"cantle.dev/slice": "cantle-fraction-1250"}, name="eighth")
    thing["spec"]["resourceClaims"] = [{"name": "cantle-gpu", "resourceClaimName": name}]
    thing["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cantle-gpu"}]}
    thing["spec"]["schedulingGates"] = [{"name": "cantle.dev/packing"}]
    pods = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(pods, thing)
    events = lambda: [event for event in plane.api.items(f"/api/v1/namespaces/{namespace}/events") if event["reason"] == "FailedResourceClaimCreation"]
    [said] = wait_until(events, 60, injector.program.log)
    assert said["message"] == f"claim {name} is not the pod's: delete it", said
    assert plane.api.get(f"{pods}/eighth")["spec"]["schedulingGates"], "it is not let go"
    plane.api.delete(f"{claims}/{name}")
    [share] = allocated(plane, namespace, 1)["eighth"]
    assert share["consumedCapacity"]["memory"] == "5Gi", share


@pytest.mark.dra("A quota of the namespace allows no more claims")
def test_a_claim_that_is_refused(plane, injector, hand_made, make_driver, namespace):
    make_driver(hand_made, "2xA100-40GB")
    quotas, pods = f"/api/v1/namespaces/{namespace}/resourcequotas", f"/api/v1/namespaces/{namespace}/pods"
    count = "count/resourceclaims.resource.k8s.io"
    plane.api.create(quotas, {"metadata": {"name": "claims"}, "spec": {"hard": {count: "1"}}})
    wait_until(lambda: plane.api.get(f"{quotas}/claims").get("status", {}).get("hard"), 60, "the quota's count")
    for name in ["first", "second"]:
        plane.api.create(pods, pod({LABEL: "0.125"}, name=name))
    events = lambda: [event for event in plane.api.items(f"/api/v1/namespaces/{namespace}/events") if event["reason"] == "FailedResourceClaimCreation"]
    [said, *_] = wait_until(events, 60, injector.program.log)
    assert "exceeded quota: claims" in said["message"], said
    plane.api.merge(f"{quotas}/claims", {"spec": {"hard": {count: "2"}}})
    allocated(plane, namespace, 2)


def test_pods_of_the_release_before(plane, injector, hand_made, make_driver, namespace):
    """They name a template. Where Kubernetes has not made their claim yet, the template may be one that nobody makes any more."""
    make_driver(hand_made, "1xA100-40GB")
    thing = pod({"cantle.dev/slice": "cantle-fraction-1250"}, name="old")
    thing["spec"]["resourceClaims"] = [{"name": "cantle-gpu", "resourceClaimTemplateName": "cantle-fraction-1250"}]
    thing["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cantle-gpu"}]}
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", thing)
    [share] = allocated(plane, namespace, 1)["old"]
    assert share["consumedCapacity"]["memory"] == "5Gi", share
    placed = lambda: plane.api.get(f"/api/v1/namespaces/{namespace}/pods/old")["spec"].get("nodeName")
    assert wait_until(placed, 60, "its place") == hand_made
    assert len(claims_of(plane, namespace)) == 1


def test_two_gpus(plane, injector, hand_made, make_driver, namespace):
    make_driver(hand_made, "2xA100-40GB")
    annotations = {"gpu-memory": "4095", "gpu-fraction-num-devices": "2"}
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod(annotations=annotations, name="two"))
    shares = allocated(plane, namespace, 1)["two"]
    assert sorted(share["device"] for share in shares) == ["gpu-0-shared", "gpu-1-shared"]
    assert {share["consumedCapacity"]["memory"] for share in shares} == {"4094Mi"}


def test_every_fraction_in_a_dry_run_makes_nothing(plane, injector, namespace):
    for fraction in FRACTIONS:
        given = injector.dry_run(pod({LABEL: fraction}), namespace)
        [claim] = given["spec"]["resourceClaims"]
        assert claim["name"] == "cantle-gpu"
        assert given["spec"]["containers"][0]["resources"]["claims"] == [{"name": "cantle-gpu"}]
        again = injector.dry_run({**given, "metadata": {k: given["metadata"][k] for k in ("name", "labels")}}, namespace)
        names = [thing["spec"]["resourceClaims"][0].pop("resourceClaimName") for thing in (given, again)]
        assert again["spec"] == given["spec"], "what was changed once is not changed again"
        assert names[0] != names[1], "a copy of a pod does not share its claim"
    assert claims_of(plane, namespace) == []


@pytest.mark.parametrize("thing, said", [
    *[(pod({LABEL: given}), "write 0.125, 0.250") for given in ["0.333", "0.5", "0", "1.5", "NaN", "half", "33", "2."]],
    *[(pod(annotations={"gpu-fraction": given}), "above 0 and below 1") for given in ["0", "1", "-0.5", "NaN", "50%"]],
    *[(pod(annotations={"gpu-memory": given}), "whole number of MiB") for given in ["0", "4Gi", "-1"]],
    (pod(limits={"clear.ml/fraction-1": "0.3"}), "resource clear.ml/fraction-1"),
    (pod(annotations={"mig-profile": "big"}), "name of a MIG profile"),
    (pod(annotations={"gpu-fraction-num-devices": "2"}), "needs annotation gpu-fraction"),
    (pod({LABEL: "0.500"}, {"gpu-fraction": "0.25"}), "keep one of them"),
    (pod({LABEL: "0.500"}, {"gpu-memory": "4096"}), "keep one of them"),
    (pod({LABEL: "0.500"}, limits={"nvidia.com/gpu": "3"}), "keep one of them"),
    (pod({LABEL: "0.500"}, limits={"nvidia.com/mig-1g.10gb": "1"}), "keep one of them"),
    (pod({LABEL: "0.500"}, {"gpu-fraction-container-name": "x"}), "the pod has only main"),
])
def test_nonsense_is_refused_with_the_reason(injector, thing, said):
    text = refusal(injector, thing)
    assert "denied the request: " in text and said in text, text


def test_limits_are_not_lifted(plane, injector, namespace):
    label = {LABEL: "0.500"}
    worse = pod(label)
    worse["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "container main is privileged" in refusal(injector, worse)
    worse = pod(label)
    worse["spec"]["containers"][0]["env"] = [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]
    assert "container main sets LD_PRELOAD" in refusal(injector, worse)
    worse = pod(label)
    worse["spec"]["volumes"] = [{"name": "dev", "hostPath": {"path": "/dev"}}]
    assert "volume dev mounts /dev of the node" in refusal(injector, worse)

    # A container that joins later.
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod(label, name="joined"))
    path = f"/api/v1/namespaces/{namespace}/pods/joined/ephemeralcontainers"
    debug = lambda **more: {"spec": {"ephemeralContainers": [{"name": "debug", "image": "x", **more}]}}
    with pytest.raises(ApiError, match="container debug is privileged"):
        plane.api.merge(path, debug(securityContext={"privileged": True}))
    joined = plane.api.merge(path, debug())["spec"]["ephemeralContainers"][0]
    assert joined["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_without_the_injector_only_pods_that_ask_are_refused(injector):
    injector.stop()
    try:
        for thing in [pod({LABEL: "0.500"}), pod(annotations={"gpu-fraction": "0.5"}), pod(limits={"clear.ml/fraction-1": "500m"})]:
            assert "failed calling webhook" in refusal(injector, thing)
        injector.dry_run(pod({"app": "other"}))
        injector.dry_run(pod(limits={"nvidia.com/mig-1g.10gb": "1"}))
    finally:
        injector.run()
