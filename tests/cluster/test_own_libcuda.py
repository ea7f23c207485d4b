"""A pod with a claim whose image brings its own libcuda; test_classic.py has the same of the classic path."""

import pytest

import own_libcuda
from processes import wait_until
from test_documented_pods import Documented


@pytest.mark.dra("An image with a newer libcuda of its own: the limit holds, and that libcuda is used")
def test_an_image_with_its_own_libcuda(plane, worker, folder, make_node, injector, namespace):
    node = make_node(own_libcuda.CoveringDriver, worker.name, own_libcuda.machine(worker, folder))
    wait_until(lambda: "registered with the kubelet" in node.log(), 60, node.log)
    own_libcuda.held_with_its_own_libcuda(Documented(plane.api, namespace), node)
