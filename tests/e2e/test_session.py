"""The recorded terminal session of the README is what its commands print, apart from the ids and the ages of tasks."""

import os
import re
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "docs/pictures"))
import record  # noqa: E402


def lasting(session):
    """Without what differs each time: ids, ages and times."""
    return [re.sub(r"\b\d+s\b", "TIME", re.sub(r"\b[0-9a-f]{32}\b", "ID", line)) for _, line in session]


@pytest.mark.skipif(os.geteuid() != 0, reason="a network of its own needs root")
def test_the_recorded_session_is_what_is_printed():
    assert lasting(record.run()) == lasting(record.recorded())
