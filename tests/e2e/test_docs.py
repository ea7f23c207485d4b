"""The documentation holds together: links lead somewhere, to the very heading; the site has every page."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")
# The link from a page of the site, which has only `docs`, to a source file.
SOURCE = "https://github.com/cantle-dev/cantle/blob/main/"
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def pages():
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "changes").glob("*.md")]


def prose(page):
    """A page without its listings: in those, brackets are no links and a hash begins no heading."""
    return FENCE.sub("", page.read_text())


def anchors(page):
    """The anchor of a heading, as GitHub and mdBook make it."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.M)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def target(page, file):
    if file.startswith(SOURCE):
        return ROOT / file.removeprefix(SOURCE)
    # A fragment becomes a part of CHANGELOG.md.
    is_fragment = page.parent == ROOT / "changes" and page.name != "README.md"
    return (ROOT if is_fragment else page.parent) / file


def links():
    found = [(page, *link) for page in pages() for link in LINK.findall(prose(page))]
    found = [link for link in found if ":" not in link[1] or link[1].startswith(SOURCE)]
    assert len(found) > 50 and any(anchor for _, _, anchor in found), "the pattern finds links"
    return found


def test_links_lead_somewhere():
    broken = [f"{page.relative_to(ROOT)}: {file}" for page, file, _ in links() if not target(page, file).exists()]
    assert broken == []


def test_the_site_needs_nothing_outside():
    ours = [(page, target(page, file).resolve(), file) for page, file, _ in links() if page.is_relative_to(DOCS)]
    outside = [f"{page.relative_to(ROOT)}: {file}" for page, to, file in ours if not to.is_relative_to(DOCS) and ":" not in file]
    assert outside == []


def test_links_to_a_heading_find_it():
    broken = [
        f"{page.relative_to(ROOT)}: {file}{anchor}"
        for page, file, anchor in links()
        if anchor and anchor[1:] not in anchors(target(page, file) if file else page)
    ]
    assert broken == []


def test_the_site_has_every_page_once():
    listed = [file for file, _ in LINK.findall((DOCS / "SUMMARY.md").read_text())]
    assert sorted(set(listed)) == sorted(listed)
    missing = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - set(listed) - {"SUMMARY.md"}
    assert missing == set()


def test_the_table_of_container_modes_is_what_the_suite_found():
    spec = importlib.util.spec_from_file_location("modes", ROOT / "tests/docker/modes.py")
    modes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(modes)
    page = modes.PAGE.read_text()
    assert page == modes.page_with(page, modes.results()), "tests/docker/modes.py write"
