"""The reader and the comparison on tables of our own, and with `full` the tables of KAI-Scheduler and Kueue, where checkouts are given."""

import os
import pathlib

import pytest

import cases
import go_literals as go
import judged
import kai
import kueue
import report

ROOT = pathlib.Path(__file__).resolve().parents[3]
CANTLE = ROOT / "dist/bin/cantle"
CONSTANTS = {kai.CONSTANTS[0]: "package c\nconst Train = 50\n", kai.CONSTANTS[1]: "package c\nconst DefaultQueuePriority = 100\n"}
KAI_TABLE = """package reclaim_test
// A comment with a "quote".
func tables() []Metadata {
	return []Metadata{{
		TestTopologyBasic: test_utils.TestTopologyBasic{
			Name: "made up",
			Jobs: []*jobs.Job{
				{Name: "lent", RequiredGPUsPerTask: 1, Priority: constants.Train, QueueName: "b",
					Tasks: []*tasks.Task{{NodeName: "n", State: pod_status.Running}}},
				{Name: "owner", RequiredGPUsPerTask: 1, Priority: constants.Train, QueueName: "a",
					Tasks: []*tasks.Task{{State: pod_status.Pending}}},
			},
			Nodes: map[string]nodes.Node{"n": {GPUs: 1}},
			Queues: []Queue{{Name: "a", DeservedGPUs: 1}, {Name: "b"}},
			JobExpectedResults: map[string]Result{
				"lent": {Status: pod_status.%s},
				"owner": {NodeName: "n", Status: pod_status.Pipelined},
			},
		},
	}}
}
"""
KUEUE_TABLE = """package preemption
func TestMadeUp(t *testing.T) {
	queues := []*kueue.ClusterQueue{
		MakeClusterQueue("a").Cohort("all").
			ResourceGroup(*MakeFlavorQuotas("default").Resource(corev1.ResourceCPU, "500m").Obj()).
			Preemption(kueue.ClusterQueuePreemption{ReclaimWithinCohort: kueue.PreemptionPolicyAny}).Obj(),
		MakeClusterQueue("b").Cohort("all").
			ResourceGroup(*MakeFlavorQuotas("default").Resource(corev1.ResourceCPU, "0.5").Obj()).Obj(),
	}
	half := MakeWorkload("half", "").Request(corev1.ResourceCPU, "500m")
	cases := map[string]struct {
		admitted []kueue.Workload
	}{
		"made up": {
			clusterQueues: queues,
			admitted: []kueue.Workload{
				*half.Clone().Name("b1").SimpleReserveQuota("b", "default", now).Obj(),
				*half.Clone().Name("b2").SimpleReserveQuota("b", "default", now.Add(time.Second)).Obj(),
			},
			incoming: half.Clone().Name("a1").Obj(),
			targetCQ: "a",
			wantPreempted: sets.New(targetKeyReason("/%s", kueue.Reason)),
		},
	}
}
"""


def kai_checkout(root, status):
    files = dict(CONSTANTS)
    files[f"{kai.TABLES}/reclaim/reclaim_test.go"] = KAI_TABLE % status
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def compared(read):
    return [(case.where, cases.run(case, CANTLE).kind) for case in read]


@pytest.mark.parametrize(("status", "kind"), [("Releasing", "agree"), ("Running", "differ")])
def test_a_table_like_kais(tmp_path, status, kind):
    """A wrong expectation is reported as a difference."""
    assert compared(kai.read(kai_checkout(tmp_path, status))) == [("reclaim/reclaim_test.go:5", kind)]


@pytest.mark.parametrize(("preempted", "kind"), [("b2", "agree"), ("b1", "differ")])
def test_a_table_like_kueues(tmp_path, preempted, kind):
    (tmp_path / "made_up_test.go").write_text(KUEUE_TABLE % preempted)
    table = kueue.Table(tmp_path, "made_up_test.go", "TestMadeUp", True)
    assert compared(table.cases()) == [("made_up_test.go:14", kind)]


def test_a_difference_that_is_not_judged_is_named(tmp_path):
    checkout = kai_checkout(tmp_path, "Running")
    rows = list(report.compare("kai", checkout, CANTLE))
    assert report.unjudged(rows) == ["reclaim/reclaim_test.go:5"]
    assert next(report.summary("kai", rows)) == "kai: 1 cases read, 1 compared: 0 agree, 0 agree but for the node, 1 differ"


def test_cases_without_words_say_why(tmp_path):
    checkout = kai_checkout(tmp_path, "Running")
    file = checkout / kai.TABLES / "reclaim/reclaim_test.go"
    file.write_text(file.read_text().replace('"n": {GPUs: 1}', '"n": {GPUs: 1, MaxTaskNum: ptr.To(1)}'))
    assert [case.cannot for case in kai.read(checkout)] == ["a limit of tasks per node"]


def test_go_that_is_not_known_is_refused(tmp_path):
    file = tmp_path / "broken.go"
    file.write_text("var x = T{a: <-channel}")
    source = go.Source(file)
    with pytest.raises(go.CannotRead, match="broken.go:1: '<' begins no expression"):
        source.value_of("x", 99)


@pytest.mark.full
@pytest.mark.parametrize("project", report.PROJECTS)
def test_every_difference_is_judged(project):
    """Every case agrees, or differs for a reason that judged.py gives, and no reason is left of a case that agrees now."""
    variable = f"CANTLE_{project.upper()}"
    if variable not in os.environ:
        pytest.skip(f"${variable} names no checkout of the commit in docs/scheduling.md")
    rows = list(report.compare(project, pathlib.Path(os.environ[variable]), CANTLE))
    print(*report.summary(project, rows), sep="\n")
    assert report.unjudged(rows) == []
    differ = {case.where for case, result, _ in rows if result.kind in ("differ", "node")}
    assert set(judged.DIFFERENCES[project]) <= differ
