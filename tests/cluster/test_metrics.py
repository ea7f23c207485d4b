"""A node driver's metrics about the pods on its node: real pods on a real kubelet, scraped as Prometheus does it."""

import re
import urllib.request

import pytest

from processes import free_ports, wait_until
from test_pods import GIB, OUT_OF_MEMORY, Pods


def sample(text, name, **labels):
    """Value of the one sample that has these labels, and all of its labels; None if there is none."""
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    read = [(dict(re.findall(r'(\w+)="([^"]*)"', line)), float(line.split()[-1])) for line in lines]
    matching = [(value, all_of) for all_of, value in read if labels.items() <= all_of.items()]
    assert len(matching) < 2, matching
    return matching[0] if matching else None


@pytest.mark.dra("Metrics of each pod")
def test_use_limit_and_refusals_of_each_pod(start, plane, namespace, templates):
    (port,) = free_ports(1)
    driver = start("1xA100-80GB", "--observe-listen", f"127.0.0.1:{port}")
    each_pod_is_measured(Pods(plane.api, namespace), namespace, driver, port)


def each_pod_is_measured(pods, namespace, driver, port):
    pods.create("half", "half")
    # It takes all that it gets, in steps of 256 MiB.
    half = pods.said("half")
    assert half["code"] == OUT_OF_MEMORY

    def scrape():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()

    def of_pod(pod, name):
        """Of one scrape. A driver that can't read something at the moment omits it."""
        return sample(scrape(), f"cantle_driver_{name}", namespace=namespace, pod=pod)

    wait_until(lambda: (found := of_pod("half", "refused_allocations_total")) and found[0] >= 1, 60, scrape)
    named = lambda: (found := of_pod("half", "memory_limit_bytes")) and found[1]["container"] == "main" and found
    limit, labels = wait_until(named, 60, scrape)
    used, _ = wait_until(lambda: of_pod("half", "memory_used_bytes"), 60, scrape)
    assert limit == 40 * GIB and used <= limit
    # The outside witness.
    (gpu,) = driver.truth()
    assert used == gpu["used_bytes"], (used, gpu)
    assert (labels["gpu"], labels["UUID"], labels["Hostname"]) == ("0", gpu["uuid"], driver.node)
    # Negative control: a pod that takes nothing uses nothing, and is refused nothing.
    pods.create("idle", "quarter", command=("sleep", "600"))
    pods.wait_running("idle")
    for name in ("memory_used_bytes", "refused_allocations_total"):
        value, _ = wait_until(lambda: of_pod("idle", name), 60, scrape)
        assert value == 0, name
