"""The injector as its chart starts it: the chart's objects on the real API server, and the program with the rights of its own
service account. Only its address differs: a URL on the loopback in place of a service."""

import os
import pathlib
import urllib.request

import chart
from api import ApiError
from chart import rendered
from processes import Program, free_ports, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAME = "cantle-webhook"


class Injector:
    def __init__(self, plane, folder, *flags, values=None):
        self.plane, self.folder = plane, folder
        self.port, self.observe_port = free_ports(2)
        things = [thing for thing in rendered(values) if thing["metadata"]["name"].startswith(NAME)]
        self.things = [t for t in things if t["kind"] not in ("Deployment", "Service", "PodDisruptionBudget")]
        for webhook in next(t for t in things if t["kind"] == "MutatingWebhookConfiguration")["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}{path}"}
            # The most there is: the API server of a busy machine has no answer in the chart's five seconds, and refuses the pod.
            webhook["timeoutSeconds"] = 30
        self.flags = flags

    def start(self):
        chart.create(self.plane.api, self.things)
        kubeconfig = self.plane.account_kubeconfig(NAME, self.folder / "injector.kubeconfig")
        self.words = ["controller", "webhook", "--kubeconfig", kubeconfig, "--host", "127.0.0.1"]
        self.words += ["--secret", f"{NAME}-ca", "--configuration", NAME, *self.flags]
        self.program = self.replica("injector", self.port, self.observe_port)
        self.run()
        return self

    def replica(self, name, *ports):
        calls, observe = ports or free_ports(2)
        words = [*self.words, "--listen", f"127.0.0.1:{calls}", "--observe-listen", f"127.0.0.1:{observe}"]
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        return Program(name, self.folder, [ROOT / "dist/bin/cantle", *words], env)

    def run(self):
        self.program.start()
        wait_until(self.is_ready, 60, self.program.log)
        # The API server takes a moment to learn of a new configuration.
        wait_until(self.is_called, 60, "a call of the API server")

    def observe(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.observe_port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def is_ready(self):
        self.program.check()
        try:
            return self.observe("/readyz")
        except OSError:
            return False

    def is_called(self):
        return is_injected(self.plane.api)

    def dry_run(self, thing, namespace="default"):
        return self.plane.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", thing)

    def stop(self):
        self.program.stop()

    def remove(self):
        self.stop()
        chart.delete(self.plane.api, self.things)
        # It takes the same moment to forget it: the pods of a next test would be refused.
        wait_until(lambda: is_injected(self.plane.api) is None, 60, "the end of the API server's calls")


def is_injected(api):
    """Does an injector answer the API server's calls? None if the API server makes none."""
    try:
        labels = api.create("/api/v1/namespaces/default/pods?dryRun=All", pod({"clearml-injector/fraction": "0.125"}))["metadata"]["labels"]
    except ApiError as error:
        if "failed calling webhook" in str(error):
            return False
        raise
    return "cantle.dev/slice" in labels or None


def wait_called(api):
    """Where the injector is a service: until the API server finds all of its pods there, and no other. A pod may be ready a moment before."""
    pods = f"/api/v1/namespaces/{chart.NAMESPACE}/pods?labelSelector=app.kubernetes.io/component%3Dwebhook"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{chart.NAMESPACE}/endpointslices?labelSelector=kubernetes.io/service-name%3D{NAME}"

    def is_current():
        endpoints = [endpoint for each in api.items(slices) for endpoint in each.get("endpoints") or [] if endpoint["conditions"].get("ready")]
        known = {address for endpoint in endpoints for address in endpoint["addresses"]}
        return known and known == {each["status"].get("podIP") for each in api.items(pods)}

    wait_until(lambda: is_current() and is_injected(api), 120, lambda: (api.items(slices), api.items(pods)))


def end_pods(api, namespace):
    """Ends the pods of a namespace; true once none is left. To be called again and again: a controller that has not heard of its end yet
    makes new ones."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    left = api.items(path)
    for each in left:
        # Nobody runs pods on hand-made nodes.
        is_run = not each["spec"].get("nodeName", "hand").startswith("hand")
        if not is_run or each["metadata"].get("deletionGracePeriodSeconds", 30) > 1:
            api.delete(f"{path}/{each['metadata']['name']}", 1 if is_run else 0)
    return not left


def pod(labels=None, annotations=None, limits=None, name="p"):
    """A pod as users write it: it has no claim."""
    container = {"name": "main", "image": "localhost/cantle-test:1", "imagePullPolicy": "Never"}
    container["command"] = ["sleep", "600"]
    if limits:
        container["resources"] = {"limits": limits}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    spec = {"hostNetwork": True, "automountServiceAccountToken": False, "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
