"""What all suites have in common: an end that cleans up, the names of the tests that failed, and the second run of those that watch a clock.

`cargo xtask test` sets $CANTLE_TEST_FAILURES, the file for the names, and for a second run $CANTLE_TEST_ONLY, the same file: the tests that it
does not name are left out."""

import os
import pathlib
import signal

import pytest

# A suite that takes too long is ended by it: as Ctrl-C does, fixtures end what they have started, and pytest prints where it was.
signal.signal(signal.SIGTERM, signal.default_int_handler)

ONLY = os.environ.get("CANTLE_TEST_ONLY")


def pytest_runtest_logreport(report):
    failures = os.environ.get("CANTLE_TEST_FAILURES")
    if report.failed and failures:
        with open(failures, "a") as names:
            print(report.nodeid, file=names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        # NVIDIA's own program, which tests/setup.sh fetches.
        if "nvidia_smi" in item.fixturenames:
            item.add_marker(pytest.mark.full)
    if ONLY:
        names = set(pathlib.Path(ONLY).read_text().splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = [item for item in items if item.nodeid in names]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    # Of several sessions of one suite, one may have nothing to run again.
    if ONLY and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
