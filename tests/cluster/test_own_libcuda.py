"""Pods with a claim whose image brings its own libcuda; test_classic.py has the same of the classic path."""

import pytest

import own_libcuda
from driver import Driver
from processes import wait_until
from test_documented_pods import Documented


@pytest.fixture
def with_old_driver(plane, worker, folder, make_node, injector, namespace):
    """A node whose driver is older than an image with its own libcuda, and its pods."""

    def with_old_driver(kind):
        node = make_node(kind, worker.name, own_libcuda.machine(worker, folder))
        wait_until(lambda: "registered with the kubelet" in node.log(), 60, node.log)
        return Documented(plane.api, namespace), node

    return with_old_driver


@pytest.mark.dra("An image with a newer libcuda of its own: the limit holds, and that libcuda is used")
def test_an_image_with_its_own_libcuda(with_old_driver):
    own_libcuda.held_with_its_own_libcuda(*with_old_driver(own_libcuda.CoveringDriver))


@pytest.mark.dra("Such an image on a node that cannot run cantle's program: the watchdog kills")
def test_a_node_that_covers_no_image(with_old_driver):
    own_libcuda.killed_past_its_slice(*with_old_driver(Driver))
