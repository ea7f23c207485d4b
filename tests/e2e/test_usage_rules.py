"""The recording rules of usage, evaluated by a real Prometheus that scrapes a server with running tasks."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from conftest import FILL, wait_until

RULES = Path(__file__).parents[2] / "docs/prometheus/usage.rules.yaml"
OPENCOST = RULES.with_name("opencost.rules.yaml")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("promtool"), reason="Prometheus is not installed"),
]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def prometheus(tmp_path):
    started = []

    def start(target, keys):
        port = free_port()
        rules = tmp_path / "usage.rules.yaml"
        # Evaluated as often as it scrapes: the test does not wait for minutes.
        rules.write_text(RULES.read_text().replace("interval: 1m", "interval: 1s"))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [
                {
                    "job_name": "cantle",
                    "basic_auth": {"username": keys["access_key"], "password": keys["secret_key"]},
                    "static_configs": [{"targets": [target]}],
                }
            ],
        }
        # JSON is YAML, too.
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}"]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(tmp_path / "log").open("w")))

        def query(promql):
            url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(promql)}"
            try:
                with urllib.request.urlopen(url, timeout=10) as response:
                    found = json.load(response)["data"]["result"]
            except OSError:
                return {}
            name = lambda metric: metric.get("project", metric.get("Hostname", ""))
            return {name(one["metric"]): float(one["value"][1]) for one in found}

        return query

    yield start
    for process in started:
        process.terminate()
        process.wait(20)


def test_promtool_accepts_the_rules():
    done = subprocess.run(["promtool", "check", "rules", RULES, OPENCOST], capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_the_rules_say_what_the_report_says(make_cantle, prometheus):
    box = make_cantle("2xA100-40GB")
    box.up("--queue", "half=0.5")
    (keys,) = box.json("credentials")
    box.cli("budget", "set", "vision", "--gpu-hours", 2)
    for project in ("vision", "vision", "speech"):
        task = box.submit("half", *FILL, "--hold", "600", flags=("--project", project))
        box.wait_state(task, "in_progress")
    query = prometheus(urllib.parse.urlparse(keys["url"]).netloc, keys)
    allocated = "project:cantle_gpus_allocated:sum"
    wait_until(lambda: query(allocated) == {"vision": 1, "speech": 0.5}, 60, lambda: query(allocated))
    assert sum(query("Hostname:cantle_gpus_free:sum").values()) == 0.5
    # The programs fill their slices.
    wait_until(lambda: query("project:cantle_memory_used:ratio").get("vision", 0) > 0.9, 60, lambda: query("project:cantle_memory_used:ratio"))
    assert query("cantle_project_budget_gpu_seconds") == {"vision": 7200}

    # One GPU for ten seconds: Prometheus extends an increase to the edges of its time, so compare the counter itself.
    seconds = lambda: query("cantle_project_gpu_seconds_total")["vision"]
    first, at = seconds(), time.monotonic()
    time.sleep(10)
    grown, passed = seconds() - first, time.monotonic() - at
    assert passed - 3 <= grown <= passed + 3, (grown, passed)
    report = json.loads(box.cli("-o", "json", "usage", "--by", "project").stdout)["items"]
    (line,) = [line for line in report if line.get("project") == "vision"]
    assert abs(line["gpu_seconds"] - seconds()) <= 5
    hours = query("project:cantle_gpu_hours:increase1h")
    assert hours["vision"] > hours["speech"] > 0, hours


def test_opencost_is_given_the_gpus_of_slices(tmp_path):
    """A pod with half a GPU, one with parts of two GPUs of another node, and an instance whose container is not known yet."""
    gib = 1 << 30

    def gpu(uuid, node, size, mode="shared"):
        labels = f'gpu="0",UUID="{uuid}",modelName="A100",Hostname="{node}",mode="{mode}"'
        return {"series": f"cantle_driver_gpu_memory_bytes{{{labels}}}", "values": f"{size * gib}x10"}

    def limit(uuid, node, pod, size, container="main"):
        labels = f'gpu="0",UUID="{uuid}",modelName="A100",Hostname="{node}",GPU_I_PROFILE="",namespace="team",pod="{pod}",container="{container}"'
        return {"series": f"cantle_driver_memory_limit_bytes{{{labels}}}", "values": f"{size * gib}x10"}

    def sample(node, pod, value):
        return {"labels": f'container_gpu_allocation{{namespace="team",pod="{pod}",container="main",node="{node}"}}', "value": value}

    # The first GPU changes its mode: for a moment there are two series of it.
    gpus = [gpu("GPU-a", "n1", 40), gpu("GPU-a", "n1", 40, "idle"), gpu("GPU-b", "n2", 80), gpu("GPU-c", "n2", 40)]
    limits = [limit("GPU-a", "n1", "half", 20), limit("GPU-b", "n2", "two", 80), limit("GPU-c", "n2", "two", 10), limit("GPU-c", "n2", "new", 10, container="")]
    expected = [sample("n1", "half", 0.5), sample("n2", "two", 1.25)]
    evaluated = {"expr": "container_gpu_allocation", "eval_time": "5m", "exp_samples": expected}
    test = {"rule_files": [str(OPENCOST)], "evaluation_interval": "1m", "tests": [{"interval": "1m", "input_series": gpus + limits, "promql_expr_test": [evaluated]}]}
    (tmp_path / "test.yml").write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
