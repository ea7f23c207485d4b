"""A pod with a claim whose image is of musl; test_classic.py has the same of the classic path."""

import pytest

import musl
from own_libcuda import CoveringDriver
from processes import wait_until
from test_pods import Pods


@pytest.mark.dra("An image with musl and without glibc (Alpine) is refused at its start, with the reason")
def test_an_image_of_musl_is_refused_with_the_reason(plane, worker, make_node, injector, namespace, tmp_path):
    musl.load_image(worker, tmp_path)
    node = make_node(CoveringDriver, worker.name, worker.with_gpus("1xA100-40GB"))
    wait_until(lambda: "registered with the kubelet" in node.log(), 60, node.log)
    musl.refused_with_the_reason(Pods(plane.api, namespace))
