"""Two nodes with kubelets, containerds and drivers of their own."""

import pytest

from test_pods import OUT_OF_MEMORY, Pods, used


@pytest.mark.dra("Two nodes with different GPUs")
def test_each_node_gives_what_it_has(plane, second_worker, start, namespace, templates):
    gives_what_it_has(Pods(plane.api, namespace), start("1xH100-80GB"), start("1xH100-80GB", on=second_worker))


def gives_what_it_has(pods, *drivers):
    """Two pods request a GPU each; then their GPUs are shared, and pods of one node do not count on the other."""
    nodes = {driver.node: driver for driver in drivers}
    place = lambda name: pods.get(name)["spec"]["nodeName"]
    for name in ["one", "two"]:
        pods.create(name, "whole", command=("sleep", "600"))
    for name in ["one", "two"]:
        pods.wait_running(name)
    assert {place("one"), place("two")} == set(nodes)
    assert [len(driver.leases()) for driver in nodes.values()] == [1, 1]

    freed = place("two")
    pods.delete("two")
    pods.create("half", "half")
    assert (pods.said("half")["total"], pods.said("half")["code"]) == (40 << 10, OUT_OF_MEMORY)
    assert place("half") == freed
    assert {name: bool(used(driver)) for name, driver in nodes.items()} == {place("one"): False, freed: True}
