"""Settings of users that would have no effect: the API server warns, as kubectl prints it, or refuses the pod. The test has
the chart's policies on the real API server. No injector runs; the pods have the fields that it would have written."""

import copy

import pytest

import chart
from api import RESOURCE, ApiError, claim_template
from chart import rendered
from injector import NAME, pod
from processes import wait_until

LABEL = "clearml-injector/fraction"
INJECTED = {LABEL: "0.500", "cantle.dev/slice": "cantle-fraction-5000"}


@pytest.fixture(scope="module")
def policies(plane):
    """Those of the chart; the API server takes a moment to learn of them."""
    things = [thing for thing in rendered() if thing["kind"].startswith("ValidatingAdmissionPolicy") and thing["metadata"]["name"].startswith(NAME)]
    assert len(things) == 16
    effects = [
        lambda: warnings(plane, pod(annotations={LABEL: "0.500"})),
        lambda: warnings(plane, deployment({LABEL: "1"}, {})),
        lambda: is_refused(plane, "cantle-whole-1"),
        lambda: is_refused_instances(plane),
    ]
    # Those of a chart that an earlier test removed hold for a moment more. Taken for the new ones, they would end during a test.
    wait_until(lambda: not any(effect() for effect in effects), 60, "the end of policies that were removed")
    chart.create(plane.api, things)
    wait_until(lambda: all(effect() for effect in effects), 60, "a call of the policies")
    for thing in things:
        if thing["kind"] == "ValidatingAdmissionPolicy":
            path = f"{chart.place(thing)}/{thing['metadata']['name']}"
            typed = lambda: plane.api.get(path).get("status", {}).get("typeChecking")
            wait_until(lambda: typed() is not None, 60, path)
            assert not typed().get("expressionWarnings"), typed()
    yield
    chart.delete(plane.api, things)


def warnings(plane, thing, namespace="default"):
    kinds = {"Pod": f"/api/v1/namespaces/{namespace}/pods", "Deployment": f"/apis/apps/v1/namespaces/{namespace}/deployments"}
    plane.api.create(f"{kinds[thing['kind']]}?dryRun=All", thing)
    return " ".join(plane.api.warnings())


def is_refused(plane, name):
    try:
        claim = {"metadata": {"name": name}, "spec": claim_template(name, "whole.gpu.cantle.dev")["spec"]["spec"]}
        plane.api.create(f"{RESOURCE}/namespaces/default/resourceclaims?dryRun=All", claim)
    except ApiError as error:
        return str(error)
    return None


def is_refused_instances(plane, count=2):
    try:
        plane.api.create("/api/v1/namespaces/default/pods?dryRun=All", pod(limits={"nvidia.com/mig-1g.10gb": count}))
    except ApiError as error:
        return str(error)
    return None


def deployment(labels, annotations, template=None):
    inner = pod({"app": "a", **(template or {})})
    del inner["spec"]["restartPolicy"]
    inner["metadata"] = {"labels": inner["metadata"]["labels"]}
    spec = {"selector": {"matchLabels": {"app": "a"}}, "template": {"metadata": inner["metadata"], "spec": inner["spec"]}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": labels, "annotations": annotations}, "spec": spec}


def with_spec(thing, **spec):
    changed = copy.deepcopy(thing)
    changed["spec"].update(spec)
    return changed


def with_container(thing, **container):
    changed = copy.deepcopy(thing)
    changed["spec"]["containers"][0].update(container)
    return changed


def test_plain_pods_and_right_ones_are_left_in_peace(plane, policies):
    for thing in [
        pod(),
        pod(INJECTED),
        pod(INJECTED, {LABEL: "0.500"}),
        pod({"cantle.dev/slice": "cantle-memory-4096"}, {"gpu-memory": "4096"}),
        pod(limits={"nvidia.com/mig-1g.10gb": 1}),
        deployment({LABEL: "0.500"}, {}, {LABEL: "0.500"}),
        deployment({}, {}),
    ]:
        assert warnings(plane, thing) == "", thing


def test_what_has_no_effect_is_said(plane, policies):
    config = [{"configMapRef": {"name": "c"}}]
    for thing, namespace, said in [
        (pod(annotations={LABEL: "0.500"}), "default", f"annotation {LABEL} has no effect: write it as a label"),
        (pod({"gpu-fraction": "0.5"}), "default", "label gpu-fraction has no effect: write it as an annotation"),
        (pod({"gpu-memory": "4096"}), "default", "label gpu-memory has no effect"),
        (pod({LABEL: "0.500"}), "kube-system", f"{LABEL} has no effect: cantle excludes namespace kube-system"),
        (pod(annotations={"gpu-fraction": "0.5"}), "cantle-system", "gpu-fraction has no effect: cantle excludes namespace cantle-system"),
        (with_spec(pod(INJECTED), schedulerName="volcano"), "default", "scheduler volcano must support claims on devices"),
        (with_container(pod(INJECTED), envFrom=config), "default", "the injector does not check the variables of envFrom"),
        (with_container(pod(limits={"nvidia.com/mig-1g.10gb": 1}), securityContext={"privileged": True}), "default", "a privileged container sees all GPUs"),
        (deployment({LABEL: "0.500"}, {}), "default", f"{LABEL} has no effect here: write it under spec.template.metadata"),
        (deployment({}, {"gpu-memory": "4096"}), "default", "gpu-memory has no effect here"),
    ]:
        heard = warnings(plane, thing, namespace)
        assert said in heard, (thing, heard)


def test_several_instances_for_one_container_are_refused(plane, policies):
    refused = is_refused_instances(plane)
    assert "container main requests several MIG instances, but a program can use only one" in refused, refused
    assert is_refused_instances(plane, 1) is None


def test_nobody_else_makes_claims_under_cantles_names(plane, policies):
    for name in ["cantle-fraction-1250", "cantle-memory-4096-x2", "cantle-whole-1", "cantle-mig-1g.10gb"]:
        refused = is_refused(plane, name)
        assert f"the name {name} is reserved for claims of the injector" in refused, refused
    assert is_refused(plane, "cantle-of-mine") is None
