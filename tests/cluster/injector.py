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
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}/mutate"}
        self.flags = flags

    def start(self):
        chart.create(self.plane.api, self.things)
        kubeconfig = self.plane.account_kubeconfig(NAME, self.folder / "injector.kubeconfig")
        words = ["controller", "webhook", "--kubeconfig", kubeconfig, "--host", "127.0.0.1"]
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
            return "cantle.dev/slice" in self.dry_run(probe)["metadata"]["labels"]
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
        chart.delete(self.plane.api, self.things)


def pod(labels=None, annotations=None, limits=None, name="p"):
    """A pod as users write it: it has no claim."""
    container = {"name": "main", "image": "localhost/cantle-test:1", "imagePullPolicy": "Never"}
    container["command"] = ["sleep", "600"]
    if limits:
        container["resources"] = {"limits": limits}
    metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    spec = {"hostNetwork": True, "automountServiceAccountToken": False, "restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
