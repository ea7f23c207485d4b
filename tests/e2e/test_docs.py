"""The documentation holds together: links lead somewhere, to the very heading; the site has every page."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def pages():
    return [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md"))]


def prose(page):
    """A page without its listings: in those, brackets are no links and a hash begins no heading."""
    return FENCE.sub("", page.read_text())


def anchors(page):
    """What a heading can be reached by, as GitHub and mdBook make it."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(page), re.M)
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links():
    found = [(page, *link) for page in pages() for link in LINK.findall(prose(page)) if ":" not in link[0]]
    assert len(found) > 50 and any(anchor for _, _, anchor in found), "the pattern finds links"
    return found


def test_links_lead_somewhere():
    broken = [f"{page.relative_to(ROOT)}: {file}" for page, file, _ in links() if not (page.parent / file).exists()]
    assert broken == []


def test_links_to_a_heading_find_it():
    broken = [
        f"{page.relative_to(ROOT)}: {file}{anchor}"
        for page, file, anchor in links()
        if anchor and anchor[1:] not in anchors((page.parent / file) if file else page)
    ]
    assert broken == []


def test_the_site_has_every_page_once():
    listed = [file for file, _ in LINK.findall((DOCS / "SUMMARY.md").read_text())]
    assert sorted(set(listed)) == sorted(listed)
    missing = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - set(listed) - {"SUMMARY.md"}
    assert missing == set()
