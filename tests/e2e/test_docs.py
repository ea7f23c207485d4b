"""The documentation holds together: links lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


def pages():
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def test_links_lead_somewhere():
    links = [(page, link) for page in pages() for link in LINK.findall(page.read_text()) if ":" not in link]
    assert len(links) > 30, "the pattern finds links"
    broken = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert broken == []


def test_the_site_has_no_page_twice():
    listed = LINK.findall((DOCS / "SUMMARY.md").read_text())
    assert len(listed) > 10 and sorted(set(listed)) == sorted(listed)
