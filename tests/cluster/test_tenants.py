"""A user with the role `edit` in one namespace, on the real API server with the chart's policies and Kubernetes' own scheduler: what the user
may not do to slices, quotas and claims. Next to each there is a negative control: the same by an administrator, or on another pod."""

import copy
import re
import time

import pytest

from api import RESOURCE, ApiError, claim_template
from injector import pod
from processes import wait_until
from test_gpu_quota import GATE, Team
from test_injector import LABEL, claims_of

SLICE = "cantle.dev/slice"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def tenant(plane, namespace):
    """The API server for a service account with the role `edit` in the test's namespace."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    plane.api.create(accounts, {"metadata": {"name": "tenant"}})
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    plane.api.create(f"{RIGHTS}/namespaces/{namespace}/rolebindings", {"metadata": {"name": "tenant"}, "subjects": [subject], "roleRef": role})
    token = plane.api.create(f"{accounts}/tenant/token", {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    user = plane.api.with_token(token)

    def may():
        """The API server learns of a binding a moment later."""
        try:
            return user.get(f"/api/v1/namespaces/{namespace}/pods")
        except ApiError as error:
            assert error.code == 403, error
            return None

    wait_until(may, 60, "the rights of the tenant")
    return user


@pytest.fixture
def team(plane, injector, hand_made, make_driver, namespace):
    make_driver(hand_made, "4xA100-40GB")
    return Team(plane.api, namespace, injector.program.log)


def refused(call, words):
    with pytest.raises(ApiError) as error:
        call()
    assert error.value.code in (403, 422) and words in str(error.value), error.value


def remove(*paths):
    return [{"op": "remove", "path": path} for path in paths]


def patch(api, path, operations):
    return api.call("PATCH", path, operations, "application/json-patch+json")


def wait_for_policies(team, tenant):
    """The API server looks for new policies once a second."""
    forged = pod({"cantle.dev/queues": "x"}, name="forged")

    def is_there():
        try:
            tenant.create(f"{team.pods}?dryRun=All", forged)
        except ApiError as error:
            return "queue controller alone" in str(error)
        return False

    wait_until(is_there, 60, "the policies of the chart")


def test_a_quota_holds_against_its_users(plane, team, tenant):
    team.quota("500m")
    wait_for_policies(team, tenant)
    for name in ["runs", "held"]:
        tenant.create(team.pods, pod({LABEL: "0.500"}, name=name))
    wait_until(lambda: len(team.placed()) == 1, 120, team.log)
    (runs,) = team.placed()
    (held,) = {"runs", "held"} - {runs}
    wait_until(lambda: team.is_refused(held, "needs 0.5 GPU"), 60, team.log)

    # The gate.
    refused(lambda: patch(tenant, f"{team.pods}/{held}", remove("/spec/schedulingGates")), "scheduling gate")
    # The label, taken away or changed, also on a pod that runs.
    for name in (runs, held):
        refused(lambda: tenant.merge(f"{team.pods}/{name}", {"metadata": {"labels": {SLICE: None}}}), "labels cantle.dev/")
        refused(lambda: tenant.merge(f"{team.pods}/{name}", {"metadata": {"labels": {SLICE: "cantle-fraction-0625"}}}), "labels cantle.dev/")
    # The word of the request may go; the claim counts.
    tenant.merge(f"{team.pods}/{held}", {"metadata": {"labels": {LABEL: "0.0625", "mine": "x"}}})
    # Claims of the user's own, and templates.
    claim = {"metadata": {"name": "mine"}, "spec": claim_template("mine", "whole.gpu.cantle.dev")["spec"]["spec"]}
    refused(lambda: tenant.create(f"{RESOURCE}/namespaces/{team.namespace}/resourceclaims", claim), "ResourceQuota gpus limits the GPUs")
    template = claim_template("mine", "shared.gpu.cantle.dev", "1Gi")
    refused(lambda: tenant.create(f"{RESOURCE}/namespaces/{team.namespace}/resourceclaimtemplates", template), "ResourceQuota gpus limits the GPUs")
    # Without a quota, and of other vendors' devices: as before.
    tenant.create(f"{RESOURCE}/namespaces/{team.namespace}/resourceclaims", {**claim, "spec": {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example"}}]}}})

    # One that an administrator has made counts, although its pod has no label.
    plane.api.create(f"{RESOURCE}/namespaces/{team.namespace}/resourceclaims", {"metadata": {"name": "given"}, "spec": claim["spec"]})
    user = pod(name="user")
    user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "given"}]
    user["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    tenant.create(team.pods, user)
    team.wait_placed(runs, "user")
    plane.api.delete(f"{team.pods}/{runs}", 0)
    wait_until(lambda: team.placed() == ["user"], 60, team.placed)
    # The injector looks once a second, and would let the pod go if the claim did not count.
    time.sleep(5)
    assert team.placed() == ["user"]
    plane.api.delete(f"{team.pods}/user", 0)
    team.wait_placed(held)
    for name in ["given", "mine"]:
        plane.api.delete(f"{RESOURCE}/namespaces/{team.namespace}/resourceclaims/{name}")


def test_what_the_injector_gives_is_not_forged(plane, injector, team, tenant):
    wait_for_policies(team, tenant)
    forged = pod({SLICE: "cantle-whole-1"}, name="forged")
    forged["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_PTRACE"]}}
    forged["spec"]["resourceClaims"] = [{"name": "cantle-gpu", "resourceClaimName": "cantle-whole-1-deadbeefdeadbeef"}]
    forged["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cantle-gpu"}]}
    words = "set by cantle's injector alone"
    refused(lambda: tenant.create(team.pods, forged), f"label {SLICE} is {words}")
    unlabeled = copy.deepcopy(forged)
    del unlabeled["metadata"]["labels"]
    refused(lambda: tenant.create(team.pods, unlabeled), f'resource claim "cantle-whole-1-deadbeefdeadbeef" is {words}')
    named = copy.deepcopy(unlabeled)
    named["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimTemplateName": "cantle-fraction-5000"}]
    named["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    refused(lambda: tenant.create(team.pods, named), f'resource claim "cantle-fraction-5000" is {words}')
    gated = pod(name="gated")
    gated["spec"]["schedulingGates"] = [{"name": GATE}]
    refused(lambda: tenant.create(team.pods, gated), f"scheduling gate {GATE} is {words}")
    # With a request, the marks are replaced, and the guard sees the pod.
    asking = copy.deepcopy(forged)
    asking["metadata"]["labels"][LABEL] = "0.500"
    refused(lambda: tenant.create(team.pods, asking), "SYS_PTRACE")
    del asking["spec"]["containers"][0]["securityContext"], asking["spec"]["resourceClaims"]
    asking["spec"]["containers"][0]["resources"] = {}
    made = tenant.create(f"{team.pods}?dryRun=All", asking)
    assert made["metadata"]["labels"][SLICE] == "cantle-fraction-5000"
    assert re.fullmatch("cantle-fraction-5000-[0-9a-f]{16}", made["spec"]["resourceClaims"][0]["resourceClaimName"])
    # The older resource is taken out of the pod when it is injected: that is no forgery.
    made = tenant.create(f"{team.pods}?dryRun=All", pod(limits={"clear.ml/fraction-1": "500m", "nvidia.com/gpu": "1"}))
    assert made["metadata"]["labels"][SLICE] == "cantle-fraction-5000"
    assert claims_of(plane, team.namespace) == []


def test_a_used_claim_stays(plane, team, tenant):
    wait_for_policies(team, tenant)
    tenant.create(team.pods, pod({LABEL: "0.500"}, name="runs"))
    team.wait_placed("runs")
    (claim,) = claims_of(plane, team.namespace)
    path = f"{RESOURCE}/namespaces/{team.namespace}/resourceclaims/{claim['metadata']['name']}"
    assert claim["status"]["reservedFor"][0]["name"] == "runs"
    for without in [{"finalizers": None}, {"finalizers": ["mine/x"]}]:
        refused(lambda: tenant.merge(path, {"metadata": without}), "the claim is used by pod runs")
    # The deletion alone waits for the pod.
    tenant.delete(path)
    assert plane.api.get(path)["metadata"]["deletionTimestamp"]
    # An administrator may, and the pod's own end does.
    assert not plane.api.call("PATCH", f"{path}?dryRun=All", {"metadata": {"finalizers": None}}, "application/merge-patch+json")["metadata"].get("finalizers")
    tenant.delete(f"{team.pods}/runs", 0)
    wait_until(lambda: plane.api.find(path) is None, 60, lambda: plane.api.find(path))
