"""Reads the expressions of Go source: composite literals, calls and constants, as far as tables of tests need them.

It is a reader of expressions, not of Go: statements are skipped. A name means the nearest assignment above its use (`name := …`, `name = …`)."""

import pathlib
import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:\\.|[^"\\])*"|`[^`]*`|'(?:\\.|[^'\\])+')
    |(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>:=|\.\.\.|<<|>>|&&|\|\||[=!<>]=|[-+*/%&|^<>=!:;,.(){}\[\]])""",
    re.VERBOSE | re.DOTALL,
)
OPERATORS = {"+", "-", "*", "/", "%", "|", "<<", ">>", "==", "!=", "<", ">", "&&", "||"}


class CannotRead(Exception):
    """The source has a form that this reader does not know."""


@dataclass
class Literal:
    """`Type{key: value, …}`. A key is None for an element of a list. A field's name is a Name, another key a value."""

    type: str
    items: list
    line: int = 0

    def fields(self):
        """Values by the names of fields, or by the keys of a map."""
        return {key.text if isinstance(key, Name) else key: value for key, value in self.items}

    def elements(self):
        return [value for _, value in self.items]


@dataclass
class Name:
    """A name or `package.Name`."""

    text: str
    at: int = 0


@dataclass
class Call:
    """`of(arguments)`; `of` is a Name, a Method, or another expression."""

    of: object
    arguments: list


@dataclass
class Method:
    """`.name` of what another expression gives."""

    of: object
    name: str


@dataclass
class Code:
    """A function in the middle of an expression: nothing that a table says."""

    line: int


@dataclass
class Operation:
    """`left mark right`."""

    mark: str
    left: object
    right: object


@dataclass
class Source:
    """The tokens of one file."""

    path: pathlib.Path
    tokens: list = field(default_factory=list)
    assigned: dict = field(default_factory=dict)

    def __post_init__(self):
        text, at, line = self.path.read_text(), 0, 1
        while at < len(text):
            found = TOKEN.match(text, at)
            if not found:
                raise CannotRead(f"{self.path.name}:{line}: unknown character {text[at]!r}")
            if found.lastgroup != "space":
                self.tokens.append((found.lastgroup, found.group(), line))
            line += found.group().count("\n")
            at = found.end()
        self.tokens.append(("end", "", line))
        for at, (kind, text, _) in enumerate(self.tokens[:-1]):
            follows, before = self.tokens[at + 1][1], self.tokens[at - 1][1] if at else ""
            if kind == "name" and follows in (":=", "=") and before not in (",", "."):
                self.assigned.setdefault(text, []).append(at + 2)

    def line(self, at):
        return self.tokens[at][2]

    def find(self, *texts):
        """Positions after these tokens, in the file's order."""
        words = [text for _, text, _ in self.tokens]
        return [at + len(texts) for at in range(len(words)) if tuple(words[at : at + len(texts)]) == texts]

    def value_of(self, name, before):
        """The expression last assigned to `name` above the token `before`; None if there is none."""
        found = [at for at in self.assigned.get(name, []) if at < before]
        return Reader(self, found[-1]).expression() if found else None

    def constants(self):
        """The numbers and texts that names are set to."""
        found = {}
        for name, places in self.assigned.items():
            kind, text, _ = self.tokens[places[-1]]
            if kind in ("number", "text"):
                found[name] = plain_token(kind, text)
        return found


def plain_token(kind, text):
    if kind == "number":
        text = text.replace("_", "")
        return int(text) if text.isdigit() else float(text)
    return text[1:-1] if text[0] == "`" else bytes(text[1:-1], "utf8").decode("unicode_escape")


class Reader:
    """A position in a source."""

    def __init__(self, source, at):
        self.source, self.at = source, at

    def peek(self, ahead=0):
        return self.source.tokens[self.at + ahead][1]

    def take(self, wanted=None):
        kind, text, line = self.source.tokens[self.at]
        if kind == "end" or (wanted is not None and text != wanted):
            raise CannotRead(f"{self.source.path.name}:{line}: {text!r} where {wanted!r} is expected")
        self.at += 1
        return text

    def expression(self):
        value = self.operand()
        while self.peek() in OPERATORS:
            mark = self.take()
            value = Operation(mark, value, self.operand())
        return value

    def operand(self):
        kind, text, line = self.source.tokens[self.at]
        if text in ("&", "*"):
            self.take()
            return self.operand()
        if text == "-":
            self.take()
            return Operation("-", 0, self.operand())
        if text == "!":
            self.take()
            return Operation("!", None, self.operand())
        if text == "(":
            self.take()
            value = self.expression()
            self.take(")")
        elif kind in ("number", "text"):
            self.take()
            value = plain_token(kind, text)
        elif text == "func":
            self.skip_to_body()
            self.skip_braces()
            value = Code(line)
        elif text in ("[", "map", "struct"):
            value = self.typed()
        elif kind == "name":
            value = Name(self.take(), self.at)
            while self.peek() == "." and self.source.tokens[self.at + 1][0] == "name":
                self.take()
                value.text += "." + self.take()
            if self.peek() == "{":
                value = self.literal(value.text)
        else:
            raise CannotRead(f"{self.source.path.name}:{line}: {text!r} begins no expression that is known")
        return self.suffixes(value)

    def suffixes(self, value):
        while self.peek() in ("(", ".", "["):
            mark = self.take()
            if mark == "(":
                value = Call(value, self.listed(")"))
            elif mark == "[":
                # A type argument or an index: a table says nothing with it.
                self.listed("]")
            else:
                value = Method(value, self.take())
        return value

    def listed(self, end):
        values = []
        while self.peek() != end:
            values.append(self.expression() if self.peek() not in ("[", "map") else self.operand())
            while self.peek() in (",", "...", ":"):
                self.take()
        self.take(end)
        return values

    def typed(self):
        """`[]T{…}`, `map[K]V{…}`, `struct{…}{…}`, or such a type with a value in parentheses."""
        start = self.at
        self.skip_type()
        name = "".join(text for _, text, _ in self.source.tokens[start : self.at])
        return self.literal(name) if self.peek() == "{" else Name(name, self.at)

    def skip_type(self):
        text = self.take()
        if text == "[":
            while self.take() != "]":
                pass
            self.skip_type()
        elif text == "map":
            self.take("[")
            self.skip_type()
            self.take("]")
            self.skip_type()
        elif text in ("*",):
            self.skip_type()
        elif text == "struct":
            self.skip_braces()
        elif text == "func":
            self.at -= 1
            self.skip_to_body()
        else:
            while self.peek() == ".":
                self.take()
                self.take()
            if self.peek() == "[":
                self.take()
                self.listed("]")

    def skip_to_body(self):
        self.take("func")
        depth = 0
        while not (depth == 0 and self.peek() == "{"):
            depth += {"(": 1, ")": -1}.get(self.take(), 0)

    def skip_braces(self):
        self.take("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.take(), 0)

    def literal(self, name):
        found = Literal(name, [], self.source.line(self.at))
        self.take("{")
        while self.peek() != "}":
            value = self.element()
            if self.peek() == ":":
                self.take()
                found.items.append((value, self.element()))
            else:
                found.items.append((None, value))
            if self.peek() == ",":
                self.take()
        self.take("}")
        return found

    def element(self):
        return self.literal("") if self.peek() == "{" else self.expression()
