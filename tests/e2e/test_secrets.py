"""`cantle secrets`: a value is in the environment of the task that names it, and nowhere else on the machine."""

import hashlib
import json
import os
import pty
import subprocess
import sys

import pytest

from conftest import CANTLE, wait_until

QUEUES = ("--queue", "none=none", "eighth=0.125")
VALUE = "hf_zwölf_'$x\"_4711"
SHOW = "import os; print(os.environ.get('TOKEN'), os.environ.get('OTHER'), flush=True)"
# Files that exist while the task runs, and what other processes show of themselves.
PLACES = ["/run", "/var/lib", "/etc", "/tmp", "/home", "/root"]


def set_secret(cantle, name, value, *words):
    done = subprocess.run(
        cantle.machine.command(CANTLE, "secrets", "set", name, *words), input=value, env=cantle.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("queue", ["none", "eighth"])
def test_a_task_has_its_secret_and_no_file_of_the_node_has_it(cantle, queue):
    cantle.up(*QUEUES)
    cantle.program("touch", "/run/before")
    # One line feed is removed, a second one is part of the value.
    set_secret(cantle, "TOKEN", f"{VALUE}\n")
    set_secret(cantle, "OTHER", "not asked for")
    # What the program prints is in its log.
    hold = "import hashlib, os, time; print(hashlib.sha256(os.environb[b'TOKEN']).hexdigest(), os.environ.get('OTHER'), flush=True); time.sleep(600)"
    task = cantle.submit(queue, sys.executable, "-c", hold, flags=("--secret", "TOKEN"))
    wait_until(lambda: cantle.output(task), 60, lambda: cantle.task(task))
    assert cantle.output(task).splitlines()[0] == f"{hashlib.sha256(VALUE.encode()).hexdigest()} None"
    written = ["find", *PLACES, "-type", "f", "-newer", "/run/before", "-exec", "grep", "-laF", "--"]
    search = lambda text: cantle.program(*written, text, "{}", "+").stdout.split()  # noqa: E731
    assert search(VALUE) == []
    # The search does find what is there: the agent's own record of the command.
    assert any("/agent/" in path for path in search("hashlib.sha256"))
    # Only the task's own processes have it in their environments and none on its command line.
    code = f"""
import glob, json
found = {{}}
for place in glob.glob("/proc/[0-9]*"):
    for file in ("environ", "cmdline"):
        try:
            if {VALUE!r}.encode() in open(place + "/" + file, "rb").read():
                found.setdefault(file, []).append(open(place + "/cmdline").read())
        except OSError:
            pass
print(json.dumps(found))
"""
    found = json.loads(cantle.program(sys.executable, "-c", code).stdout)
    assert list(found) == ["environ"] and all("time.sleep(600)" in line and "cantle" not in line for line in found["environ"]), found
    assert VALUE in cantle.cli("exec", task, "--", "sh", "-c", "echo $TOKEN").stdout
    cantle.cli("stop", task)
    assert VALUE in cantle.cli("shell", "--queue", queue, "--secret", "TOKEN", "--", "sh", "-c", "echo $TOKEN").stdout


def test_elements_of_an_array_have_it_and_a_restart_keeps_it(cantle):
    cantle.up(*QUEUES)
    set_secret(cantle, "TOKEN", VALUE)
    array = cantle.submit("none", sys.executable, "-c", SHOW, flags=("--secret", "TOKEN", "--array", "0-2", "--name", "all"))
    assert cantle.cli("wait", array).returncode == 0
    for n in range(3):
        assert VALUE in cantle.output(f"all[{n}]")
    (listed,) = cantle.json("secrets", "list")
    assert listed["name"] == "TOKEN" and listed["readable"] and listed["used"]


def test_what_is_wrong_is_refused_or_fails_the_task(cantle):
    cantle.up(*QUEUES)
    refused = cantle.cli("submit", "--queue", "none", "--secret", "TOKEN", "--", "true", code=3)
    assert 'you have no secret "TOKEN"; cantle secrets list has yours' in refused.stderr
    assert cantle.json("tasks") == []
    assert "is no name of an environment variable" in cantle.cli("secrets", "set", "A-B", "--from-file", "/etc/hostname", code=None).stderr
    assert "cannot read /nowhere: No such file" in cantle.cli("secrets", "set", "A", "--from-file", "/nowhere", code=2).stderr
    assert "it is empty" in cantle.cli("secrets", "set", "A", code=None).stderr
    set_secret(cantle, "TOKEN", VALUE)
    blocker = cantle.submit("none", "sleep", "3600")
    task = cantle.submit("none", "true", flags=("--secret", "TOKEN", "--after", f"any:{blocker}"))
    cantle.cli("secrets", "delete", "TOKEN")
    cantle.cli("stop", blocker)
    assert "its owner has no secret TOKEN any more" in cantle.wait_state(task, "failed")["reason"]
    assert "you have no secret" in cantle.cli("secrets", "delete", "TOKEN", code=3).stderr
    assert cantle.cli("shell", "--queue", "none", "--secret", "TOKEN", "--", "true", code=3)


def test_a_terminal_does_not_show_it(cantle):
    cantle.up(*QUEUES)
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        cantle.machine.command(CANTLE, "secrets", "set", "TOKEN"), stdin=follower, stdout=follower, stderr=follower, env=cantle.env
    )
    os.close(follower)
    shown = b""
    while b"(not shown): " not in shown:
        shown += os.read(leader, 1024)
    os.write(leader, b"wrong\x7f\x7f\x7f\x7f\x7fpassword\r")
    assert child.wait(timeout=60) == 0
    try:
        while piece := os.read(leader, 1024):
            shown += piece
    except OSError:
        pass
    os.close(leader)
    assert b"set" in shown and b"wrong" not in shown and b"password" not in shown, shown
    task = cantle.submit("none", sys.executable, "-c", SHOW, flags=("--secret", "TOKEN"))
    cantle.wait_state(task, "completed")
    assert cantle.output(task).startswith("password None")
