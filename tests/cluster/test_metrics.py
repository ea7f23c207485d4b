"""A node driver's metrics about the pods on its node: real pods on a real kubelet, scraped as Prometheus does it."""

import re
import urllib.request

import pytest

from processes import free_ports, wait_until
from test_pods import GIB, OUT_OF_MEMORY, Pods


def sample(text, name, **labels):
    """Value of the one sample that has these labels, and all of its labels."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    read = [(dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.split()[-1])) for line in lines]
    ((found, value),) = [(all_of, value) for all_of, value in read if labels.items() <= all_of.items()]
    return value, found


@pytest.mark.dra("Metrics of each pod")
def test_use_limit_and_refusals_of_each_pod(start, plane, namespace, templates):
    (port,) = free_ports(1)
    driver = start("1xA100-80GB", "--observe-listen", f"127.0.0.1:{port}")
    pods = Pods(plane.api, namespace)
    pods.create("half", "half")
    # It takes all that it gets, in steps of 256 MiB.
    half = pods.said("half")
    assert half["code"] == OUT_OF_MEMORY

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    of_pod = {"namespace": namespace, "pod": "half"}
    refused = lambda: sample(scrape(), "cantle_driver_refused_allocations_total", **of_pod)[0]
    wait_until(lambda: refused() >= 1, 30, scrape)
    container = lambda: sample(scrape(), "cantle_driver_memory_limit_bytes", **of_pod)[1]["container"]
    wait_until(lambda: container() == "main", 30, scrape)
    limit, labels = sample(scrape(), "cantle_driver_memory_limit_bytes", **of_pod)
    used, _ = sample(scrape(), "cantle_driver_memory_used_bytes", **of_pod)
    assert limit == 40 * GIB and used <= limit
    # The outside witness.
    (gpu,) = driver.truth()
    assert used == gpu["used_bytes"], (used, gpu)
    uuid = driver.devices()["gpu-0-shared"]["attributes"]["uuid"]["string"]
    assert (labels["gpu"], labels["UUID"], labels["Hostname"]) == ("0", uuid, driver.node)
    # Negative control: a pod that takes nothing uses nothing, and is refused nothing.
    pods.create("idle", "quarter", command=("sleep", "600"))
    pods.wait_running("idle")
    of_pod = {"namespace": namespace, "pod": "idle"}
    assert [sample(scrape(), f"cantle_driver_{name}", **of_pod)[0] for name in ("memory_used_bytes", "refused_allocations_total")] == [0, 0]
