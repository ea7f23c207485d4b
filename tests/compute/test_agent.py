"""Shares of tasks from a queue: the agent is the arbiter."""

import base64
import json
import os
import re
import subprocess
import time
import urllib.request

import pytest
from tenants import CANTLE, own_port


class Submitted:
    """A task of the queue, found by its command line."""

    def __init__(self, words):
        self.words = words

    def pids(self):
        return {int(pid) for pid in subprocess.run(["pgrep", "-f", self.words], capture_output=True, text=True).stdout.split()}


@pytest.fixture
def served(box, tmp_path):
    """A server with an agent on the machine; how to call cantle there."""
    port = own_port()
    env = {**os.environ, "HOME": str(tmp_path), "CANTLE_SERVER": f"http://127.0.0.1:{port}"}
    up = subprocess.Popen(
        box.command(CANTLE, "up", "--listen", f"127.0.0.1:{port}"), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def cantle(*words):
        return subprocess.run(box.command(CANTLE, *words), env=env, capture_output=True, text=True)

    def metrics():
        [keys] = json.loads(cantle("credentials", "-o", "json").stdout)["items"]
        pair = base64.b64encode(f"{keys['access_key']}:{keys['secret_key']}".encode()).decode()
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Basic {pair}"})
        with urllib.request.urlopen(asked) as answer:
            return answer.read().decode()

    cantle.metrics = metrics
    until = time.monotonic() + 60
    while cantle("queues").returncode != 0:
        assert time.monotonic() < until, "no server"
        time.sleep(0.5)
    yield cantle
    up.terminate()
    up.wait(timeout=60)


def test_tasks_of_a_queue_have_their_shares(box, served):
    submitted = []
    for gpu, us in [("0.2", 201), ("0.8", 202)]:
        words = [box.load, "async", us, 3600]
        done = served("submit", "--gpu", gpu, "--compute", "fair", "--", *words)
        assert done.returncode == 0, done.stderr
        submitted.append(Submitted(" ".join(map(str, words))))
    until = time.monotonic() + 60
    while len(box.machine.truth()[0]["processes"]) < 2:
        assert time.monotonic() < until, served("tasks").stdout
        time.sleep(0.5)
    box.had(submitted, 1)
    box.eventually(lambda shares, _: shares[0] == pytest.approx(0.2, abs=0.05), submitted)
    until = time.monotonic() + 60
    while True:
        [gpu] = json.loads(served("gpus", "-o", "json").stdout)["items"]
        of = {s["milli"]: s["compute"] for s in gpu["slices"]}
        if of.keys() == {200, 800} and all(compute["share_ppm"] is not None for compute in of.values()):
            break
        assert time.monotonic() < until, gpu
        time.sleep(1)
    assert sum(compute["share_ppm"] for compute in of.values()) == pytest.approx(1_000_000, abs=1000)
    assert of[200]["gate_wait_us"] > 0 and of[200]["mode"] == "fair"
    assert "fair 0.2, had 0." in served("gpus", "-o", "wide").stdout and "fair 0.8, had 0." in served("top", "--once").stdout
    metrics = re.findall(r"^cantle_slice_compute_(\w+){.*} (\S+)$", served.metrics(), re.MULTILINE)
    assert sorted(value for name, value in metrics if name == "request_ratio") == ["0.2", "0.8"]
    assert sum(float(value) for name, value in metrics if name == "share_ratio") == pytest.approx(1, abs=0.01)
    assert max(float(value) for name, value in metrics if name == "wait_seconds_total") > 0


def test_a_task_that_asks_for_what_cannot_be_is_refused(served):
    done = served("submit", "--gpu", "0.25", "--compute", "strict", "--compute-limit", "0.1", "--", "true")
    assert done.returncode == 2 and "means that the limit is the request" in done.stderr
