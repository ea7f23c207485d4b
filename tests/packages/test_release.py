"""The changelog and the notes of a release, and the site of its documentation. GitHub's workflow itself is not run by any test."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "packaging"))

import changelog
from notes import notes
from site_of_versions import add

CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n* new\n\n## 0.1.0\n\n* one\n* two\n\n## 0.0.9\n"


def test_a_release_has_its_own_part_of_the_changelog():
    assert notes(CHANGELOG, "0.1.0") == "* one\n* two"


def test_what_is_unreleased_or_empty_has_no_notes():
    assert notes(CHANGELOG, "0.2.0") is None
    assert notes(CHANGELOG, "0.0.9") is None


def test_a_version_with_its_date_has_notes():
    dated = CHANGELOG.replace("0.1.0", "0.1.0 (2026-12-24)")
    assert notes(dated, "0.1.0") == "* one\n* two"
    assert notes(dated, "0.1") is None


@pytest.fixture
def tree(tmp_path):
    """A repository with a changelog and the named fragments."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *words], cwd=tmp_path, check=True, capture_output=True)

    def tree(**fragments):
        (tmp_path / "changes").mkdir()
        (tmp_path / "changes/README.md").write_text("# Fragments\n")
        (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
        for name, text in fragments.items():
            (tmp_path / f"changes/{name.replace('__', '.')}.md").write_text(text)
        git("init", "--quiet")
        git("add", "--all")
        git("commit", "--quiet", "--message", "tests: begin")
        return tmp_path

    return tree


def test_fragments_become_the_part_of_a_version(tree):
    root = tree(zebra__added="a zebra\n", b__fixed="a fault\nof two lines\n", ant__added="an ant", old__removed="old", c__changed="c\n")
    assert changelog.main(["0.3.0", "2026-12-24"], root) == 0
    text = (root / "CHANGELOG.md").read_text()
    new = "### Added\n\n* an ant\n* a zebra\n\n### Changed\n\n* c\n\n### Fixed\n\n* a fault\n  of two lines\n\n### Removed\n\n* old"
    assert text == CHANGELOG.replace("## 0.2.0", f"## 0.3.0 (2026-12-24)\n\n{new}\n\n## 0.2.0")
    assert notes(text, "0.3.0") == new
    assert notes(text, "0.1.0") == "* one\n* two"
    assert [path.name for path in (root / "changes").iterdir()] == ["README.md"]
    deleted = subprocess.run(["git", "diff", "--cached", "--name-status"], cwd=root, capture_output=True, text=True, check=True).stdout.split()
    assert deleted[::2] == ["D"] * 5


@pytest.mark.parametrize(
    ("version", "fragments", "why"),
    [
        ("0.3.0", {"a__new": "a"}, "a.new.md: a fragment is named SHORT-NAME.KIND.md"),
        ("0.3.0", {"a": "a"}, "a.md: a fragment is named SHORT-NAME.KIND.md"),
        ("0.3.0", {"a__added": "a", "b__fixed": " \n"}, "b.fixed.md is empty"),
        ("0.1.0", {"a__added": "a"}, "CHANGELOG.md has version 0.1.0 already"),
        ("0.2.0", {"a__added": "a"}, "CHANGELOG.md has version 0.2.0 already"),
        ("0.3.0", {}, "there are no fragments in changes/"),
        ("v0.3.0", {"a__added": "a"}, "'v0.3.0' is no version"),
    ],
)
def test_what_cannot_be_released_is_refused_and_changes_nothing(tree, capsys, version, fragments, why):
    root = tree(**fragments)
    assert changelog.main([version, "2026-12-24"], root) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"changelog: {why}") and err.count("\n") == 1
    assert subprocess.run(["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=True).stdout == ""


def test_a_fragment_that_is_not_committed_is_kept(tree, capsys):
    root = tree(a__added="a")
    (root / "changes/b.fixed.md").write_text("b")
    assert changelog.main(["0.3.0", "2026-12-24"], root) == 2
    assert "commit the fragments first: " in capsys.readouterr().err
    assert (root / "CHANGELOG.md").read_text() == CHANGELOG
    assert sorted(path.name for path in (root / "changes").iterdir()) == ["README.md", "a.added.md", "b.fixed.md"]


def test_without_a_version_it_prints_its_usage(tree, capsys):
    assert changelog.main([], tree()) == 2
    assert capsys.readouterr().err == "changelog: usage: changelog.py VERSION [DATE]\n"


def test_the_fragments_of_this_repository_are_right():
    if any(path.name != "README.md" for path in (ROOT / "changes").iterdir()):
        changelog.fragments(ROOT / "changes")


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
