"""Pods in a user namespace on the DRA path; user_namespaces.py says what stands in for a real node there."""

import pytest

import user_namespaces
from processes import wait_until
from test_documented_pods import held
from test_pods import pod, used
from test_pods import pods as pods

GIB = 1 << 30


@pytest.mark.dra("A pod in a user namespace (`hostUsers: false`), held by the limit")
def test_pods_in_a_user_namespace(pods, start, programs):
    user_namespaces.need_runtime(programs)
    driver = start("1xH100-80GB")

    def create(name, template):
        thing = pod(name, ["python3", "-c", user_namespaces.MAPPED_FILL], template)
        thing["spec"] |= user_namespaces.SPEC
        pods.api.create(pods.path, thing)
        return pods.said(name)

    plain = create("plain", None)
    assert plain["taken"] > 78 << 10, f"negative control: {plain}"
    pods.delete("plain")
    pods.wait_gone("plain")
    wait_until(lambda: used(driver) == 0, 60, driver.truth)

    held(create("half", "half"), 40 << 10)
    held(create("quarter", "quarter"), 20 << 10)
    (gpu,) = driver.truth()
    assert 58 * GIB < gpu["used_bytes"] <= 60 * GIB and len(gpu["processes"]) == 2
    for name in ("half", "quarter"):
        pods.delete(name)
        pods.wait_gone(name)
    wait_until(lambda: used(driver) == 0 and not driver.leases(), 60, driver.truth)
