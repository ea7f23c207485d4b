//! The store's guarantees: one state per task, one place per queue, nothing lost.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test says by panicking that something is wrong, and how long something took"
)]

mod arrays;
mod batch;
#[path = "../common/mod.rs"]
mod common;
mod documents;
mod evictions;
mod lists;
mod lost;
mod notices;
mod pools;
mod runs;
mod secrets;
mod seen;
mod status;
mod take;
mod upgrade;
mod usage;
mod usage_days;
mod wishes;

use std::collections::BTreeMap;

use cantle_metrics::Fallback;
use cantle_model::{Amounts, Cause, Measured, Milli, ProjectQuota, Quota, Slice, TaskStatus};
use cantle_store::{
    Change, ChartRow, EventRow, FALLBACKS, HeldSum, LogLine, NewTask, OrderBy, Scalar, Store, StoreError,
    TagRule, TaskClaim, TaskEdit, TaskFilter, TaskKey, Terms, VictimTask, Which, may_follow,
};
use serde_json::Map;

struct Fixture {
    store: Store,
    fresh: common::Fresh,
}

const S: i64 = 1_000_000;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

async fn open() -> Fixture {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    Fixture { store, fresh }
}

impl Fixture {
    async fn queued(&self, id: &str, now_us: i64) {
        let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
        self.store.create_task(&new, now_us).await.unwrap();
        self.store.enqueue(id, "q", &at(now_us)).await.unwrap();
    }

    /// A task of a project that waits.
    async fn queued_in(&self, project: &str, id: &str) {
        let (name, project) = (id.into(), Some(project.into()));
        let new = NewTask { id: id.into(), name, project, kind: "training".into(), ..NewTask::default() };
        self.store.create_task(&new, 1).await.unwrap();
        self.store.enqueue(id, "q", &at(1)).await.unwrap();
    }

    /// An agent takes it, claims half a GPU for it, and starts it.
    async fn started(&self, id: &str, terms: Terms) -> Result<(), StoreError> {
        self.store.take_next("q", Some(id), 2).await.unwrap().unwrap();
        self.store.claim(&half(id, terms), 3).await?;
        self.store.set_status(id, TaskStatus::InProgress, &at(4)).await.map(|_| ())
    }

    async fn project(&self, name: &str, gpu: Option<Quota>) {
        common::make_project(&self.store, name, name).await;
        if let Some(gpu) = gpu {
            let quota = ProjectQuota { gpu, ..ProjectQuota::default() };
            self.store.set_quota(name, Some(&quota), "", 1).await.unwrap();
        }
    }

    async fn order(&self) -> Vec<String> {
        self.store.queue("q").await.unwrap().entries.into_iter().map(|(task, _)| task).collect()
    }

    async fn status(&self, id: &str) -> TaskStatus {
        self.store.task(id).await.unwrap().index.status
    }
}

#[tokio::test]
async fn what_was_taken_and_never_started_comes_back_first() {
    let f = open().await;
    for id in ["a", "b", "c", "d"] {
        f.queued(id, 1).await;
    }
    for _ in 0..3 {
        f.store.take_next("q", None, 10 * S).await.unwrap().unwrap();
    }
    f.store.set_status("b", TaskStatus::InProgress, &at(11 * S)).await.unwrap();
    assert!(f.store.reclaim(10 * S, 12 * S).await.unwrap().is_empty(), "not yet");
    assert_eq!(f.store.reclaim(60 * S, 70 * S).await.unwrap().len(), 2);
    assert_eq!(f.order().await, ["a", "c", "d"], "in the order in which they were");
    assert!(f.store.reclaim(60 * S, 80 * S).await.unwrap().is_empty(), "once");
    assert_eq!(f.status("b").await, TaskStatus::InProgress);
}

/// A claim for half a GPU under a lease that is named like the task.
fn half(task: &str, terms: Terms) -> TaskClaim {
    let slice = Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 20 << 30, mig: None };
    TaskClaim {
        task: task.into(),
        node: "n".into(),
        lease: task.into(),
        run: None,
        slices: vec![slice],
        terms,
        exit_code: None,
        reason: None,
        measured: Measured::default(),
    }
}

const FOR_GOOD: Terms = Terms { cpu_milli: 0, memory_bytes: 0, preemptible: false, quota_milli: None };

