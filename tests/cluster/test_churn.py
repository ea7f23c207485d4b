"""Pods that come and go at random on eight GPUs, half a minute of them (ten in `make soak`), and what must hold at
every instant meanwhile. The oracle tries every place of every GPU; the witness is the driver's own list of instances."""

import collections
import json
import os
import random
import time

import pytest

from api import RESOURCE
from processes import wait_until
from test_pods import Pods

# Of one there are 81,558 MiB to share.
GPUS, GIB = 8, 79
SECONDS = float(os.environ.get("CANTLE_TEST_CHURN_S", "30"))
# A pod that nothing blocks has to be placed soon. The short form runs with other work on two cores.
PENDING_MAX_S = float(os.environ.get("CANTLE_TEST_PENDING_S", "60"))
ALIVE_MAX = 24
# Of an H100: units, and where an instance of that size may begin.
PROFILES = {"1g.10gb": (1, range(7)), "2g.20gb": (2, (0, 2, 4)), "3g.40gb": (4, (0, 4)), "7g.80gb": (8, (0,))}
WISHES = ["1g.10gb"] * 4 + ["2g.20gb"] * 3 + ["3g.40gb"] * 2 + ["7g.80gb"] + ["quarter"] * 2 + ["half"]
SHARES = {"quarter": 20, "half": 40}


class Churn:
    def __init__(self, pods, driver):
        self.pods, self.driver, self.random = pods, driver, random.Random(8)
        self.claims = f"{RESOURCE}/namespaces/{pods.path.split('/')[4]}/resourceclaims"
        self.alive, self.ending, self.feasible_since, self.made = {}, set(), {}, 0
        self.longest_s, self.started = 0.0, set()

    def arrive(self):
        wish = self.random.choice(WISHES)
        name = f"p{self.made}"
        self.made += 1
        share = wish in SHARES
        limits = None if share else {f"nvidia.com/mig-{wish}": "1"}
        self.pods.create(name, wish if share else None, limits, command=("sleep", "3600"))
        self.alive[name] = wish

    def leave(self, running):
        staying = sorted(set(running) - self.ending)
        if staying:
            name = self.random.choice(staying)
            self.ending.add(name)
            self.pods.delete(name)

    def look(self):
        """One instant as the API server has it: pods, and which pod has which allocation."""
        pods = {pod["metadata"]["name"]: pod for pod in self.pods.api.items(self.pods.path)}
        for name in self.ending - set(pods):
            self.ending.discard(name)
            del self.alive[name]
        held = {}
        for claim in self.pods.api.items(self.claims):
            owner = claim["metadata"].get("ownerReferences", [{}])[0].get("name")
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", []):
                held[owner] = result
        return pods, held

    def check(self):
        """All that must hold at this instant; gives the pods."""
        pods, held = self.look()
        self.check_pods(pods)
        self.check_pending(pods, held)
        check_node(self.driver)
        return pods

    def check_pods(self, pods):
        for name, pod in pods.items():
            restarts = [status["restartCount"] for status in pod["status"].get("containerStatuses", [])]
            assert not any(restarts), f"{name} was restarted"
            assert pod["status"]["phase"] != "Failed" or name in self.ending, (name, pod["status"])

    def check_pending(self, pods, held):
        """The pods that wait although they would fit, with their waiting times."""
        now, occupied = time.monotonic(), occupation(held)
        waiting = {name for name in pods if name not in held and name not in self.ending}
        feasible = {name for name in waiting if has_place(self.alive[name], occupied)}
        self.feasible_since = {name: self.feasible_since.get(name, now) for name in feasible}
        waited = {name: now - since for name, since in self.feasible_since.items()}
        self.longest_s = max([self.longest_s, *waited.values()])
        late = {name: (self.alive[name], waited[name]) for name in waited if waited[name] > PENDING_MAX_S}
        assert not late, f"there is room, and they wait: {late}; {occupied}"


