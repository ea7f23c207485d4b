"""The drawings of the documentation are what docs/pictures/draw.py makes, their texts fit, and pages show them light and dark."""

import html
import re
import sys

import pytest

from conftest import ROOT, tracked

PICTURES = ROOT / "docs/pictures"
sys.path.insert(0, str(PICTURES))
import draw  # noqa: E402
import record  # noqa: E402

SHOWN = re.compile(r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)-dark\.svg">\s*<img alt="([^"]+)" src="([^"]+)-light\.svg">\s*</picture>')


def test_the_drawings_are_current():
    made = draw.pictures()
    assert len(made) == 2 * len(draw.DRAWINGS)
    stale = [name for name, content in made.items() if not (PICTURES / name).is_file() or (PICTURES / name).read_text() != content]
    assert stale == [], "run: docs/pictures/draw.py"


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_texts_fit_and_boxes_are_apart(name):
    _, width, height, things = draw.DRAWINGS[name]()
    boxes = [thing for thing in things if isinstance(thing, draw.Box)]
    for box in boxes:
        title, *rest = box.lines
        needed = max([draw.PER_CHARACTER * 1.1 * draw.FONT * len(title), *(draw.PER_CHARACTER * draw.SMALL * len(line) for line in rest)])
        assert needed <= box.width - 8, (title, needed)
        assert 0 < box.x and box.x + box.width < width and 0 < box.y and box.y + box.height < height, title
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            apart = one.x + one.width < other.x or other.x + other.width < one.x or one.y + one.height < other.y or other.y + other.height < one.y
            assert apart, (one.lines[0], other.lines[0])


def test_pages_show_each_drawing_light_and_dark():
    shown = set()
    for page in tracked("*.md"):
        text = (ROOT / page).read_text()
        found = SHOWN.findall(text)
        assert len(found) == text.count("<picture>"), page
        for dark, _, light in found:
            assert dark == light, page
            assert (ROOT / page.parent / f"{dark}-dark.svg").is_file() and (ROOT / page.parent / f"{light}-light.svg").is_file(), page
            shown.add(light.rsplit("/", 1)[1])
    assert {*draw.DRAWINGS, "session"} <= shown


def test_the_recorded_session_is_shown_as_it_was_printed():
    session = record.recorded()
    stale = [name for name, content in record.pictures(session).items() if (PICTURES / name).read_text() != content]
    assert stale == [], "run: docs/pictures/record.py"
    shown = [html.unescape(line) for line in re.findall(r"<text [^>]*>(.*)</text>", (PICTURES / "session-light.svg").read_text())]
    assert shown == [line for _, line in session]
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert commands == [command for command, _ in record.COMMANDS]
