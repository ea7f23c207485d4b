"""Shares of compute time hold for all behavior of the tenants. Bounds are wider than those of tests/bench/compute.py."""

import pytest

MIXES = {"1:1": ["0.5", "0.5"], "1:3": ["0.25", "0.75"], "1:9": ["0.1", "0.9"], "1:1:2:4": ["0.125", "0.125", "0.25", "0.5"]}


def error(shares, weights):
    whole = sum(weights)
    return max(abs(share - weight / whole) for share, weight in zip(shares, weights)) * 100


@pytest.mark.parametrize("us", [20, 200, 5000])
@pytest.mark.parametrize("mix", MIXES)
def test_weights_hold(box, mix, us):
    tenants = [box.tenant(gpu, "async", us) for gpu in MIXES[mix]]
    box.had(tenants, 1)
    weights = [float(gpu) for gpu in MIXES[mix]]
    box.eventually(lambda shares, busy: error(shares, weights) <= 5 and busy >= 0.8, tenants)


def test_even_does_not_weigh(box):
    """The negative control: the driver divides by contexts."""
    tenants = [box.tenant(gpu, "async", 200, compute="even") for gpu in ("0.1", "0.9")]
    box.had(tenants, 0.5)
    box.eventually(lambda shares, _: shares == pytest.approx([0.5, 0.5], abs=0.03), tenants, seconds=2)


@pytest.mark.parametrize("compute, expected", [("fair", 0.5), ("even", 0.2)])
def test_processes_do_not_count(box, compute, expected):
    one, four = box.tenant("0.5", "async", 200, compute=compute), box.tenant("0.5", "async", 200, compute=compute, copies=4)
    box.had([one, four], 0.5)
    box.eventually(lambda shares, _: shares[0] == pytest.approx(expected, abs=0.05), [one, four])


@pytest.mark.parametrize("mode, us, number", [("graph", 50, 1), ("async", 200, 8), ("threads", 200, 4), ("change", 100, 1), ("extended", 200, 1)])
def test_any_way_to_launch_is_weighed(box, mode, us, number):
    tenants = [box.tenant("0.25", mode, us, number=number), box.tenant("0.75", "async", 200)]
    box.had(tenants, 1)
    least = 0.15 if mode == "change" else 0.20
    box.eventually(lambda shares, _: least <= shares[0] <= 0.30, tenants)


@pytest.mark.parametrize("mode", ["sync", "event"])
def test_a_synchronization_per_launch_is_weighed(box, mode):
    """In granted time: of its turns the tenant itself leaves a part unused."""
    tenants = [box.tenant("0.5", mode, 1000), box.tenant("0.5", "async", 1000)]
    box.had(tenants, 1)
    box.eventually(lambda shares, _: shares[0] >= 0.3, tenants)


def test_what_nobody_else_uses_is_lent(box):
    busy, idle = box.tenant("0.1", "async", 200), box.tenant("0.9", "burst", 10, number=1)
    box.had([busy], 0.5)
    box.eventually(lambda _, part: part >= 0.95, [busy])
    assert idle.process.poll() is None


def test_strict_alone_gets_its_limit(box):
    strict = box.tenant("0.3", "async", 200, compute="strict")
    box.had([strict], 1)
    box.eventually(lambda _, part: part == pytest.approx(0.3, abs=0.02), [strict])


def test_a_limit_above_the_request(box):
    """It may have more than its request where others leave it, and no more than its limit."""
    fair = box.tenant("0.2", "async", 200, more=["--compute-limit", "0.6"])
    box.had([fair], 1)
    box.eventually(lambda _, part: part == pytest.approx(0.6, abs=0.04), [fair])


def test_long_kernels_pay_back(box):
    tenants = [box.tenant("0.1", "async", 40000), box.tenant("0.9", "async", 40000)]
    box.had(tenants, 1)
    box.eventually(lambda shares, _: shares[0] == pytest.approx(0.1, abs=0.05), tenants, seconds=6)


def test_a_persistent_kernel_stops_nobody(box):
    box.tenant("0.5", "persistent", 1)
    other = box.tenant("0.5", "async", 200)
    box.had([other], 2)
    box.eventually(lambda _, part: part >= 0.4, [other], seconds=2)
