"""A server with TLS that takes tokens of the cluster in place of keys: of a job, and of the queues' controller."""

import json
import os
import subprocess

import pytest

import chart
import rights
from chart import NAMESPACE
from processes import wait_until
from queues import CANTLE, NAME, Server

AUDIENCE = "cantle"
# The task's program calls the server, with the authority that its environment names.
CALL = """
import os, ssl, urllib.request
context = ssl.create_default_context(cafile=os.environ["REQUESTS_CA_BUNDLE"])
print("healthy", urllib.request.urlopen(os.environ["CLEARML_API_HOST"] + "/healthz", context=context).status)
"""


def token_of(api, namespace, account, audience=AUDIENCE):
    asked = {"spec": {"audiences": [audience], "expirationSeconds": 3600}}
    return api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", asked)["status"]["token"]


@pytest.fixture
def reviewer(plane):
    """The server's own account, with the rights that the chart gives it."""
    of_server = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    things = [thing for thing in chart.rendered(rights.SERVER) if thing["metadata"]["name"] == "cantle-server" and thing["kind"] in of_server]
    chart.create(plane.api, things)
    yield things
    for path in (f"{chart.place(thing)}/{thing['metadata']['name']}" for thing in things):
        if plane.api.find(path):
            plane.api.delete(path)


@pytest.fixture
def server(plane, reviewer, tmp_path):
    """In place of the one with plain HTTP: with TLS, from the cluster's own authority."""
    crt, key = plane.certificates.crt, plane.certificates.key
    own = tmp_path / "own.token"
    # For the API server itself: its default audience.
    asked = plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/cantle-server/token", {"spec": {}})
    own.write_text(asked["status"]["token"])
    tls = ["--tls-cert", crt("apiserver"), "--tls-key", key("apiserver"), "--tls-client-ca", crt("ca")]
    cluster = ["--kubernetes-api", plane.certificates.url, "--kubernetes-ca", crt("ca"), "--kubernetes-token-file", own]
    flags = [*tls, "--kubernetes-tokens", AUDIENCE, *cluster]
    server = Server(tmp_path, *flags, ca=crt("ca"))
    yield server
    server.close()


@pytest.fixture
def as_account(server, plane, tmp_path):
    """`cantle` with a token in a file and nothing else."""

    def run(token, *words):
        file = tmp_path / "token"
        file.write_text(token)
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
        flags = ["--server", server.url, "--ca", plane.certificates.crt("ca"), "--token-file", file, "--state", tmp_path / "none"]
        done = subprocess.run([CANTLE, *map(str, flags), *words], env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_service_account_is_a_user(plane, server, reviewer, as_account, namespace):
    server.api("queues.create", name="default")
    api, account = plane.api, f"/api/v1/namespaces/{namespace}/serviceaccounts"
    for name in ["ci", "gone"]:
        api.create(account, {"metadata": {"name": name}})
    token = token_of(api, namespace, "ci")
    submit = ["submit", "--queue", "default", "--project", "P", "--", "true"]
    server.api("cantle.set_quota", project="P", quota={"gpu": {"deserved": 1000, "weight": 1}})

    # The rights of the server's account are new: for a moment it may not review tokens.
    wait_until(lambda: "does not review tokens" not in as_account(token, *submit)[1], 60, "the right to review tokens")
    code, said = as_account(token, *submit)
    assert code == 4 and f"system:serviceaccount:{namespace}:ci" in said, f"known, and without rights: {said}"
    server.api("cantle.set_role", who=f"group:system:serviceaccounts:{namespace}", role="member", project="P")
    code, said = as_account(token, *submit)
    assert code == 0, said
    (task,) = server.api("tasks.get_all", only_fields=["id", "user"])["tasks"]
    users = {each["id"]: each["name"] for each in server.api("cantle.get_users")["users"]}
    assert users[task["user"]] == f"system:serviceaccount:{namespace}:ci"

    for other in [token_of(api, namespace, "ci", "another"), token[:-8] + "AAAAAAAA"]:
        code, said = as_account(other, "tasks")
        assert code == 4 and "refuses the token" in said, said
    gone = token_of(api, namespace, "gone")
    assert as_account(gone, "tasks")[0] == 0
    api.delete(f"{account}/gone")
    wait_until(lambda: as_account(gone, "tasks")[0] == 4, 120, "an account that is gone has a token that is none")
    # Without the right to review, the server takes no token that it does not know.
    api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cantle-server")
    other = token_of(api, namespace, "default")
    wait_until(lambda: "does not review tokens" in as_account(other, "tasks")[1], 60, lambda: as_account(other, "tasks")[1])


def test_the_controller_needs_no_keys(plane, server, make_queues, namespace):
    server.api("queues.create", name="plain")
    who = f"system:serviceaccount:{NAMESPACE}:{NAME}"
    server.api("cantle.add_user", name="queues", role="agent", node=NAME, kubernetes=who)
    authority = {"ca.crt": plane.certificates.crt("ca").read_text()}
    for where in [NAMESPACE, namespace]:
        plane.api.create(f"/api/v1/namespaces/{where}/configmaps", {"metadata": {"name": "authorities"}, "data": authority})
    files = plane.certificates
    shown = {"tls.crt": files.crt("scheduler").read_text(), "tls.key": files.key("scheduler").read_text()}
    secret = {"metadata": {"name": "shown"}, "type": "kubernetes.io/tls", "stringData": shown}
    plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    base = {
        "volumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "volumeMounts": [{"name": "authorities", "mountPath": "/authorities", "readOnly": True}],
        "env": [{"name": "REQUESTS_CA_BUNDLE", "value": "/authorities/ca.crt"}],
    }
    glue = {"createQueueIfNotExists": False, "queues": {"plain": {}}, "basePodTemplate": base}
    try:
        # The negative control.
        distrusting = make_queues(glue, tokenAudience=AUDIENCE, is_awaited=False)
        wait_until(lambda: "does not trust" in distrusting.log(), 90, distrusting.log)
        distrusting.remove()
        make_queues.made.remove(distrusting)
        trusting = {"tokenAudience": AUDIENCE, "caConfigMap": "authorities"}
        anonymous = make_queues(glue, **trusting)
        wait_until(lambda: "certificate" in anonymous.log(), 60, anonymous.log)
        anonymous.remove()
        make_queues.made.remove(anonymous)
        queues = make_queues(glue, **trusting, clientTlsSecret="shown")
        (controller,) = queues.controllers()
        assert "CLEARML_API_SECRET_KEY" not in json.dumps(controller)
        task = server.submit("plain", "python3", "-c", CALL)
        assert server.wait(task) == "completed", queues.log()
        wait_until(lambda: "healthy 200" in server.log_of(task), 60, lambda: server.log_of(task))
    finally:
        for where in [NAMESPACE, namespace]:
            plane.api.delete(f"/api/v1/namespaces/{where}/configmaps/authorities")
        plane.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/shown")