#[tokio::test]
async fn no_claim_goes_beyond_a_limit_of_its_project_or_of_one_above() {
    let f = open().await;
    f.project("a", Some(Quota { deserved: Some(500), limit: Some(1000), weight: 1 })).await;
    f.project("a/b", None).await;
    f.project("ab", None).await;
    for (project, task) in [("a", "1"), ("a/b", "2"), ("a/b", "3"), ("a", "4"), ("ab", "5")] {
        f.queued_in(project, task).await;
    }
    f.started("1", Terms::default()).await.unwrap();
    f.started("2", Terms::default()).await.unwrap();
    let refusal = f.started("3", Terms::default()).await.unwrap_err().to_string();
    assert_eq!(refusal, "project a holds 1 GPU of its limit of 1 GPU; task 3 needs 0.5 GPUs more");
    f.started("5", Terms::default()).await.unwrap();
    let again = half("2", Terms::default());
    f.store.claim(&again, 5).await.unwrap();
    f.store.claim(&TaskClaim { exit_code: Some(0), ..again }, 6).await.unwrap();
    f.store.claim(&half("3", FOR_GOOD), 7).await.unwrap();
    f.store.claim(&TaskClaim { exit_code: Some(0), ..half("1", Terms::default()) }, 8).await.unwrap();
    let refusal = f.started("4", FOR_GOOD).await.unwrap_err().to_string();
    assert!(
        refusal.contains("of its quota of 0.5 GPUs"),
        "what cannot be taken back must be its own: {refusal}"
    );
    f.store.claim(&half("4", Terms::default()), 9).await.unwrap();
}

/// `victim` runs, `claimant` waits for its place.
async fn contended() -> (Fixture, VictimTask) {
    let f = open().await;
    f.project("rich", None).await;
    f.project("poor", None).await;
    for task in ["victim", "other"] {
        f.queued_in("rich", task).await;
    }
    f.queued_in("poor", "claimant").await;
    f.started("victim", Terms::default()).await.unwrap();
    let victim = VictimTask {
        task: "victim".into(),
        lease: "victim".into(),
        for_task: "claimant".into(),
        cause: Cause::Reclaim,
        suspends: false,
    };
    (f, victim)
}

#[tokio::test]
async fn a_claimed_task_is_nobody_elses() {
    let f = open().await;
    f.queued("a", 1).await;
    f.store.take_next("q", None, 2).await.unwrap().unwrap();
    let claim = |lease: &str| TaskClaim { lease: lease.into(), ..half("a", Terms::default()) };
    f.store.claim(&claim("one"), 3).await.unwrap();
    assert!(f.store.reclaim(60 * S, 70 * S).await.unwrap().is_empty());
    assert!(matches!(f.store.claim(&claim("two"), 4).await, Err(StoreError::Claimed { .. })));
}

/// A node was lost, its task enqueued again and taken by another agent; then the first one reports.
#[tokio::test]
async fn the_report_of_a_run_that_was_given_up_comes_too_late() {
    let f = open().await;
    f.queued("a", 1).await;
    let claim = |lease: &str| TaskClaim { lease: lease.into(), ..half("a", Terms::default()) };
    let report = |lease: &str| TaskClaim { exit_code: Some(0), ..claim(lease) };
    let is_refused = |result| matches!(result, Err(StoreError::NotHeld { .. } | StoreError::Claimed { .. }));
    f.store.take_next("q", None, 2).await.unwrap().unwrap();
    f.store.claim(&claim("lost"), 3).await.unwrap();
    f.store.set_status("a", TaskStatus::InProgress, &at(4)).await.unwrap();
    f.store.enqueue("a", "q", &Change { force: true, ..at(5) }).await.unwrap();
    assert!(is_refused(f.store.claim(&report("lost"), 6).await), "it waits");
    f.store.take_next("q", None, 7).await.unwrap().unwrap();
    assert!(is_refused(f.store.claim(&report("lost"), 8).await), "it is taken");
    f.store.claim(&claim("new"), 9).await.unwrap();
    assert!(is_refused(f.store.claim(&report("lost"), 10).await), "it is claimed");
    assert_eq!(f.store.task("a").await.unwrap().exit_code, None);
    f.store.claim(&report("new"), 11).await.unwrap();
}

/// An agent that was cut off after it took the task, until another one had run it.
#[tokio::test]
async fn a_claim_that_comes_after_the_end_changes_nothing() {
    let f = open().await;
    f.queued("a", 1).await;
    f.started("a", FOR_GOOD).await.unwrap();
    let end = TaskClaim { exit_code: Some(0), ..half("a", FOR_GOOD) };
    f.store.claim(&end, 5).await.unwrap();
    f.store.set_status("a", TaskStatus::Completed, &at(6)).await.unwrap();
    let late = TaskClaim { lease: "late".into(), ..half("a", FOR_GOOD) };
    assert!(matches!(f.store.claim(&late, 7).await, Err(StoreError::Claimed { .. })));
    assert_eq!(f.store.task("a").await.unwrap().exit_code, Some(0));
}

