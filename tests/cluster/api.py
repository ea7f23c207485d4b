"""The API server, spoken to over plain HTTPS: JSON in, JSON out."""

import copy
import http.client
import json
import select
import ssl
import threading
import urllib.parse

RESOURCE = "/apis/resource.k8s.io/v1"
# ClearML's label for nodes whose GPUs serve MIG instances.
PARTITIONED = {"cdmo.clear.ml/gpu-partitioning": "mig"}


class ApiError(Exception):
    """An answer that is no success: `code` and what the server says."""

    def __init__(self, code, status):
        super().__init__(f"{code}: {status.get('message', status)}")
        self.code, self.status = code, status


class Api:
    def __init__(self, url, ca, certificate, key):
        self.address, self.ca, self.headers = urllib.parse.urlsplit(url).netloc, ca, {}
        # Each thread keeps a connection: to make one takes longer than most requests.
        self.connections = threading.local()
        self.context = ssl.create_default_context(cafile=str(ca))
        self.context.load_cert_chain(str(certificate), str(key))

    def with_token(self, token):
        """The same server for the owner of a token."""
        other = copy.copy(self)
        other.context = ssl.create_default_context(cafile=str(self.ca))
        other.headers, other.connections = {"Authorization": f"Bearer {token}"}, threading.local()
        return other

    def call(self, method, path, body=None, kind="application/json", timeout=60):
        data = None if body is None else json.dumps(body).encode()
        code, text = self.exchange(method, path, data, {"Content-Type": kind, **self.headers}, timeout)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.decode(errors="replace")
        if code >= 300:
            raise ApiError(code, answer if isinstance(answer, dict) else {"message": answer})
        return answer

    def exchange(self, method, path, data, headers, timeout):
        connection = getattr(self.connections, "kept", None)
        if connection is not None and connection.sock is not None and is_closed(connection.sock):
            connection.close()
        if connection is None:
            connection = http.client.HTTPSConnection(self.address, context=self.context)
        self.connections.kept, connection.timeout = connection, timeout
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            self.connections.warnings = answer.headers.get_all("Warning", [])
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionError(f"no answer to {method} {path}: {error}") from error

    def warnings(self):
        """The warnings of the last answer; kubectl prints them."""
        return self.connections.warnings

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


def is_closed(sock):
    """Between two requests nothing comes but the end of the connection."""
    return bool(select.select([sock], [], [], 0)[0])


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
    """A node without a kubelet: its pods are placed and stay pending there."""
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
