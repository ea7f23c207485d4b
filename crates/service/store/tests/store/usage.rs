//! What accounts are made of: runs with their owner and wait, and the states of GPUs over time.

use cantle_model::{AtFull, Budget, GpuUuid, Measured, Milli, ProjectQuota, Quota, Slice, TaskStatus};
use cantle_store::{
    BudgetMonth, Change, DirectRun, GpuTimeRow, NewTask, Store, StoreError, TaskClaim, Terms,
};
use serde_json::Map;

use crate::common;

pub(crate) fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

fn time(gpu: &str, from_us: i64, node: &str, state: &str) -> GpuTimeRow {
    let (gpu, node, model) = (gpu.to_owned(), node.to_owned(), "A100".to_owned());
    GpuTimeRow { gpu, from_us, to_us: None, node, model, pools: String::new(), state: state.to_owned() }
}

#[tokio::test]
async fn a_run_keeps_whose_it_was_and_how_long_it_waited() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let new = |id: &str| NewTask {
        id: id.into(),
        name: format!("name of {id}"),
        kind: "training".into(),
        owner: "ann".into(),
        tags: vec![format!("team:{id}")],
        ..NewTask::default()
    };
    for (id, now_us) in [("a", 10), ("b", 20), ("c", 30)] {
        store.submit(&new(id), "q", &at(now_us)).await.unwrap();
    }
    // The three ways out of a queue.
    store.take_next("q", None, 100).await.unwrap().unwrap();
    store.take_next("q", Some("c"), 100).await.unwrap().unwrap();
    assert_eq!(store.take_many("q", 5, 100).await.unwrap().len(), 1);
    for id in ["a", "b", "c"] {
        store.set_status(id, TaskStatus::InProgress, &at(110)).await.unwrap();
        store.set_status(id, TaskStatus::Completed, &at(200)).await.unwrap();
        store.delete_task(id, &at(300)).await.unwrap();
    }
    let runs = store.runs_between(150, 1000).await.unwrap();
    let seen: Vec<_> = runs
        .iter()
        .map(|run| (&*run.task, run.owner.as_deref(), run.name.as_deref(), run.queued_us))
        .collect();
    assert_eq!(
        seen,
        [
            ("a", Some("ann"), Some("name of a"), Some(10)),
            ("b", Some("ann"), Some("name of b"), Some(20)),
            ("c", Some("ann"), Some("name of c"), Some(30)),
        ]
    );
    let tags: Vec<_> = runs.iter().map(|run| run.tags.join(" ")).collect();
    assert_eq!(tags, ["team:a", "team:b", "team:c"], "of each way out of the queue");
    for (from_us, to_us, count) in [(0, 100, 0), (0, 101, 3), (199, 200, 3), (200, 300, 0)] {
        assert_eq!(store.runs_between(from_us, to_us).await.unwrap().len(), count, "{from_us} to {to_us}");
    }
}

#[tokio::test]
async fn the_times_of_a_gpu_leave_no_gap() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.begin_gpu_times(&[time("g", 100, "n", "here"), time("h", 100, "n", "here")]).await.unwrap();
    store.begin_gpu_times(&[time("g", 200, "n", "away")]).await.unwrap();
    // The clock was set back, and the GPU is in another node now.
    store.begin_gpu_times(&[time("g", 50, "m", "here")]).await.unwrap();
    let times = store.gpu_times(0, 1000).await.unwrap();
    let seen: Vec<_> =
        times.iter().map(|time| (&*time.gpu, time.from_us, time.to_us, &*time.node, &*time.state)).collect();
    assert_eq!(
        seen,
        [
            ("g", 100, Some(200), "n", "here"),
            ("g", 200, Some(201), "n", "away"),
            ("g", 201, None, "m", "here"),
            ("h", 100, None, "n", "here"),
        ]
    );
    let lasting = |times: Vec<GpuTimeRow>| times.into_iter().map(|time| time.gpu).collect::<Vec<_>>();
    assert_eq!(lasting(store.lasting_gpu_times(Some("n")).await.unwrap()), ["h"]);
    assert_eq!(lasting(store.lasting_gpu_times(None).await.unwrap()).len(), 2);
    assert_eq!(store.gpu_times(200, 201).await.unwrap().len(), 2);
}

fn quota(milli: u64) -> ProjectQuota {
    ProjectQuota { gpu: Quota { deserved: Some(milli), ..Quota::NONE }, ..ProjectQuota::default() }
}