#[tokio::test]
async fn a_task_waits_in_one_place_or_in_none() {
    let f = open().await;
    f.store.create_queue("other", "other", &Map::new(), 1).await.unwrap();
    f.queued("a", 1).await;
    assert!(matches!(f.store.enqueue("a", "other", &at(2)).await, Err(StoreError::AlreadyQueued { .. })));
    f.store.set_status("a", TaskStatus::InProgress, &at(3)).await.unwrap();
    assert!(f.order().await.is_empty(), "a running task does not wait");
    assert!(matches!(f.store.enqueue("a", "q", &at(4)).await, Err(StoreError::Status { .. })));
    f.store.set_status("a", TaskStatus::Failed, &at(5)).await.unwrap();
    f.store.enqueue("a", "other", &Change { force: true, ..at(6) }).await.unwrap();
    let again = f.store.task("a").await.unwrap();
    assert_eq!((again.index.started_us, again.index.completed_us), (None, None), "a new run");
    f.store.delete_task("a", &Change { force: true, ..at(7) }).await.unwrap();
    assert!(f.store.queue("other").await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn what_is_old_is_pruned_unless_its_task_has_not_ended() {
    let f = open().await;
    f.queued("waits", S).await;
    f.queued("ended", S).await;
    f.store.set_status("ended", TaskStatus::Stopped, &at(2 * S)).await.unwrap();
    let line = |task: &str, msg: &str| LogLine { task: task.into(), msg: msg.into(), ..LogLine::default() };
    f.store.add_logs(&[line("waits", "a"), line("ended", "b"), line("ended", "c")], 3 * S).await.unwrap();
    f.store.add_logs(&[line("ended", "new")], 50 * S).await.unwrap();
    let of = async |task: &str| f.store.events(Some(task), None, 100).await.unwrap().len();
    let (before_waits, before_ended) = (of("waits").await, of("ended").await);
    assert_eq!(f.store.prune(i64::MIN, i64::MIN, 100).await.unwrap(), (0, 0), "forever");
    assert_eq!(f.store.prune(i64::MIN, 10 * S, 1).await.unwrap(), (0, 1), "no more than asked for");
    let (events, logs) = f.store.prune(10 * S, 10 * S, 100).await.unwrap();
    assert_eq!((events, logs), (u64::try_from(before_ended).unwrap(), 1));
    assert_eq!((of("waits").await, of("ended").await), (before_waits, 0));
    let left = f.store.logs_after("ended", 0, 10).await.unwrap();
    assert_eq!(left.iter().map(|line| line.msg.as_str()).collect::<Vec<_>>(), ["new"]);
    assert_eq!(f.store.logs_after("waits", 0, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn events_are_ordered_also_within_a_microsecond_and_over_a_restart() {
    let f = open().await;
    let one = |n: i64| EventRow { time_us: 5, kind: n.to_string(), ..EventRow::default() };
    f.store.add_events((0..5).map(one).collect()).await.unwrap();
    f.store.close().await;
    let store = f.fresh.open().await;
    store.add_events((5..9).map(one).collect()).await.unwrap();
    let all = store.events(None, Some(0), 100).await.unwrap();
    let kinds: Vec<_> = all.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
    let last = store.events(None, None, 2).await.unwrap();
    assert_eq!(last[0].kind, "7", "the newest ones, oldest first");
    let rest = store.events(None, Some(all[6].id), 100).await.unwrap();
    assert_eq!(rest.len(), 2);
}

#[tokio::test]
async fn output_goes_with_its_task() {
    let f = open().await;
    f.queued("a", 1).await;
    let line = |n: i64| LogLine {
        task: "a".into(),
        timestamp_ms: 100 - n,
        msg: n.to_string(),
        ..LogLine::default()
    };
    f.store.add_logs(&(0..2500).map(line).collect::<Vec<_>>(), 7).await.unwrap();
    let page = f.store.logs_after("a", 0, 10_000).await.unwrap();
    assert!(page.iter().enumerate().all(|(n, line)| line.msg == n.to_string()), "in order of arrival");
    let newest = f.store.logs_by_time("a", None, true, 1).await.unwrap();
    assert_eq!(newest[0].msg, "0", "by time it is the other way round here");
    let point = |iter, value| Scalar {
        task: "a".into(),
        metric: "m".into(),
        variant: "v".into(),
        iter,
        timestamp_ms: 1,
        value,
    };
    f.store.add_scalars(&[point(1, 5.0), point(2, 1.0), point(2, 3.0)]).await.unwrap();
    f.store.add_scalars(&[point(1, 9.0)]).await.unwrap();
    let values: Vec<f64> = f.store.scalars("a").await.unwrap().iter().map(|scalar| scalar.value).collect();
    assert_eq!(values, [9.0, 3.0], "the last word for a point counts");
    let latest = f.store.latest_scalars("a").await.unwrap();
    assert_eq!((latest[0].last.value, latest[0].least, latest[0].greatest), (3.0, 1.0, 9.0));
    assert_eq!(f.store.task("a").await.unwrap().last_iteration, 2);
    f.store.reset("a", &at(9), |_| ()).await.unwrap();
    assert_eq!(f.store.count_logs("a").await.unwrap() + f.store.count_scalars("a").await.unwrap(), 0);
    assert!(f.store.latest_scalars("a").await.unwrap().is_empty());
}

#[tokio::test]
async fn the_last_line_of_a_chart_counts() {
    let Fixture { store, fresh } = open().await;
    let row =
        |kind: &str, id: &str, line: &str| ChartRow { kind: kind.into(), id: id.into(), line: line.into() };
    store
        .save_charts(&[row("task", "a", "1"), row("queue", "a", "2"), row("task", "b", "3")], &[])
        .await
        .unwrap();
    store.save_charts(&[row("task", "a", "4")], &[("task".into(), "b".into())]).await.unwrap();
    store.close().await;
    let again = fresh.open().await;
    assert_eq!(again.charts().await.unwrap(), [row("queue", "a", "2"), row("task", "a", "4")]);
}

#[test]
fn the_ways_between_states() {
    use TaskStatus::{Completed, Created, Failed, InProgress, Published, Queued, Stopped};
    for (from, to, allowed) in [
        (Created, Queued, true),
        (Created, Completed, false),
        (Queued, InProgress, true),
        (Queued, Completed, false),
        (InProgress, Completed, true),
        (InProgress, Queued, false),
        (Stopped, Queued, true),
        (Failed, Created, true),
        (Published, Created, false),
        (Completed, Completed, true),
    ] {
        assert_eq!(may_follow(from, to), allowed, "{from} → {to}");
    }
}

#[tokio::test]
async fn a_request_to_stop_stays_until_the_state_changes() {
    let f = open().await;
    f.queued("a", 1).await;
    f.started("a", Terms::default()).await.unwrap();
    let asked = Change { message: "stopping".into(), ..at(5) };
    f.store.ask_to_stop("a", &asked).await.unwrap();
    let says = TaskEdit { status_message: Some("runs on n".into()), ..TaskEdit::default() };
    f.store.edit_task("a", &says, false, 6).await.unwrap();
    let row = f.store.task("a").await.unwrap();
    assert_eq!((row.status_message.as_str(), row.stop_asked), ("stopping", true), "it is not overwritten");
    f.store.set_status("a", TaskStatus::Stopped, &at(7)).await.unwrap();
    f.store.enqueue("a", "q", &at(8)).await.unwrap();
    f.started("a", Terms::default()).await.unwrap();
    f.store.edit_task("a", &says, false, 9).await.unwrap();
    let row = f.store.task("a").await.unwrap();
    assert_eq!((row.status_message.as_str(), row.stop_asked), ("runs on n", false), "a new run");
}

/// As a newer version may leave it behind.
#[tokio::test]
async fn a_status_that_is_not_known_is_counted_and_hides_no_other_task() {
    let f = open().await;
    f.queued("known", 1).await;
    f.queued("unknown", 2).await;
    f.fresh.meddle("UPDATE tasks SET status = 'paused' WHERE id = 'unknown'").await;
    let before = FALLBACKS.times(Fallback::UnknownStatus);
    let found = f.store.task_index(&TaskFilter::default()).await.unwrap();
    let found: Vec<_> = found.iter().map(|task| (task.id.as_str(), task.status)).collect();
    assert_eq!(found, [("unknown", TaskStatus::Unknown), ("known", TaskStatus::Queued)]);
    assert!(FALLBACKS.times(Fallback::UnknownStatus) > before, "other tests of this program may count, too");
}
