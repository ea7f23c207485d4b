"""kube-scheduler counts an allocation twice while it waits for the API server's answer to it: a pod that it tries meanwhile finds
no capacity, and nothing tells kube-scheduler to try it again within five minutes. The injector sees that there is capacity."""

import time

import pytest

from api import RESOURCE
from injector import pod
from processes import Program, wait_until
from slow_answers import SlowAnswers

LABEL = "clearml-injector/fraction"
# The time in which the second pod comes, and is tried.
LATE = 3


@pytest.fixture
def slow_scheduler(plane, programs, tmp_path):
    """kube-scheduler as it is, with answers that are late."""
    usual = plane.others[1]
    usual.stop()
    way = SlowAnswers(plane, "scheduler", LATE)
    config = way.kubeconfig(tmp_path / "slow.kubeconfig")
    flags = [f"--kubeconfig={config}", "--bind-address=127.0.0.1", "--secure-port=0", "--leader-elect=false"]
    program = Program("slow-scheduler", tmp_path, [programs / "kube-scheduler", *flags]).start()
    yield way
    program.stop()
    way.close()
    usual.start()


def test_a_pod_that_was_tried_too_early_has_its_place_at_once(plane, hand_made, make_driver, injector, namespace, slow_scheduler):
    driver = make_driver(hand_made, "1xA100-40GB")
    wait_until(driver.published, 60, "the devices")
    path = f"/api/v1/namespaces/{namespace}/pods"
    claims = lambda: plane.api.items(f"{RESOURCE}/namespaces/{namespace}/resourceclaims")
    seen = lambda name: plane.api.get(f"{path}/{name}")
    create = lambda name: plane.api.create(path, pod({LABEL: "0.500"}, name=name))
    create("first")
    wait_until(lambda: any(claim.get("status", {}).get("allocation") for claim in claims()), 60, claims)
    assert not seen("first")["spec"].get("nodeName"), "the answer is late"
    create("second")
    missed = lambda: [each for each in seen("second")["status"].get("conditions", []) if each.get("reason") == "Unschedulable"]
    wait_until(missed, LATE, lambda: seen("second")["status"])
    waits = 'cantle_webhook_waiting_gpus{cause="room",slice="cantle-fraction-5000",product=""} 0.5'
    wait_until(lambda: waits in injector.observe("/metrics"), 5, lambda: injector.observe("/metrics"))
    began = time.monotonic()
    wait_until(lambda: seen("second")["spec"].get("nodeName"), 60, lambda: f"{seen('second')['status']}\n{injector.program.log()[-2000:]}")
    print(f"\nplaced {time.monotonic() - began:.1f} s after it was missed")
    assert seen("first")["spec"]["nodeName"] and slow_scheduler.late >= 2
    again = [line for line in injector.program.log().splitlines() if "kube-scheduler does not try its pod again" in line]
    assert len(again) == 1, again
    seen_now = lambda: injector.observe("/metrics")
    wait_until(lambda: "cantle_webhook_waiting_gpus{" not in seen_now(), 10, seen_now)
    for line in ['cantle_webhook_claims_replaced_total{cause="missed"} 1', 'cantle_webhook_nominations_total{answer="withdrawn"} 1', "cantle_webhook_leader 1"]:
        assert line in seen_now().splitlines(), seen_now()
