"""Notices of tasks by webhook and mail, with real receivers, and a member who has no other right."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys

import pytest

from conftest import ROOT, own_port, wait_until

QUEUE = ("--queue", "none=none")


@pytest.fixture
def receiver(cantle):
    """Starts receivers on the machine of the test; they give their port and what arrived."""
    started = []

    def start(kind, *words, port=None):
        path, port = cantle.home / f"{kind}-{len(started)}.jsonl", port or own_port()
        command = cantle.machine.command(sys.executable, str(ROOT / "tests/e2e/receivers.py"), kind, str(port), str(path), *map(str, words))
        started.append(subprocess.Popen(command))
        return port, lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    yield start
    for each in started:
        each.kill()
        each.wait()


def test_a_task_is_reported_by_webhook_and_mail(cantle, receiver):
    (hook, arrived), (relay, mails) = receiver("hook"), receiver("smtp")
    cantle.up(*QUEUE, "--notify-allow", "127.0.0.1", "--smtp", f"smtp://127.0.0.1:{relay}", "--mail-from", "cantle@example.org")
    secret = cantle.cli("notify", "set", "lab", f"http://127.0.0.1:{hook}/a-secret").stdout.strip()
    cantle.cli("notify", "set", "mail", "mailto:anna@example.org", "--on", "failed")
    cantle.cli("notify", "test", "lab")
    wait_until(lambda: len(arrived()) == 1, 30, arrived)
    # The task that names nothing is the negative control.
    cantle.submit("none", "false")
    bad = cantle.submit("none", "sh", "-c", "exit 3", flags=("--notify", "lab,mail", "--name", "train"))
    good = cantle.submit("none", "true", flags=("--notify", "lab,mail"))
    wait_until(lambda: len(arrived()) == 3 and len(mails()) == 1, 60, lambda: (arrived(), mails()))
    _, *ends = [json.loads(one["body"]) for one in arrived()]
    assert {(end["type"], end["task"]["id"]) for end in ends} == {("task.failed", bad), ("task.completed", good)}
    (failed,) = [end for end in ends if end["task"]["id"] == bad]
    assert failed["task"]["exit_code"] == 3 and failed["text"].startswith("Task train has failed"), failed
    (mail,) = mails()
    assert mail["to"] == ["anna@example.org"] and mail["from"] == "cantle@example.org"
    assert "Subject: Task train has failed" in mail["text"] and f"/ui/tasks/{bad}" in mail["text"], mail
    for one in arrived():
        heads = one["headers"]
        signed = f"{heads['webhook-id']}.{heads['webhook-timestamp']}.{one['body']}".encode()
        digest = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        assert heads["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    # Addresses are secrets.
    listed = cantle.cli("-o", "json", "notify", "list").stdout + cantle.cli("-o", "wide", "notify", "list").stdout
    assert "a-secret" not in listed + cantle.log() and secret not in listed, listed


def test_a_receiver_that_never_answers_is_one_clear_line(cantle, receiver):
    (dead, _), (hook, arrived) = receiver("hook", 0), receiver("hook")
    cantle.up(*QUEUE, "--notify-allow", "127.0.0.1")
    cantle.cli("notify", "set", "dead", f"slack:http://127.0.0.1:{dead}/", "--always")
    cantle.cli("notify", "set", "good", f"slack:http://127.0.0.1:{hook}/", "--always", "--on", "start,completed")
    cantle.submit("none", "true", flags=("--wait",))
    wait_until(lambda: len(arrived()) == 2, 10, arrived)
    assert [json.loads(one["body"])["text"].split("\n")[0].rsplit(" on ")[0] for one in arrived()] == ["Task true runs", "Task true is completed"]
    wait_until(lambda: "failing" in cantle.cli("notify", "list").stdout, 60, lambda: cantle.cli("notify", "list").stdout)
    assert "tries: 1, waiting: 1: no answer within 10 s" in cantle.cli("notify", "list").stdout
    (line,) = [line for line in cantle.log().splitlines() if "notices cannot be delivered" in line]
    assert "no answer within 10 s" in line and "dead" in line


def test_an_array_is_reported_once(cantle, receiver):
    hook, arrived = receiver("hook")
    cantle.up(*QUEUE, "--notify-allow", "127.0.0.1")
    cantle.cli("notify", "set", "lab", f"http://127.0.0.1:{hook}/", "--always")
    array = cantle.submit("none", "true", flags=("--array", "0-4", "--wait"))
    wait_until(arrived, 30, "a notice")
    last = cantle.submit("none", "true", flags=("--wait",))
    wait_until(lambda: len(arrived()) >= 2, 30, arrived)
    assert [json.loads(one["body"])["task"]["id"] for one in arrived()] == [array, last]


def test_bad_input_is_refused_in_one_line(cantle):
    cantle.up(*QUEUE)
    for words, text in [
        (("notify", "set", "lab", "lab.example.org"), "is no URL; write https://…, slack:https://…, teams:https://… or mailto:ADDRESS"),
        (("notify", "set", "mail", "anna@example.org"), "this server sends no mail; its administrator sets --smtp"),
        (("notify", "set", "lab", "https://example.org", "--on", "dinner"), '"dinner" is none of start, idle, completed, failed, stopped'),
        (("notify", "test", "lab"), 'you have no receiver "lab"; cantle notify list has them'),
        (("submit", "--queue", "none", "--notify", "lab", "--", "true"), 'you have no receiver "lab"; cantle notify list has them'),
    ]:
        refused = cantle.cli(*words, code=None)
        assert refused.returncode and text in refused.stderr.splitlines()[0], refused.stderr
    cantle.cli("notify", "set", "inside", "http://169.254.169.254/latest/meta-data")
    refused = cantle.cli("notify", "test", "inside", code=None).stderr
    assert "169.254.169.254 is no public address, and this server does not allow it" in refused
    assert cantle.json("tasks") == []
