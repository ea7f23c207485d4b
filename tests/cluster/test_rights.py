"""The chart's roles permit what cantle's parts do, and no more. The last of the run: it looks at what all tests have done."""

import os
import pathlib

import pytest

import rights
from rights import Right

# Where the runs of both clusters leave what they have seen (run.sh).
CALLS = os.environ.get("CANTLE_TEST_CALLS")
whole_run = pytest.mark.skipif(not CALLS, reason="only a whole run uses all rights; run tests/cluster/run.sh without words")
# Used too rarely for a test, and why they stay.
RARE = {
    "cantle-node delete resourceslices.resource.k8s.io": "a node offers fewer slices than before: a GPU was taken out",
    "cantle-queues get pods": "a pod of the task's name is there already: a replica died between making it and taking the task",
    "cantle-queues patch events.events.k8s.io": "the same event once more within minutes",
}
# Needed by a call that the audit log has under another verb: an apply of an object that does not exist is a patch there.
IMPLIED = {"cantle-node create gpus.cantle.dev"}
# No role grants these, and nothing needs them: test_scheduling.py shows that the first is refused. kube-scheduler looks for an authority whose
# clients may call its own endpoints, and starts without one.
REFUSED = {"cantle-node list secrets"} | {f"cantle-scheduler {verb} configmaps extension-apiserver-authentication kube-system" for verb in ("get", "list", "watch")}
# Granted by a role of Kubernetes' own, system:kube-scheduler. A scheduler that loses its lease while its chart is removed is refused the event.
LEAVING = {"cantle-scheduler create events cantle-system"}


@whole_run
def test_no_right_is_unused():
    calls, _ = rights.saved(CALLS)
    assert {right.account for right in rights.granted()} == {call.account for call in calls if call.account.startswith("cantle-")}
    unused = rights.unused(rights.granted(), calls)
    # A rare one may have been used, by chance.
    assert sorted(set(map(str, unused)) - set(RARE) - IMPLIED) == [], "drop them from the chart, or say in RARE why they stay"
    assert {*RARE, *IMPLIED} <= set(map(str, rights.granted())), "reasons for rights that are gone"


@whole_run
def test_nothing_is_refused():
    calls, refused = rights.saved(CALLS)
    # Granted rights are refused too, for a moment: while the chart's roles go before its pods, and when the API server has just started.
    # Of those of Kubernetes' own roles it is known by the calls that were permitted.
    lacking = {str(call) for call in refused - calls if not any(right.covers(call) for right in rights.granted())}
    assert sorted(call for call in lacking if " ".join(call.split()) not in LEAVING) == sorted(REFUSED)


def test_a_right_that_nobody_uses_is_seen(tmp_path):
    """The negative control: a log with one call, and a role with two rights."""
    log = tmp_path / "audit.log"
    event = '{"user":{"username":"system:serviceaccount:cantle-system:cantle-node"},"verb":"get","objectRef":{"resource":"nodes","name":"a"},"annotations":{"authorization.k8s.io/decision":"%s"}}\n'
    log.write_text(event % "allow" + event.replace("get", "delete") % "forbid")
    rights.save(log, tmp_path)
    calls, refused = rights.saved(tmp_path)
    used, other = Right("cantle-node", "get", "", "nodes", "", ""), Right("cantle-node", "get", "", "nodes", "b", "")
    assert rights.unused({used, other}, calls) == {other}
    assert {call.verb for call in refused} == {"delete"}
    assert pathlib.Path(tmp_path / f"calls-{tmp_path.name}.json").exists()


def test_each_role_of_the_chart_is_read():
    granted = rights.granted()
    assert {right.account for right in granted} == {"cantle-webhook", "cantle-node", "cantle-scheduler", "cantle-queues", "cantle-server"}
    assert Right("cantle-queues", "update", "coordination.k8s.io", "leases", "cantle-queues", "") in granted