def check_node(driver):
    """No overlap, and never a share and an instance on one GPU."""
    before = slices_of(driver)
    truth = {gpu["uuid"]: gpu["mig"] for gpu in driver.truth()}
    after = slices_of(driver)
    # As it was before the witness was asked, of what was still there afterwards: so all of it was there at once.
    lasting = [slice for name, slices in before.items() if name in after for slice in slices]
    by_gpu = collections.defaultdict(list)
    for slice in lasting:
        by_gpu[slice["gpu"]].append(slice)
    for gpu, slices in by_gpu.items():
        parts = [slice["mig"] for slice in slices if slice.get("mig")]
        assert len(parts) in (0, len(slices)), f"a share and an instance at once: {slices}"
        if not parts:
            assert not truth[gpu], f"shares on a GPU with instances: {truth[gpu]}"
            assert sum(slice["memory_limit_bytes"] for slice in slices) < (GIB + 1) << 30
        units = [unit for part in parts for unit in range(part["start"], part["start"] + part["size"])]
        assert len(units) == len(set(units)), f"an overlap: {parts}"
        real = {instance["uuid"]: instance["start"] for instance in truth[gpu]}
        assert all(real.get(part["uuid"]) == part["start"] for part in parts if part["uuid"]), (parts, truth[gpu])


def slices_of(driver):
    """Slices by lease. One whose pod has just ended may be gone between list and look."""
    found = {}
    for path in driver.leases():
        try:
            found[path.name] = json.loads(path.read_text())["slices"]
        except FileNotFoundError:
            continue
    return found


def occupation(held):
    """By GPU: the units that are taken, and the GiB that shares have."""
    units, shared = collections.defaultdict(set), collections.Counter()
    for result in held.values():
        # gpu-3-shared, gpu-3-mig-1g-10gb-6
        _, gpu, kind, *place = result["device"].split("-")
        if kind == "shared":
            shared[int(gpu)] += int(result["consumedCapacity"]["memory"].removesuffix("Gi"))
        else:
            size, start = PROFILES[f"{place[0]}.{place[1]}"][0], int(place[2])
            units[int(gpu)] |= set(range(start, start + size))
    return units, shared


def has_place(wish, occupied):
    """Tries every place of every GPU."""
    units, shared = occupied
    if wish in SHARES:
        return any(not units[gpu] and shared[gpu] + SHARES[wish] <= GIB for gpu in range(GPUS))
    size, starts = PROFILES[wish]
    fits = lambda gpu, start: not shared[gpu] and not units[gpu] & set(range(start, start + size))
    return any(fits(gpu, start) for gpu in range(GPUS) for start in starts)


@pytest.mark.dra("Shares and instances come and go on one GPU")
def test_nothing_overlaps_and_nobody_waits_in_vain(start, plane, namespace, templates):
    driver = start(f"{GPUS}xH100-80GB:mig")
    churn = Churn(Pods(plane.api, namespace), driver)
    began = time.monotonic()
    elapsed = lambda: time.monotonic() - began
    # Longer where a busy machine starts pods slowly: what counts is how many have come and gone.
    while elapsed() < SECONDS or (len(churn.started) <= SECONDS / 4 and elapsed() < 10 * SECONDS):
        pods = churn.check()
        running = [name for name, pod in pods.items() if pod["status"]["phase"] == "Running"]
        churn.started |= set(running)
        full = len(churn.alive) >= ALIVE_MAX
        if not full:
            churn.arrive()
        if full or len(running) > ALIVE_MAX // 2:
            churn.leave(running)
    # Nobody comes any more: who has room gets it now, or has waited for too long.
    while churn.check() and churn.feasible_since:
        time.sleep(0.1)
    print(f"{len(churn.started)} of {churn.made} pods ran in {elapsed():.0f} s; longest wait in spite of room: {churn.longest_s:.1f} s")
    assert len(churn.started) > SECONDS / 4, "hardly anything happened"
    for name in set(churn.alive) - churn.ending:
        churn.pods.delete(name)
    wait_until(lambda: not driver.leases(), 240, driver.log)
