"""Runs the prose linter Vale, as tests/style/run.sh builds it, with the rules of `.vale.ini`."""

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Finding(NamedTuple):
    file: str
    line: int
    rule: str
    match: str
    message: str


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()]


def finding(file, each):
    # A sentence after empty lines begins with them, for Vale.
    match = each["Match"].lstrip()
    line = each["Line"] + each["Match"].removesuffix(match).count("\n")
    return Finding(file, line, each["Check"].removeprefix("cantle."), match, each["Message"])


@pytest.fixture(scope="session")
def lint():
    """The findings of Vale in files below a directory."""
    program = os.environ.get("VALE", "")
    if not os.access(program, os.X_OK):
        pytest.skip("no Vale: tests/style/run.sh builds it where there is Go and a module proxy")

    def lint(directory, files):
        command = [program, "--config", ROOT / ".vale.ini", "--output=JSON", "--no-exit", "--", *files]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr or done.stdout
        found = json.loads(done.stdout)
        return [finding(file, each) for file in sorted(found) for each in found[file]]

    return lint


@pytest.fixture
def texts(tmp_path):
    """Writes what `extract` finds in tracked files to a directory, for the linter."""

    def texts(extract, files):
        for file in files:
            copy = tmp_path / f"{file}.txt"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(extract(ROOT / file))
        return tmp_path, [f"{file}.txt" for file in files]

    return texts
