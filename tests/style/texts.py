"""The texts that people read, out of the sources that hold them.

Each function returns the source with everything else blanked, so that a line of the result is the line of the source."""

import re

from pygments.lexers import get_lexer_for_filename
from pygments.token import Comment, String
from pygments.util import ClassNotFound

TESTS = "#[cfg(test)]\nmod tests {"
# A former name of a flag.
ALIAS = re.compile(r'\balias = "[^"]*"')
# A string, a template, and the text between two tags.
WEB_TEXT = re.compile(r'"[^"\n]*"|`[^`]*`|(?<=>)[^<>{}=;()]*[a-z]{2}[^<>{}=;()]*(?=[<{])')
RUST_COMMENT = re.compile(r"(\s*)//[/!]? ?(.*)")
# An item of a list, a row of a table and a heading begin a text.
ITEM = re.compile(r"(?:[*|#+-]|\d+\.) ")
CODE = re.compile(r"`[^`]+`")
WEB_COMMENT = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.S)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def lines(parts):
    return "\n".join(line.rstrip() for line in "".join(parts).split("\n"))


def tokens(source, lexer, wanted):
    return lines(text if wanted(kind) else blank(text) for _, kind, text in lexer.get_tokens_unprocessed(source))


def messages(path):
    """Strings of a Rust file without its tests: messages, reasons, log lines. Help texts are in docs/reference/cli.md."""
    source = ALIAS.sub(lambda match: blank(match[0]), path.read_text())
    return tokens(source.split(TESTS)[0], get_lexer_for_filename("a.rs"), lambda kind: kind in String and kind is not String.Doc)


def comments(path):
    """Comments of a chart, an example or a script."""
    name = "Dockerfile" if path.name == "Dockerfile" else path.name
    try:
        lexer = get_lexer_for_filename(name)
    except ClassNotFound:
        lexer = get_lexer_for_filename("a.sh")
    return tokens(path.read_text(), lexer, lambda kind: (kind in Comment and kind is not Comment.Preproc) or kind is String.Doc)


def rust_comments(path):
    """Comments of a Rust file, without code. A sentence may go over lines: all of a paragraph is on the line where it begins."""
    source = path.read_text()
    kept = tokens(source, get_lexer_for_filename("a.rs"), lambda kind: kind is Comment.Single or kind is String.Doc)
    found, at, fenced = [], None, False
    for line, whole in zip(kept.split("\n"), source.split("\n")):
        comment = RUST_COMMENT.fullmatch(line)
        text = comment[2].strip() if comment else ""
        fence = text.startswith("```")
        fenced = comment is not None and fenced != fence
        if fence or fenced or not text:
            at = None
        elif at is None or ITEM.match(text) or line.strip() != whole.strip():
            at = len(found)
        found.append("")
        if at is not None:
            found[at] = f"{found[at]} {text}".strip()
    return "\n".join(CODE.sub(lambda match: blank(match[0]), text) for text in found)


def web(path):
    """Strings and the text of elements."""
    source = WEB_COMMENT.sub(lambda match: blank(match[0]), path.read_text())
    kept, end = [], 0
    for match in WEB_TEXT.finditer(source):
        kept += [blank(source[end : match.start()]), match[0]]
        end = match.end()
    return lines([*kept, blank(source[end:])])


def plain(path):
    return path.read_text()
