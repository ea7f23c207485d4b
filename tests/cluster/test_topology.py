"""Several whole GPUs of a pod are those that NVLink joins, if there are as many free. The node is hand-made; kube-scheduler is as it is."""

import pytest

from api import RESOURCE
from injector import pod
from processes import wait_until

LABEL = "clearml-injector/fraction"


@pytest.fixture
def given(plane, hand_made, make_driver, injector, namespace):
    """Starts the driver of a machine, and gives the indices of the GPUs that pods get, one pod after the other."""

    def given(gpus, *requests):
        driver = make_driver(hand_made, gpus)
        devices = {name: device["attributes"] for name, device in driver.devices().items()}
        claims = f"{RESOURCE}/namespaces/{namespace}/resourceclaims"
        found = []
        for at, request in enumerate(requests):
            created = plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod({LABEL: request}, name=f"p{at}"))
            of_pod = lambda: [
                claim["status"]["allocation"]["devices"]["results"]
                for claim in plane.api.items(claims)
                if claim["metadata"]["ownerReferences"][0]["uid"] == created["metadata"]["uid"] and claim.get("status", {}).get("allocation")
            ]
            (results,) = wait_until(of_pod, 60, lambda: plane.api.items(claims))
            found.append({devices[result["device"]]["index"]["int"] for result in results})
        return found

    return given


def test_two_gpus_are_those_of_a_bridge(given):
    # One GPU is taken: the pair 0 and 1 is broken, and stays for a pod that needs one.
    one, two, last = given("4xA40-48GB,topology=nvlink-bridge", "1", "2", "1")
    assert (one, two, last) == ({0}, {2, 3}, {1})


def test_more_gpus_than_are_joined_are_any(given):
    one, three = given("4xA40-48GB,topology=nvlink-bridge", "1", "3")
    assert (one, three) == ({0}, {1, 2, 3})


def test_without_connections_the_first_ones_are_taken(given):
    one, two = given("4xA40-48GB,topology=unknown", "1", "2")
    assert (one, two) == ({0}, {1, 2})
