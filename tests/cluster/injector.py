"""The injector as its chart starts it: the chart's objects on the real API server, and the program with the rights of its own
service account. Only its address differs: a URL on the loopback in place of a service."""

import json
import os
import pathlib
import subprocess
import urllib.request

import yaml

from api import ApiError
from processes import Program, free_ports, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMESPACE = "cantle-system"
NAME = "cantle-webhook"
# Kinds of the chart that stand in the path of their own name.
PLACES = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "Service": "/api/v1/namespaces/{}/services",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
}


def place(thing):
    return PLACES[thing["kind"]].format(NAMESPACE)


def rendered(values=None):
    import helm_python

    with helm_python.Chart.load(ROOT / "charts/cantle") as chart:
        files = chart.render(values, name="cantle", namespace=NAMESPACE)
    texts = (text for path, text in sorted(files.items()) if path.endswith(".yaml"))
    return [thing for text in texts for thing in yaml.safe_load_all(text) if thing]


class Injector:
    def __init__(self, plane, folder, *flags):
        self.plane, self.folder = plane, folder
        self.port, self.observe_port = free_ports(2)
        # The device classes are there for all tests; of the others those of the injector.
        things = rendered({"deviceClasses": {"enabled": False}, "node": {"enabled": False}})
        self.things = [t for t in things if t["kind"] not in ("Deployment", "Service", "PodDisruptionBudget")]
        for webhook in next(t for t in things if t["kind"] == "MutatingWebhookConfiguration")["webhooks"]:
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}/mutate"}
        self.flags = flags

    def start(self):
        if not self.plane.api.find(f"/api/v1/namespaces/{NAMESPACE}"):
            self.plane.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for thing in self.things:
            self.plane.api.create(place(thing), thing)
        words = ["controller", "webhook", "--kubeconfig", self.kubeconfig(), "--host", "127.0.0.1"]
        words += ["--listen", f"127.0.0.1:{self.port}", "--observe-listen", f"127.0.0.1:{self.observe_port}"]
        words += ["--secret", f"{NAME}-ca", "--configuration", NAME, *self.flags]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        self.program = Program("injector", self.folder, [ROOT / "dist/bin/cantle", *words], env)
        self.run()
        return self

    def run(self):
        self.program.start()
        wait_until(self.is_ready, 60, self.program.log)
        # The API server takes a moment to learn of a new configuration.
        wait_until(self.is_called, 60, "a call of the API server")

    def kubeconfig(self):
        """Of the service account, so that its role is what is tested."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
        token = self.plane.api.create(path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
        config = json.loads(pathlib.Path(self.plane.kubeconfig()).read_text())
        config["users"][0]["user"] = {"token": token}
        file = self.folder / "injector.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def observe(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.observe_port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def is_ready(self):
        self.program.check()
        try:
            return self.observe("/readyz")
        except OSError:
            return False

    def is_called(self):
        probe = pod({"clearml-injector/fraction": "0.125"})
        try:
            return self.dry_run(probe)["spec"].get("resourceClaims")
        except ApiError as error:
            if "failed calling webhook" in str(error):
                return False
            raise

    def dry_run(self, thing, namespace="default"):
        return self.plane.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", thing)

    def stop(self):
        self.program.stop()

    def remove(self):
        self.stop()
        for thing in self.things:
            self.plane.api.delete(f"{place(thing)}/{thing['metadata']['name']}")


def pod(labels=None, annotations=None, limits=None, name="p"):
    """A pod as users write it: it has no claim."""
    container = {"name": "main", "image": "localhost/cantle-test:1", "imagePullPolicy": "Never"}
    container["command"] = ["sleep", "600"]
    if limits:
        container["resources"] = {"limits": limits}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    spec = {"hostNetwork": True, "automountServiceAccountToken": False, "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
