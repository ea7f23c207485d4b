"""The notes of a release. GitHub's workflow itself is not run by any test."""

import sys

from conftest import ROOT

sys.path.insert(0, str(ROOT / "packaging"))

from notes import notes

CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n* new\n\n## 0.1.0\n\n* one\n* two\n\n## 0.0.9\n"


def test_a_release_has_its_own_part_of_the_changelog():
    assert notes(CHANGELOG, "0.1.0") == "* one\n* two"


def test_what_is_unreleased_or_empty_has_no_notes():
    assert notes(CHANGELOG, "0.2.0") is None
    assert notes(CHANGELOG, "0.0.9") is None
