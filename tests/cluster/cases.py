"""The table of docs/kubernetes.md that says what was tested on which path, from the marks of the tests.

    python3 tests/cluster/cases.py        # writes it into the page
"""

import ast
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/kubernetes.md"
PATHS = ("dra", "classic")
# Cases without a test because they do not exist.
ABSENT = {
    ("A pod of higher priority preempts", "classic"): "not supported",
    ("A quota of the namespace allows no more claims", "classic"): "has no claims",
    ("NVIDIA's device plugin assigns other GPUs of the node", "dra"): "not supported",
}
PLACE = re.compile(r"(<!-- cases -->\n).*?(<!-- end of cases -->)", re.DOTALL)


def marked():
    """Cases, each with the test of a path that shows it."""
    found = {}
    for path in sorted(HERE.glob("test_*.py")):
        functions = (each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef))
        for test in functions:
            for mark in test.decorator_list:
                name = getattr(getattr(mark, "func", None), "attr", None)
                if name in PATHS:
                    for case in mark.args:
                        found.setdefault(case.value, {}).setdefault(name, path.name)
    return found


def table():
    def cell(case, tests, path):
        return f"`{tests[path]}`" if path in tests else ABSENT.get((case, path), "not tested")

    rows = [f"| {case} | {' | '.join(cell(case, tests, path) for path in PATHS)} |" for case, tests in sorted(marked().items())]
    return "\n".join(["| case | DRA path | classic path |", "|---|---|---|", *rows, ""])


def page():
    """The page as it has to be."""
    return PLACE.sub(lambda place: place.group(1) + table() + place.group(2), PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
