"""The messages of cantle for bad input, so that a change of words is visible in review. messages.txt has the commands with
their output. After an intended change: CANTLE_TEST_WRITE_MESSAGES=yes, then read the difference."""

import os
import re

import pytest

from conftest import CANTLE, ROOT

FILE = ROOT / "tests/e2e/messages.txt"
HEADER = """\
# What cantle prints on bad input (tests/e2e/test_messages.py): the command, its stderr, its exit code. Nothing is printed to stdout.
# Each line says what is wrong and what was given. The line, or a hint, says what would be right.
"""
# The beginning of the part of the file, and the programs that are started before it.
PARTS = {"On a machine with three simulated GPUs, without a server": None, "With a server, and an agent on GPU 0 and 1": ["--queue", "dual_gpus=2", "half_gpu=0.5", "--gpus", "0-1", "--worker-name", "first"]}


def commands():
    """The commands of each part of the file."""
    parts = re.split(r"^== (.+) ==$", FILE.read_text(), flags=re.M)[1:]
    return {title: re.findall(r"^\$ (.+)$", text, re.M) for title, text in zip(parts[::2], parts[1::2])}


def printed(cantle, command, directory):
    env = cantle.env | {"PATH": f"{CANTLE.parent}:{cantle.env['PATH']}"}
    done = cantle.program("sh", "-c", f"cd {directory}; {command}", env=env)
    assert done.stdout == "", (command, done.stdout)
    assert done.returncode != 0, (command, done.stderr)
    text = done.stderr.replace(str(directory), "DIR").replace(str(cantle.home), "HOME")
    text = re.sub(r"http://127\.0\.0\.1:\d{5}", "http://127.0.0.1:PORT", text)
    text = text.replace(f" {os.uname().nodename}:", " NODE:")
    text = re.sub(r"\((pid|process) \d+\)", r"(\1 PID)", text)
    return f"$ {command}\n{text}exit code {done.returncode}\n"


@pytest.fixture
def messages(cantle, tmp_path):
    """The file as it would be now."""
    directory = tmp_path / "empty"
    directory.mkdir()
    (directory / "garbage").write_text("no\n")
    (directory / "bad.txt").write_text("node box 2xA100-40GB\ntask\n")
    text, found = HEADER, commands()
    assert list(found) == list(PARTS)
    for title, words in PARTS.items():
        if words:
            cantle.up(*words)
        text += f"\n== {title} ==\n" + "".join(f"\n{printed(cantle, command, directory)}" for command in found[title])
    return text


def test_messages_are_as_reviewed(messages):
    if os.environ.get("CANTLE_TEST_WRITE_MESSAGES"):
        FILE.write_text(messages)
    assert messages == FILE.read_text(), "CANTLE_TEST_WRITE_MESSAGES=yes writes them; read the difference"


def test_each_is_one_line_with_hints():
    cases = re.findall(r"^\$ (.+)\n((?:.*\n)*?)exit code (\d+)$", FILE.read_text(), re.M)
    assert len(cases) >= 60
    for command, text, code in cases:
        line, *hints = text.splitlines()
        assert line.startswith("cantle: ") and all(hint.startswith("hint: ") for hint in hints), command
        assert code in {"1", "2", "3", "4", "5", "6", "7", "8", "125", "126", "127"}, command
        assert line.endswith("...") or not line.endswith("."), command
