"""A task of root reaches nothing beyond its own processes and files: nothing of the machine, nothing of other tasks."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

import pytest

from conftest import CANTLE, HERE, NOBODY

WAYS = [
    "signal",
    "trace",
    "pidfd",
    "root_of_other",
    "leave_group",
    "device",
    "core_pattern",
    "release_agent",
    "bpf",
    "file_by_handle",
    "swapoff",
]
# Tried in a task only: outside they would do harm, or this machine refuses them to everybody.
ONLY_INSIDE = [
    "kill_all",
    "trace_first",
    "root_of_first",
    "files_of_first",
    "enter_namespace",
    "own_proc",
    "uncover_proc",
    "sysrq",
    "kernel_module",
    "kexec",
    "uevent_helper",
]


@pytest.fixture
def outsider():
    """A process of another user, outside of any slice."""
    child = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "sleep", "600"])
    yield child
    assert child.poll() is None, "it was ended"
    child.kill()
    child.wait()


def run(machine, *command, options=()):
    words = machine.command(CANTLE, "-q", "run", "--gpu", "0.25", *options, "--", *command)
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=machine.env)


def tried(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", [*WAYS, *ONLY_INSIDE])
def test_it_is_refused(machine, outsider, way):
    words = [sys.executable, HERE / "reach.py", way, outsider.pid]
    inside = tried(run(machine, *words))
    assert "refused" in inside, inside
    if way in WAYS:
        # The negative control: it is cantle that refuses it, and not this machine.
        outside = subprocess.run(machine.command(*words), capture_output=True, text=True, timeout=120, env=machine.env)
        assert tried(outside) != inside


def status(machine, *options):
    """Bounding set, effective set, no_new_privs."""
    done = run(machine, "cat", "/proc/self/status", options=options)
    assert done.returncode == 0, done.stderr
    field = lambda name: re.search(rf"^{name}:\s*(\w+)$", done.stdout, re.M).group(1)  # noqa: E731
    return int(field("CapBnd"), 16), int(field("CapEff"), 16), int(field("NoNewPrivs"))


OWN = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 14, 18, 23, 29, 31}
WITHHELD = {2, 16, 17, 19, 21, 39}


def test_capabilities_are_those_of_the_list(machine):
    own = sum(1 << number for number in OWN)
    assert status(machine) == (own, own, 0)
    assert status(machine, "--no-new-privileges") == (own, own, 1)


def test_a_privileged_task_is_asked_for_in_words(machine, outsider):
    bounding, _, _ = status(machine, "--privileged-task")
    assert not any(bounding >> number & 1 for number in WITHHELD)
    assert bounding >> 27 & 1, "MKNOD"
    answer = tried(run(machine, sys.executable, HERE / "reach.py", "signal", outsider.pid, options=["--privileged-task"]))
    assert answer == {"done": "signal"}
    shown = machine.command(CANTLE, "run", "--gpu", "0.25", "--privileged-task", "--", "true")
    shown = subprocess.run(shown, capture_output=True, text=True, timeout=120, env=machine.env)
    assert "a privileged task of root can evade" in shown.stderr, shown.stderr
    done = run(machine, "true", options=["--privileged-task", "--image", "x"])
    assert done.returncode == 2 and "outside of containers" in done.stderr
    done = run(machine, "true", options=["--privileged-task", "--no-new-privileges"])
    assert done.returncode == 2


def test_no_descriptor_of_cantles_is_left_to_a_task(machine):
    done = run(machine, "ls", "/proc/self/fd")
    # The last is the directory itself.
    assert done.stdout.split() == ["0", "1", "2", "3"], done.stdout


def test_a_task_ends_as_it_ended(machine):
    assert run(machine, "sh", "-c", "exit 7").returncode == 7
    assert run(machine, "sh", "-c", "kill -SEGV $$").returncode == 139
    assert run(machine, "no-such-program").returncode == 127
    assert run(machine, "/etc/passwd").returncode == 126


def groups_of_tasks():
    """Names of the groups of all tasks on the machine; those of other suites are among them."""
    return {path.split("/")[-1] for path, _, _ in os.walk("/sys/fs/cgroup") if path.split("/")[-2] == "cantle"}


def own_groups(pid):
    """Of these, the groups of this process and its descendants."""
    found, text = set(), ""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        text = open(f"/proc/{pid}/cgroup").read()
        for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
            found |= own_groups(child)
    return found | {line.split("/")[-1] for line in text.splitlines() if line.split("/")[-2:-1] == ["cantle"]}


def test_no_group_is_left_behind(machine):
    running = machine.start(["cat"])
    own = wait_for(lambda: own_groups(running.child.pid) & groups_of_tasks())
    assert own, "it has none"
    running.end()
    assert run(machine, "no-such-program").returncode == 127
    assert not own & groups_of_tasks()


def wait_for(what, seconds=60):
    until = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.05)
    return found