#[tokio::test]
async fn what_projects_are_guaranteed_is_kept() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    make_project(&store, "vision").await;
    for (milli, now_us) in
        [(Some(500), 100), (Some(500), 150), (Some(750), 200), (None, 300), (Some(250), 250)]
    {
        store.set_quota("vision", milli.map(quota).as_ref(), "ann", now_us).await.unwrap();
    }
    let seen = async |from, to| {
        let times = store.quota_times(from, to).await.unwrap();
        times.into_iter().map(|time| (time.from_us, time.to_us, time.deserved_milli)).collect::<Vec<_>>()
    };
    // The last one came while the clock was set back.
    let all = [(100, Some(200), 500), (200, Some(300), 750), (300, None, 250)];
    assert_eq!(seen(0, 1000).await, all);
    assert_eq!(seen(200, 300).await, all[1..2]);
    store.note_quotas(900).await.unwrap();
    assert_eq!(seen(0, 1000).await, all, "nothing has changed");
    // Quotas from before there were records of them, and a project that is gone.
    fresh.meddle("DELETE FROM quota_times").await;
    store.note_quotas(900).await.unwrap();
    assert_eq!(seen(0, 1000).await, [(900, None, 250)]);
    store.delete_project("id of vision", false).await.unwrap();
    store.note_quotas(950).await.unwrap();
    assert_eq!(seen(0, 1000).await, [(900, Some(950), 250)]);
}

const S: i64 = 1_000_000;

async fn make_project(store: &Store, name: &str) {
    common::make_project(store, &format!("id of {name}"), name).await;
}

pub(crate) fn slice(gpu: &str, milli: u32) -> Slice {
    Slice { gpu: GpuUuid(gpu.into()), milli: Milli(milli), memory_limit_bytes: 1, mig: None }
}

pub(crate) fn claim(id: &str, slices: Vec<Slice>, exit_code: Option<i64>) -> TaskClaim {
    TaskClaim {
        task: id.into(),
        node: "n".into(),
        lease: id.into(),
        run: None,
        slices,
        terms: Terms::default(),
        exit_code,
        reason: None,
        measured: Measured::default(),
    }
}

/// A task that runs on a part of GPU g.
async fn begin(store: &Store, id: &str, project: &str, milli: u32, taken_us: i64) {
    let new = NewTask { id: id.into(), project: Some(format!("id of {project}")), ..NewTask::default() };
    store.submit(&new, "q", &at(1)).await.unwrap();
    store.take_next("q", None, taken_us).await.unwrap().unwrap();
    store.claim(&claim(id, vec![slice("g", milli)], None), taken_us).await.unwrap();
    store.set_status(id, TaskStatus::InProgress, &at(taken_us)).await.unwrap();
}

#[tokio::test]
async fn a_run_whose_slices_change_has_parts() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    make_project(&store, "vision").await;
    begin(&store, "a", "vision", 500, 110 * S).await;
    store.change_slices("a", "a", &[slice("g", 500)], 115 * S).await.unwrap();
    assert_eq!(store.runs("a").await.unwrap()[0].changes, [], "nothing has changed");
    let held = async || store.held_since().await.unwrap()[0].milli;
    assert_eq!(held().await, 500);
    // Suspended at 120 s, and back at 140 s with a quarter of another GPU.
    for now_us in [120 * S, 125 * S] {
        store.change_slices("a", "a", &[], now_us).await.unwrap();
    }
    assert_eq!(held().await, 0);
    let month = |now_us| BudgetMonth { name: "2026-11".into(), from_us: 100 * S, now_us };
    let used = async |now_us| store.used_by_project(&month(now_us)).await.unwrap()["id of vision"];
    assert_eq!(used(130 * S).await, 5_000);
    store.change_slices("a", "a", &[slice("h", 250)], 140 * S).await.unwrap();
    assert_eq!((held().await, used(144 * S).await), (250, 6_000));
    let refused = store.change_slices("a", "another", &[], 145 * S).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotHeld { .. }), "{refused}");
    store.claim(&claim("a", vec![slice("h", 250)], Some(0)), 160 * S).await.unwrap();
    assert!(store.change_slices("a", "a", &[], 165 * S).await.is_err(), "it has ended");
    store.set_status("a", TaskStatus::Completed, &at(161 * S)).await.unwrap();
    assert_eq!(used(500 * S).await, 10_000);
    let after = BudgetMonth { from_us: 150 * S, ..month(500 * S) };
    assert_eq!(store.used_by_project(&after).await.unwrap()["id of vision"], 2_500);
    for runs in [store.runs("a").await.unwrap(), store.runs_between(155 * S, 156 * S).await.unwrap()] {
        let parts: Vec<_> = runs[0]
            .parts(110 * S, 160 * S)
            .map(|(from_us, to_us, slices)| {
                (from_us / S, to_us / S, slices.iter().map(|slice| (&*slice.gpu.0, slice.milli.0)).collect())
            })
            .collect();
        let expected = [(110, 120, vec![("g", 500)]), (120, 140, Vec::new()), (140, 160, vec![("h", 250)])];
        assert_eq!(parts, expected);
        assert_eq!(runs[0].slices, [slice("h", 250)]);
    }
}

