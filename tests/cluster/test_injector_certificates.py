"""The injector's own certificate authority, renewed while pods are created."""

import concurrent.futures
import threading
import time

from api import ApiError
from injector import Injector, pod
from processes import wait_until


# Creations that are asked for; a busy machine may not have them.
PER_SECOND, THREADS = 100, 8


def certificates(injector):
    return injector.program.log().count("a new certificate is in use")


def authorities(injector):
    return injector.program.log().count("a new certificate authority")


def test_no_call_fails_while_certificates_change(plane, tmp_path_factory, request):
    """Authority and certificate live so shortly that both change several times while pods are created."""
    # Half of a certificate's life is left when it is renewed: a busy machine has that long to do it.
    lives = ["--ca-life", "60s", "--cert-life", "12s", "--ca-settle", "8s"]
    injector = Injector(plane, tmp_path_factory.mktemp("rotation"), *lives)
    # However it ends: no other test of this cluster could have an injector.
    request.addfinalizer(injector.remove)
    injector.start()
    stop, failures = threading.Event(), []

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
    with concurrent.futures.ThreadPoolExecutor(THREADS) as threads:
        try:
            loops = [threads.submit(create) for _ in range(THREADS)]
            # The second authority is made after 40 s and signs 8 s later.
            wait_until(lambda: authorities(injector) >= 2, 120, injector.program.log)
            seen = certificates(injector)
            wait_until(lambda: certificates(injector) >= seen + 4, 120, injector.program.log)
        finally:
            stop.set()
        total = sum(loop.result() for loop in loops)
    elapsed = time.monotonic() - began
    print(f"{total} creations in {elapsed:.0f} s ({total / elapsed:.0f}/s), {certificates(injector)} certificates, {authorities(injector)} authorities")
    assert failures == [], failures[:3]
