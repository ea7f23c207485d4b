"""A pod asks for a share of a GPU's compute time by annotations, and has it on a real kubelet; or one line says why not."""

import urllib.request

import pytest

import shares
from api import ApiError
from injector import pod
from processes import free_ports, wait_until
from test_metrics import sample
from test_pods import Pods


@pytest.mark.dra("A share of compute time by annotation: weighed, lent while unused, capped, and never promised twice")
def test_shares_of_compute_hold(plane, start, injector, namespace):
    (port,) = free_ports(1)
    driver = start("1xA100-40GB", "--observe-listen", f"127.0.0.1:{port}")

    def value(name):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            # The driver omits what it can't read, and the share of a second in which the pod used nothing.
            found = sample(answer.read().decode(), f"cantle_driver_compute_{name}", namespace=namespace, pod="most")
            return found[0] if found else 0

    def metrics():
        wait_until(lambda: value("request_ratio") == 0.75, 60, lambda: value("request_ratio"))
        wait_until(lambda: 0.65 <= value("share_ratio") <= 0.85, 60, lambda: value("share_ratio"))
        wait_until(lambda: value("seconds_total") > 1 and value("wait_seconds_total") > 0, 60, lambda: value("seconds_total"))

    shares.shares_hold(Pods(plane.api, namespace), driver, metrics)


# As shares.py launches, for as long as a task of the test lives.
LAUNCH = ["python3", "-c", shares.LAUNCH]


def test_tasks_of_queues_have_their_share(make_queues, server, injector, start):
    driver = start("1xA100-40GB")
    quarter = {"labels": {"clearml-injector/fraction": "0.250"}}
    queues = make_queues({"queues": {"quarter": {"templateOverrides": quarter}, "none": {}}})
    asked = {"most": {"compute": "fair", "compute_request": "0.75"}, "rest": {"compute": "fair"}}
    tasks = {name: server.submit("quarter", *LAUNCH, name, cantle=words) for name, words in asked.items()}
    for task in tasks.values():
        wait_until(lambda: "total" in server.log_of(task), 240, lambda: server.message(task) + driver.log())
        assert server.log_of(task).split()[1] == str(10 << 10), "memory as its queue says"
    annotations = queues.pod_of(tasks["most"])["metadata"]["annotations"]
    assert annotations["cantle.dev/compute-request"] == "0.75"
    parts = []

    def divided():
        had = shares.had_by_words(driver, *tasks)
        parts.append(had)
        return 0.7 <= shares.part_of_first(had) <= 0.8

    wait_until(divided, 60, lambda: (parts, driver.log()))
    third = server.submit("quarter", "true", cantle={"compute": "strict"})
    wait_until(lambda: "waits" in server.message(third), 60, lambda: server.message(third))
    refused = server.submit("none", "true", cantle={"compute": "fair"})
    assert server.wait(refused) == "failed" and "asks cantle for no part of a GPU" in server.message(refused)
    assert server.status(third) != "completed", "0.75 and 0.25 are promised"
    for task in tasks.values():
        server.api("tasks.stop", task=task)
    assert server.wait(third) == "completed"
    wait_until(lambda: not driver.leases(), 60, driver.log)


def test_what_cannot_be_kept_is_refused_in_one_line(plane, injector, namespace):
    def refusal(annotations):
        with pytest.raises(ApiError) as refused:
            injector.dry_run(pod(annotations=annotations), namespace)
        (line,) = str(refused.value).strip().splitlines()
        return line

    assert 'compute-request is "0"; write a decimal above 0' in refusal(shares.annotations("0.5", "fair", request=0))
    assert "below the compute request, which is 0.5" in refusal(shares.annotations("0.5", "fair", limit=0.4))
    assert "a MIG instance has its own part" in refusal({"mig-profile": "1g.10gb", "cantle.dev/compute": "strict"})
    assert "asks cantle for no part of a GPU" in refusal({"cantle.dev/compute": "fair"})
    theirs = {"gpu-fraction": "0.5", "nvidia.com/container.main.gpu-compute.mode": "sm-sharing"}
    assert "for a share of compute time write cantle.dev/compute: fair" in refusal(theirs)
