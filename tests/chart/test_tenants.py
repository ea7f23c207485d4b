"""What the chart has against users and pods that cantle does not trust; tests/cluster/test_tenants.py tries it on an API server."""

import pytest
from test_chart import of_kind, one

POLICIES = ["cantle-webhook-marks", "cantle-webhook-used-claims", "cantle-webhook-quota"]


def test_a_network_policy_admits_the_api_server_alone(render):
    assert of_kind(render(), "NetworkPolicy") == [], "its addresses are not known"
    things = render({"webhook": {"networkPolicy": {"apiServer": ["10.0.0.10/32", "fd00::/64"]}}})
    [policy] = of_kind(things, "NetworkPolicy")
    template = one(things, "Deployment", "cantle-webhook")["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    calls, observers = policy["spec"]["ingress"]
    assert [each["ipBlock"]["cidr"] for each in calls["from"]] == ["10.0.0.10/32", "fd00::/64"] and "from" not in observers
    assert {port["port"] for rule in (calls, observers) for port in rule["ports"]} == ports == {"https", "observe"}


@pytest.mark.parametrize("values, policies", [({}, POLICIES), ({"path": "classic"}, POLICIES[:1]), ({"webhook": {"enabled": False}}, [])])
def test_policies_against_tenants(render, values, policies):
    things = render(values)
    names = [thing["metadata"]["name"] for thing in of_kind(things, "ValidatingAdmissionPolicy")]
    assert [name for name in POLICIES if name in names] == policies
    for name in policies:
        assert one(things, "ValidatingAdmissionPolicy", name)["spec"]["failurePolicy"] == "Fail"
        assert one(things, "ValidatingAdmissionPolicyBinding", name)["spec"]["validationActions"] == ["Deny"]


def test_who_is_trusted_is_so_everywhere(render):
    trusted = {"users": ["admin@example.com"], "groups": ["platform"]}
    things = render({"webhook": {"trusted": trusted}})
    [configuration] = of_kind(things, "MutatingWebhookConfiguration")
    marks = configuration["webhooks"][0]
    texts = [str(one(things, "ValidatingAdmissionPolicy", name)) for name in POLICIES] + [str(marks)]
    own = ["system:serviceaccount:cantle-system:cantle-webhook", "system:kube-scheduler", "system:masters"]
    for name in [*trusted["users"], *trusted["groups"], *own]:
        assert all(f"'{name}'" in text for text in texts), name


def test_forged_marks_are_looked_for_before_anything_is_changed(render):
    """The injector takes the resource that is a request out of a pod: a later call would take that for a forgery."""
    [configuration] = of_kind(render(), "MutatingWebhookConfiguration")
    first, *others = configuration["webhooks"]
    assert first["clientConfig"]["service"]["path"] == "/marks" and first["reinvocationPolicy"] == "Never"
    assert {each["clientConfig"]["service"]["path"] for each in others} == {"/mutate"}
    assert {each["reinvocationPolicy"] for each in others} == {"IfNeeded"}
