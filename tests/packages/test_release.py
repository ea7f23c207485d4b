"""The notes of a release, and the site of its documentation. GitHub's workflow itself is not run by any test."""

import re
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "packaging"))

from notes import notes
from site_of_versions import add

CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n* new\n\n## 0.1.0\n\n* one\n* two\n\n## 0.0.9\n"


def test_a_release_has_its_own_part_of_the_changelog():
    assert notes(CHANGELOG, "0.1.0") == "* one\n* two"


def test_what_is_unreleased_or_empty_has_no_notes():
    assert notes(CHANGELOG, "0.2.0") is None
    assert notes(CHANGELOG, "0.0.9") is None


def test_the_site_lists_the_newest_version_first(tmp_path):
    book, site = tmp_path / "book", tmp_path / "site"
    book.mkdir()
    for version in ["0.9.1", "0.10.0", "0.10.0-rc.1", "0.9.1"]:
        (book / "index.html").write_text(version)
        add(book, site, version)
    assert re.findall(r'href="([^"]+)/"', (site / "index.html").read_text()) == ["0.10.0", "0.10.0-rc.1", "0.9.1"]
    assert (site / "0.10.0/index.html").read_text() == "0.10.0"


def test_what_is_no_version_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="'latest' is no version"):
        add(tmp_path, tmp_path / "site", "latest")
    assert not (tmp_path / "site").exists()
