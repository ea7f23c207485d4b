"""The API server, spoken to over plain HTTPS: JSON in, JSON out."""

import copy
import json
import ssl
import urllib.error
import urllib.request

RESOURCE = "/apis/resource.k8s.io/v1"


class ApiError(Exception):
    """An answer that is no success: `code` and what the server says."""

    def __init__(self, code, status):
        super().__init__(f"{code}: {status.get('message', status)}")
        self.code, self.status = code, status


class Api:
    def __init__(self, url, ca, certificate, key):
        self.url, self.ca, self.headers = url, ca, {}
        self.context = ssl.create_default_context(cafile=str(ca))
        self.context.load_cert_chain(str(certificate), str(key))

    def with_token(self, token):
        """The same server for the owner of a token."""
        other = copy.copy(self)
        other.context = ssl.create_default_context(cafile=str(self.ca))
        other.headers = {"Authorization": f"Bearer {token}"}
        return other

    def call(self, method, path, body=None, kind="application/json", timeout=30):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind, **self.headers}, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=timeout) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text.decode(errors="replace")}
            raise ApiError(error.code, status) from None
        try:
            return json.loads(text)
        except ValueError:
            return text.decode(errors="replace")

    def get(self, path):
        return self.call("GET", path)

    def items(self, path):
        return self.get(path)["items"]

    def find(self, path):
        """The object, or None."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def create(self, path, body):
        return self.call("POST", path, body)

    def merge(self, path, body):
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path, grace_s=None):
        query = "" if grace_s is None else f"?gracePeriodSeconds={grace_s}"
        try:
            return self.call("DELETE", path + query)
        except ApiError as error:
            if error.code != 404:
                raise
            return None


def claim_template(name, device_class, memory=None, count=1):
    """A ResourceClaimTemplate for devices of a class, and for so much memory of a shared one."""
    exactly = {"deviceClassName": device_class, "count": count}
    if memory:
        exactly["capacity"] = {"requests": {"memory": memory}}
    requests = [{"name": "gpu", "exactly": exactly}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def pod(name, command, template=None, limits=None, image="localhost/cantle-test:1"):
    """A pod on the machine's own network with one container, which has what the claim template gives."""
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": command, "resources": {}}
    spec = {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
    }
    if template:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
        container["resources"]["claims"] = [{"name": "gpu"}]
    if limits:
        container["resources"]["limits"] = limits
    return {"metadata": {"name": name}, "spec": spec}


def node(name, labels=None):
    """A node that nobody runs: its pods get a place and stay pending there."""
    capacity = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "HandMade",
        "message": "test",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }
