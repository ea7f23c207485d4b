"""Why cases differ: each was looked at once. docs/scheduling.md has the causes with a judgment.

A case is named by its file and line at the commits that docs/scheduling.md names."""

BACKFILL = "the place is kept for a larger task ahead"
TIE = "equal shares: another one goes first"
ELASTIC = "jobs that grow: each gets its minimum first, and keeps it"
ONE_ACTION = "the test runs one action of a cycle; a whole cycle starts the task"
GANG = "a running gang is moved"
MOVE = "a task that moves counts as nothing lost"
WORSE = "more GPUs are stopped, or a department gets more than its share"
VICTIM = "other victims of equal right, as many GPUs"
UNCOUNTED = "a project without a quota of CPU and memory loses tasks without GPUs"
SETS = "one task of four GPUs is stopped, in cantle two of one and three"
BORROWING = "more than the quota, or than the share, is got by preemption"
NO_WEIGHT = "a weight of 0 still has a share"
PRIORITY = "a victim of higher priority, to keep a queue at its quota or to even out shares"
EITHER = "two equal nodes, the other one is taken"

KAI = {
    "allocate/allocateElastic_test.go:394": ELASTIC,
    "allocate/allocate_test.go:385": BACKFILL,
    "allocate/allocate_test.go:707": TIE,
    "consolidation/consolidationGpuMemory_test.go:194": EITHER,
    "consolidation/consolidationGpuMemory_test.go:303": EITHER,
    "consolidation/consolidation_test.go:793": ONE_ACTION,
    "integration_tests/consolidation/consolidationGang_test.go:25": GANG,
    "integration_tests/consolidation_and_reclaim/consolidation_and_reclaim_test.go:25": MOVE,
    "integration_tests/reclaim/reclaim_test.go:313": WORSE,
    "integration_tests/reclaim/reclaim_test.go:673": WORSE,
    "integration_tests/reclaim/reclaim_test.go:897": VICTIM,
    "integration_tests/reclaim/reclaim_test.go:1015": SETS,
    "integration_tests/reclaim/reclaim_test.go:2322": UNCOUNTED,
    "integration_tests/reclaim/reclaim_test.go:2437": UNCOUNTED,
    "preempt/preempt_elastic_test.go:342": ELASTIC,
    "preempt/preempt_elastic_test.go:537": ONE_ACTION,
    "reclaim/reclaimDepartments_test.go:769": WORSE,
    "reclaim/reclaim_elastic_test.go:502": ELASTIC,
    "reclaim/reclaim_elastic_test.go:709": ONE_ACTION,
}
KUEUE = {
    "preemption/preemption_fair_test.go:125": VICTIM,
    "preemption/preemption_fair_test.go:222": BORROWING,
    "preemption/preemption_fair_test.go:270": BORROWING,
    "preemption/preemption_fair_test.go:298": BORROWING,
    "preemption/preemption_fair_test.go:367": PRIORITY,
    "preemption/preemption_fair_test.go:581": PRIORITY,
    "preemption/preemption_fair_test.go:776": BORROWING,
    "preemption/preemption_fair_test.go:859": NO_WEIGHT,
    "preemption/preemption_fair_test.go:982": NO_WEIGHT,
    "scheduler_fs_test.go:2031": TIE,
    "scheduler_fs_test.go:2146": TIE,
    "scheduler_test.go:5099": BACKFILL,
}
DIFFERENCES = {"kai": KAI, "kueue": KUEUE}
