"""The injector's own certificate authority, renewed while pods are created."""

import concurrent.futures
import threading
import time

import pytest

from api import ApiError
from chart import NAMESPACE, PLACES
from injector import NAME, Injector, pod
from processes import wait_until


# Creations that are asked for; a busy machine may not have them.
PER_SECOND, THREADS = 100, 8
# Half of the time that the injector has for a renewal (below).
LATE_MAX_S = 3


def certificates(injector):
    return injector.program.log().count("a new certificate is in use")


def authorities(injector):
    return injector.program.log().count("a new certificate authority")


class Control:
    """Does what the injector does once a second, from here: how late is it at its worst, because of the machine alone?"""

    def __init__(self, api, stop):
        self.api, self.stop, self.late_s = api, stop, 0
        self.paths = [f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-ca", f"{PLACES['MutatingWebhookConfiguration']}/{NAME}"]

    def run(self):
        due = time.monotonic() + 1
        while not self.stop.wait(max(0, due - time.monotonic())):
            for path in self.paths:
                self.api.get(path)
            self.late_s = max(self.late_s, time.monotonic() - due)
            due = time.monotonic() + 1


def test_no_call_fails_while_certificates_change(plane, tmp_path_factory, request):
    """Authority and certificate live so shortly that both change several times while pods are created."""
    # Half of a certificate's life is left when it is renewed: a busy machine has that long to do it.
    lives = ["--ca-life", "60s", "--cert-life", "12s", "--ca-settle", "8s"]
    injector = Injector(plane, tmp_path_factory.mktemp("rotation"), *lives)
    # However it ends: no other test of this cluster could have an injector.
    request.addfinalizer(injector.remove)
    injector.start()
    stop, failures = threading.Event(), []
    control = Control(plane.api, stop)

    def create():
        count, due = 0, time.monotonic()
        while not stop.is_set():
            try:
                assert injector.dry_run(pod({"clearml-injector/fraction": "0.500"}))["spec"]["resourceClaims"]
            except (ApiError, OSError, AssertionError) as error:
                failures.append(repr(error))
            count += 1
            # What a busy machine has missed is not made up for: the renewal would have to compete with that.
            due = max(due + THREADS / PER_SECOND, time.monotonic())
            time.sleep(max(0, due - time.monotonic()))
        return count

    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(THREADS + 1) as threads:
        try:
            controlled = threads.submit(control.run)
            loops = [threads.submit(create) for _ in range(THREADS)]
            # The second authority is made after 40 s and signs 8 s later.
            wait_until(lambda: authorities(injector) >= 2, 120, injector.program.log)
            seen = certificates(injector)
            wait_until(lambda: certificates(injector) >= seen + 4, 120, injector.program.log)
        finally:
            stop.set()
        total = sum(loop.result() for loop in loops)
        controlled.result()
    elapsed = time.monotonic() - began
    print(f"{total} creations in {elapsed:.0f} s ({total / elapsed:.0f}/s), {certificates(injector)} certificates, {authorities(injector)} authorities, at most {control.late_s:.1f} s late")
    if failures and control.late_s > LATE_MAX_S:
        pytest.skip(f"not judged, {len(failures)} calls failed: the machine is so busy that two calls of the API server took {control.late_s:.1f} s")
    assert failures == [], failures[:3]