#[tokio::test]
async fn what_a_budget_counts_is_of_the_month_and_of_the_tree() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for name in ["vision", "vision/a", "vision2"] {
        make_project(&store, name).await;
    }
    let run = async |id: &str, project: &str, milli: u32, taken_us: i64, ended_us: Option<i64>| {
        begin(&store, id, project, milli, taken_us).await;
        if let Some(ended_us) = ended_us {
            store.set_status(id, TaskStatus::Completed, &at(ended_us)).await.unwrap();
        }
    };
    // The month is from 100 s to now, which is 200 s.
    run("before", "vision", 1000, 10 * S, Some(100 * S)).await;
    run("across", "vision", 1000, 90 * S, Some(110 * S)).await;
    run("half", "vision/a", 500, 110 * S, Some(130 * S)).await;
    run("lasts", "vision", 2000, 195 * S, None).await;
    run("other", "vision2", 1000, 100 * S, None).await;
    let budget = |gpu_seconds| Budget { gpu_seconds, warn_percent: 80, at_full: AtFull::Queue };
    store.set_budget("vision", Some(&budget(40)), "ann", 200 * S).await.unwrap();
    let month = BudgetMonth { name: "2026-11".into(), from_us: 100 * S, now_us: 200 * S };
    let counted = async |month: &BudgetMonth| {
        store.count_budgets(month).await.unwrap();
        let [row] = store.budgets().await.unwrap().try_into().unwrap();
        (row.used_seconds, row.is_full(), row.month)
    };
    assert_eq!(counted(&month).await, (10 + 10 + 10, false, "2026-11".to_owned()));
    let now = BudgetMonth { now_us: 205 * S, ..month.clone() };
    assert_eq!(counted(&now).await, (40, true, "2026-11".to_owned()));
    let kinds = async || {
        let events = store.events(None, None, 50).await.unwrap();
        events
            .into_iter()
            .map(|event| event.kind)
            .filter(|kind| kind.starts_with("budget-"))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds().await, ["budget-reached"]);
    // The next month begins with nothing.
    let next = BudgetMonth { name: "2026-12".into(), from_us: 205 * S, now_us: 206 * S };
    assert_eq!(counted(&next).await, (2, false, "2026-12".to_owned()));
    store.delete_project("id of vision", true).await.unwrap();
    store.count_budgets(&next).await.unwrap();
    assert_eq!(store.budgets().await.unwrap(), []);
}

#[tokio::test]
async fn what_a_node_gave_to_no_task_has_runs() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    let direct = |lease: &str, milli: u32, since_us: Option<i64>| {
        let slice = Slice {
            gpu: GpuUuid("GPU-a".to_owned()),
            milli: Milli(milli),
            memory_limit_bytes: 1 << 30,
            mig: None,
        };
        let (lease, name, owner) = (lease.to_owned(), "python".to_owned(), "unix:ann".to_owned());
        DirectRun { lease, name, owner, since_us, slices: vec![slice] }
    };
    let (one, two) = (direct("one", 250, Some(90)), direct("two", 500, None));
    store.set_direct_runs("n", std::slice::from_ref(&one), 100).await.unwrap();
    store.set_direct_runs("n", &[one.clone(), two.clone()], 200).await.unwrap();
    // Another node's runs do not end them.
    store.set_direct_runs("m", &[], 250).await.unwrap();
    // One ends, and the other has another size.
    store.set_direct_runs("n", &[direct("two", 125, None)], 300).await.unwrap();
    // By a clock that was set back.
    store.set_direct_runs("n", &[], 240).await.unwrap();
    // One that was suspended is back.
    store.set_direct_runs("n", &[direct("one", 250, Some(90))], 400).await.unwrap();
    store.end_direct_runs("n", 500).await.unwrap();
    let runs = store.runs_between(0, 1000).await.unwrap();
    let seen: Vec<_> = runs
        .iter()
        .map(|run| (&*run.task, run.run, run.taken_us, run.ended_us, run.slices[0].milli.0))
        .collect();
    assert_eq!(
        seen,
        [
            ("one", 1, Some(90), Some(300), 250),
            ("two", 1, Some(200), Some(300), 500),
            ("two", 2, Some(300), Some(300), 125),
            ("one", 2, Some(400), Some(500), 250),
        ]
    );
    assert!(runs.iter().all(|run| run.name.as_deref() == Some("python") && run.queue.is_none()));
}
