"""Queues of a cluster whose injector does not see them. A file of its own, because an injector stays for all tests of a file."""

import time

from processes import wait_until
from queues import Witness
from test_queues import FRACTIONS


def test_no_pod_starts_without_the_slice_that_it_asks_for(make_queues, server, start, plane, namespace):
    """No injector sees this namespace: the pod would have all GPUs of its node."""
    start("2xA100-40GB")
    queues = make_queues(FRACTIONS)
    with Witness(queues) as witness:
        task = server.submit("default0500", "sh", "-c", "echo it ran")
        wait_until(lambda: "was made without one" in server.message(task), 60, lambda: server.message(task) + queues.log())
        # It is tried again after five seconds.
        time.sleep(7)
    assert witness.most == 0, "no pod was ever let go"
    assert server.status(task) == "queued" and "it ran" not in server.log_of(task)
    assert f"does not see namespace {namespace}" in server.message(task)
    events = plane.api.items(f"/api/v1/namespaces/{namespace}/events")
    assert any(event["reason"] == "NoSlice" and event["type"] == "Warning" for event in events), events
    # Negative control: one that asks for nothing runs in the same namespace.
    assert server.wait(server.submit("plain", "true")) == "completed"
