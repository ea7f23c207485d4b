"""Documentation, messages, comments and web texts follow docs/STYLE.md, as far as a program can tell."""

import re
from pathlib import Path

import pytest
import yaml

import texts as extract
from conftest import ROOT, tracked

# Vale is built with Go.
pytestmark = pytest.mark.full
RULES = sorted((ROOT / "tests/style/rules/cantle").glob("*.yml"))
EXAMPLES = ROOT / "tests/style/examples"


def shown(findings):
    return [f"{found.file.removesuffix('.txt')}:{found.line}: {found.message}" for found in findings]


def assert_none(findings):
    assert not findings, "\n" + "\n".join(shown(findings))


def test_documentation(lint):
    pages = tracked("*.md")
    assert len(pages) > 40
    assert_none(lint(ROOT, pages))


def test_messages_and_log_lines(lint, texts):
    sources = [file for file in tracked("crates/*/src/*.rs") if "tests" not in file.parts and file.name != "tests.rs"]
    assert len(sources) > 200
    assert_none(lint(*texts(extract.messages, sources)))


def test_comments(lint, texts):
    """Comments and documentation of items, tests included."""
    sources = tracked("crates/*.rs", "xtask/*.rs")
    assert len(sources) > 700
    assert_none(lint(*texts(extract.rust_comments, sources)))


def test_web_texts(lint, texts):
    assert_none(lint(*texts(extract.web, tracked("ui/src/*.ts", "ui/src/*.tsx", "ui/index.html"))))


def test_chart_examples_and_images(lint, texts):
    files = [file for file in tracked("charts", "examples", "images") if file.suffix not in {".md", ".txt", ".json"}]
    assert len(files) > 20
    assert_none(lint(*texts(extract.comments, files)))


def test_notes_of_the_chart(lint, texts):
    assert_none(lint(*texts(extract.plain, tracked("charts/*/NOTES.txt"))))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.stem)
def test_each_rule_finds_its_example(lint, tmp_path, rule):
    """Each line of the rule's example is one finding of that rule, and of no other."""
    sentences = (EXAMPLES / f"{rule.stem}.txt").read_text().splitlines()
    page = tmp_path / "page.md"
    page.write_text("\n\n".join(sentences))
    findings = lint(tmp_path, [page.name])
    assert [(found.line, found.rule) for found in findings] == [(2 * at + 1, rule.stem) for at in range(len(sentences))], shown(findings)


def test_each_word_has_an_example():
    swap = yaml.safe_load((ROOT / "tests/style/rules/cantle/Words.yml").read_text())["swap"]
    examples = (EXAMPLES / "Words.txt").read_text()
    assert [word for word in swap if not re.search(rf"\b(?:{word})\b", examples, re.I)] == []


def test_what_the_style_guide_recommends_is_not_found(lint, tmp_path):
    """The quoted sentences of docs/STYLE.md before the word "not"."""
    good = re.findall(r'Write "([^"]+)"', (ROOT / "docs/STYLE.md").read_text())
    assert len(good) >= 1
    (tmp_path / "page.md").write_text("\n\n".join(f"{sentence}." for sentence in good))
    assert_none(lint(tmp_path, ["page.md"]))


BAD = {
    "a.rs": (extract.messages, 'fn f() {\n    // told\n    warn!("the GPU can\'t be used");\n}\n#[cfg(test)]\nmod tests {\n    const A: &str = "told";\n}\n'),
    "b.rs": (extract.rust_comments, 'const A: &str = "// told";\n\n/// The GPU\n/// can\'t be `told`.\nfn f() {} // one line\n'),
    "a.tsx": (extract.web, "// told\nexport const A = () => (\n  <p>The GPU can't be used</p>\n);\n"),
    "a.ts": (extract.web, "/* told\n */\nconst a = `the GPU can't be used`;\n"),
    "a.yaml": (extract.comments, "a: told\n\n# The GPU can't be used\n"),
    "Dockerfile": (extract.comments, "FROM told\n\n# The GPU can't be used\n"),
    "a.py": (extract.comments, 'told = 1\n\n"""The GPU can\'t be used."""\n'),
}


def test_a_sentence_over_lines_is_found_in_comments(lint, tmp_path):
    """On the line where its paragraph begins. A list item and code are texts of their own."""
    comment = "//! A page.\n//!\n//! It counts so\n//! many GPUs:\n//! * `so many`\n//! ```\n//! told\n//! ```\n\n// What is\n// here ends.\n"
    (tmp_path / "a.rs").write_text(comment)
    (tmp_path / "found.txt").write_text(extract.rust_comments(tmp_path / "a.rs"))
    assert [(found.line, found.rule) for found in lint(tmp_path, ["found.txt"])] == [(3, "Words"), (10, "Subject")]


@pytest.mark.parametrize("name", BAD)
def test_texts_are_found_in_sources(lint, tmp_path, name):
    """The text on line 3 is one that users read; "told" is not."""
    function, source = BAD[name]
    (tmp_path / name).write_text(source)
    (tmp_path / "found.txt").write_text(function(Path(tmp_path / name)))
    assert [(found.line, found.rule) for found in lint(tmp_path, ["found.txt"])] == [(3, "Contractions")]
