"""Bad input: one clear line with hints below it, the right exit code, nothing started, nothing lost."""

import pytest

from conftest import FOUR_QUEUES


def complaint(cantle, *words, code=2):
    """Runs what must be refused; returns its one line, and the hints."""
    done = cantle.cli(*words, code=code)
    assert done.stdout == "", "nothing on stdout"
    line, *hints = done.stderr.strip().splitlines()
    assert line.startswith("cantle: ") and all(hint.startswith("hint: ") for hint in hints), done.stderr
    assert all(gpu["used_bytes"] == 0 for gpu in cantle.truth())
    return " ".join([line, *hints])


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("half=1.25", ["half=1.25", "whole numbers", "1 and 2"]),
        ("half=0.0005", ["half=0.0005", "steps of 0.001"]),
        ("half=0", ["half=0", "0.001"]),
        ("x=abc", ["x=abc", "not a number"]),
        ("half_gpu", ["half_gpu", "NAME=SPEC"]),
        ("big=4", ["big", "4", "3"]),
    ],
)
def test_queue_specs(cantle, spec, says):
    cantle.up("--queue", "default")
    line = complaint(cantle, "daemon", "--dynamic-gpus", "--queue", spec, "--gpus", "0-2", "--create-queue")
    for words in says:
        assert words in line


def test_no_such_gpu(cantle):
    line = complaint(cantle, "up", "--queue", *FOUR_QUEUES, "--gpus", "7")
    assert "no GPU 7" in line and "has 3" in line


def test_unknown_queue(cantle):
    cantle.up("--queue", "default", "--gpus", "0")
    line = complaint(cantle, "daemon", "--dynamic-gpus", "--queue", "nosuch=0.5", "--gpus", "1")
    assert "nosuch" in line and "--create-queue" in line


@pytest.mark.parametrize("command", [["run"], ["submit", "--queue", "default"]])
def test_amounts(cantle, command):
    cantle.up("--queue", "default")
    assert "has no unit" in complaint(cantle, *command, "--gpu-memory", "8", "--", "true")
    assert "out of range" in complaint(cantle, *command, "--gpu", "1.5", "--", "true")
    assert "thousandth" in complaint(cantle, *command, "--gpu", "0.0001", "--", "true")
    assert "not a number of GPUs" in complaint(cantle, *command, "--gpus", "0", "--", "true")


def test_memory_larger_than_any_gpu(cantle):
    line = complaint(cantle, "run", "--gpu-memory", "41Gi", "--", "true")
    assert "41 GiB" in line and "40 GiB" in line


def test_two_agents_on_one_gpu(cantle):
    cantle.up("--queue", "default", "--gpus", "0,1", "--worker-name", "first")
    line = complaint(cantle, "daemon", "--dynamic-gpus", "--queue", "default=1", "--gpus", "1-2", code=8)
    assert "GPU 1" in line and "first:dgpu0,1" in line


def test_unknown_task(cantle):
    cantle.up("--queue", "default")
    for command in ("why", "logs", "stop"):
        assert "0" * 32 in complaint(cantle, command, "0" * 32, code=3)


def test_no_server(cantle):
    cantle.up("--queue", "default")
    line = complaint(cantle, "--server", "http://127.0.0.1:9", "tasks", code=1)
    assert "127.0.0.1:9" in line
