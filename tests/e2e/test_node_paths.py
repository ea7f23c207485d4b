"""A stand-in for a node's pod: a mount namespace without some of the machine's files, and an API server that knows one node. The driver of a
node offers no GPU whose files its container engine would not find."""

import http.server
import json
import subprocess
import threading

import pytest

from conftest import CANTLE, wait_until

VERSION = dict.fromkeys(["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"], "")
ANSWERS = {
    "/version": VERSION | {"major": "1", "minor": "36", "gitVersion": "v1.36.2"},
    "/api/v1/nodes/box": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "box", "uid": "1"}},
}
SHARED = "/run/driver-files"


@pytest.fixture
def api(tmp_path):
    """Its kubeconfig, and the paths that it was asked for."""
    asked = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802  the base class names it
            path = self.path.split("?")[0]
            asked.append(path)
            body = json.dumps(ANSWERS.get(path, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})).encode()
            self.send_response(200 if path in ANSWERS else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    yield path, asked
    server.shutdown()


def in_pod(api, mounts):
    """The command that runs the driver in a mount namespace of its own; its parent is in the machine's, as a container's is in the engine's."""
    node = f"{CANTLE} controller --kubeconfig {api} node --node box --cdi-dir /run/cdi --kubelet-dir /run/kubelet --driver-files-dir {SHARED}"
    pod = f"mkdir -p {SHARED}; unshare --mount --propagation private sh -ec '{mounts}exec {node}'; exit $?"
    return ["timeout", "120", "sh", "-c", pod]


def test_files_that_only_the_pod_has_are_named_and_nothing_is_published(make_cantle, api):
    kubeconfig, asked = api
    cantle = make_cantle("1xA100-40GB")
    done = cantle.program(*in_pod(kubeconfig, f"mount -t tmpfs tmpfs {SHARED}; "))
    assert done.returncode == 7, done.stderr
    error = next(line for line in done.stderr.splitlines() if line.startswith("cantle: "))
    assert error.startswith("cantle: the node does not have what a pod with a slice gets: /run/driver-files/"), done.stderr
    assert "libcuda.so" in error and " more" in error and len(error) < 400
    assert "hint: give --driver-files-dir" in done.stderr
    assert not [path for path in asked if "resourceslices" in path]


def test_files_that_both_have_are_enough(make_cantle, api):
    kubeconfig, asked = api
    cantle = make_cantle("1xA100-40GB")
    with open(cantle.home / "driver.log", "wb") as log:
        driver = subprocess.Popen(cantle.machine.command(*in_pod(kubeconfig, "")), env=cantle.env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        published = lambda: any("resourceslices" in path for path in asked)  # noqa: E731
        wait_until(lambda: published() or driver.poll() is not None, 60, lambda: (asked, cantle.log("driver.log")))
        assert published(), (asked, cantle.log("driver.log"))
    finally:
        # Which ends what it has started.
        driver.terminate()
        driver.wait(timeout=60)
