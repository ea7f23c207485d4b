"""The chart on the real API server: every object is accepted, and what is installed can be upgraded and goes again."""

import os

import chart
import pytest

from api import RESOURCE
from chart import NAMESPACE, PLACES, ROOT, place, rendered
from injector import NAME, pod
from processes import Program, free_ports, wait_until

CHART = ROOT / "charts/cantle"
INSTANCE = "app.kubernetes.io/instance=cantle"
CERT_MANAGER = {"Issuer", "Certificate"}


@pytest.mark.parametrize("values", [
    {},
    {"webhook": {"certificates": {"mode": "cert-manager"}}, "deviceClasses": {"gpuResource": True}},
    {"webhook": {"namespaceSelector": {"matchLabels": {"team": "a"}}, "excludedNamespaces": ["b"], "deniedEnv": ["A"]}},
    {"path": "classic"},
])
def test_every_object_is_accepted(plane, values):
    things = [thing for thing in rendered(values) if thing["kind"] not in CERT_MANAGER]
    assert len(things) > 20
    for thing in things:
        path = f"{place(thing)}/{thing['metadata']['name']}?dryRun=All&fieldManager=test&force=true&fieldValidation=Strict"
        plane.api.call("PATCH", path, thing, "application/apply-patch+yaml")


def left(plane):
    """The existing objects of the chart."""
    found = []
    for kind, path in PLACES.items():
        for thing in plane.api.items(f"{path.format(NAMESPACE)}?labelSelector={INSTANCE}"):
            found.append((kind, thing["metadata"]["name"]))
    return found


def test_install_upgrade_uninstall(plane, namespace, tmp_path):
    import helm_python

    # Those of the other tests are not Helm's.
    chart.delete(plane.api, chart.standing())
    try:
        with helm_python.Config(kubeconfig_path=str(plane.kubeconfig()), namespace=NAMESPACE) as helm:
            helm.install(str(CHART), "cantle", namespace=NAMESPACE)
            try:
                others = {"ConfigMap", "Namespace", "PriorityClass"}
                assert {kind for kind, _ in left(plane)} == set(PLACES) - others, "a scheduler, queues or reservations have them"
                upgrade_keeps_what_the_injector_wrote(plane, helm, namespace, tmp_path)
            finally:
                helm.uninstall("cantle")
        wait_until(lambda: not left(plane), 60, lambda: left(plane))
        # On a worker that has the image they run, and would be in the way of the next test.
        wait_until(lambda: not plane.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods"), 120, "the end of the chart's pods")
    finally:
        chart.create(plane.api, chart.standing())


def upgrade_keeps_what_the_injector_wrote(plane, helm, namespace, folder):
    api, (port, observe) = plane.api, free_ports(2)
    configuration = f"{PLACES['MutatingWebhookConfiguration']}/{NAME}"
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-ca"
    bundles = lambda: [w["clientConfig"].get("caBundle") for w in api.get(configuration)["webhooks"]]
    words = ["controller", "webhook", "--kubeconfig", plane.account_kubeconfig(NAME, folder / "injector.kubeconfig"), "--listen", f"127.0.0.1:{port}"]
    words += ["--observe-listen", f"127.0.0.1:{observe}"]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    program = Program("injector", folder, [ROOT / "dist/bin/cantle", *words], env).start()
    try:
        wait_until(lambda: all(bundles()), 60, program.log)
        # As the injector would have changed it: there is no way from the API server to a service here.
        thing = pod(name="waits")
        claim = "cantle-memory-4096-0123456789abcdef"
        thing["metadata"]["labels"]["cantle.dev/slice"] = "cantle-memory-4096"
        thing["spec"]["resourceClaims"] = [{"name": "cantle-gpu", "resourceClaimName": claim}]
        # It would keep what it has on the worker until the driver is there again.
        thing["spec"]["schedulingGates"] = [{"name": "test/stays"}]
        api.create(f"/api/v1/namespaces/{namespace}/pods", thing)
        wait_until(lambda: api.find(f"{RESOURCE}/namespaces/{namespace}/resourceclaims/{claim}"), 60, program.log)
    finally:
        program.stop()
    before = (bundles(), api.get(secret)["data"])
    helm.upgrade(str(CHART), "cantle", {"webhook": {"replicas": 3, "timeoutSeconds": 7}}, namespace=NAMESPACE)
    assert api.get(configuration)["webhooks"][0]["timeoutSeconds"] == 7
    assert (bundles(), api.get(secret)["data"]) == before, "an upgrade must not cut the injector off"
    assert before[1].get("authorities.json"), "the authority is in the Secret"
