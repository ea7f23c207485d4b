//! Connections are killed and PostgreSQL is restarted while servers hand out tasks: no task is lost, and none is given to
//! two callers.
//!
//! Without `CANTLE_TEST_POSTGRES` the same callers share a SQLite file, where nothing is killed. `CANTLE_TEST_KILLS` is the
//! number of kills [default: 12].
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    reason = "a test says by panicking that something is wrong"
)]

mod common;
#[path = "common/history.rs"]
mod history;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cantle_model::TaskStatus;
use cantle_store::{Change, NewTask, Store, StoreError};
use history::{Op, What, is_explained};
use serde_json::Map;

const TASKS: usize = 150;
const CALLERS: usize = 8;
const SERVERS: usize = 3;
/// One task is not taken without an answer more often than this. The call that began first may have taken effect at any
/// time since.
const AS_MANY: usize = 16;

/// Everything that was asked, by task; what may be about any task has none.
struct World {
    begin: Instant,
    ops: Mutex<Vec<(Option<String>, Op)>>,
    done: AtomicU64,
    is_over: AtomicBool,
}

impl World {
    fn now(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    fn note(&self, task: Option<&str>, begin: u64, what: What, is_sure: bool) {
        let op = Op { begin, end: self.now(), what, is_sure };
        self.ops.lock().unwrap().push((task.map(str::to_owned), op));
    }

    fn change(&self, run: i64) -> Change {
        Change { now_us: self.now().cast_signed(), run: Some(run), ..Change::default() }
    }
}

/// Was the call refused, rather than cut off?
fn is_answer(error: &StoreError) -> bool {
    !matches!(error, StoreError::Storage { .. } | StoreError::Database(_))
}

async fn submit(world: &World, store: &Store, id: &str) {
    let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
    let begin = world.now();
    let change = Change { now_us: begin.cast_signed(), ..Change::default() };
    loop {
        match store.submit(&new, "q", &change).await {
            Ok(()) => break,
            // It was cut off after it had happened.
            Err(_) if store.task(id).await.is_ok() => break,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    world.note(Some(id), begin, What::Submit, true);
}

/// Takes tasks and ends them, as an agent would: it repeats what was cut off.
async fn call(world: Arc<World>, store: Arc<Store>) {
    while !world.is_over.load(Ordering::Relaxed) {
        let begin = world.now();
        let taken = match store.take_next("q", None, begin.cast_signed()).await {
            Ok(Some(taken)) => taken,
            Ok(None) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            Err(_) => {
                world.note(None, begin, What::PerhapsTake, false);
                continue;
            }
        };
        world.note(Some(&taken.task), begin, What::Take(taken.run), true);
        let (task, run) = (taken.task, taken.run);
        for to in [TaskStatus::InProgress, TaskStatus::Completed] {
            let begin = world.now();
            let ends = to == TaskStatus::Completed;
            loop {
                let answer = store.set_status(&task, to, &world.change(run)).await;
                match answer {
                    Ok(_) if ends => {
                        world.note(Some(&task), begin, What::Done(run), true);
                        world.done.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(_) => {}
                    Err(error) if is_answer(&error) => break,
                    Err(_) => {
                        if ends {
                            world.note(Some(&task), begin, What::Done(run), false);
                        }
                        continue;
                    }
                }
                break;
            }
        }
    }
}

/// Puts back what was taken and not started.
async fn sweep(world: Arc<World>, store: Arc<Store>) {
    while !world.is_over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begin = world.now();
        let before_us = begin.saturating_sub(1_000_000).cast_signed();
        match store.reclaim(before_us, begin.cast_signed()).await {
            Ok(tasks) => {
                tasks.iter().for_each(|task| world.note(Some(task), begin, What::PutBack, true));
            }
            Err(_) => world.note(None, begin, What::PutBack, false),
        }
    }
}

/// Kills, in turns: all connections, and each tenth time PostgreSQL itself, without letting it finish anything.
async fn kill(server: &str, kills: u32) {
    const ALL: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE application_name LIKE 'cantle%' AND random() < 0.5";
    let ctl = std::env::var("CANTLE_TEST_PG_CTL").unwrap();
    for n in 1..=kills {
        tokio::time::sleep(Duration::from_millis(150)).await;
        if n.is_multiple_of(10) {
            let mut restart = tokio::process::Command::new(&ctl);
            let restart = restart.args(["-m", "immediate", "restart"]).stdout(std::process::Stdio::null());
            let restarted = restart.status().await.unwrap();
            assert!(restarted.success());
        } else {
            common::run(&format!("{server}/postgres"), ALL).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_is_lost_or_given_to_two() {
    let kills = std::env::var("CANTLE_TEST_KILLS").map_or(12, |text| text.parse().unwrap());
    let fresh = common::fresh().await;
    let mut stores = vec![Arc::new(fresh.open().await)];
    if common::postgres().is_some() {
        for _ in 1..SERVERS {
            stores.push(Arc::new(fresh.open().await));
        }
    }
    stores[0].create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let world = Arc::new(World {
        begin: Instant::now(),
        ops: Mutex::default(),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let server = |n: usize| Arc::clone(&stores[n % stores.len()]);
    let mut working: Vec<_> =
        (0..CALLERS).map(|n| tokio::spawn(call(Arc::clone(&world), server(n)))).collect();
    working.push(tokio::spawn(sweep(Arc::clone(&world), server(0))));
    let killing = common::postgres().map(|server| tokio::spawn(async move { kill(&server, kills).await }));
    let mut submitted: usize = 0;
    while submitted < TASKS || killing.as_ref().is_some_and(|killing| !killing.is_finished()) {
        submit(&world, &stores[submitted % stores.len()], &format!("t{submitted}")).await;
        submitted += 1;
    }
    if let Some(killing) = killing {
        killing.await.unwrap();
    }
    let all = || world.done.load(Ordering::Relaxed) >= submitted as u64;
    let patience = Instant::now();
    while !all() && patience.elapsed() < Duration::from_secs(300) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.is_over.store(true, Ordering::Relaxed);
    for work in working {
        work.await.unwrap();
    }
    eprintln!("{submitted} tasks, {kills} kills, {:?}", world.begin.elapsed());
    check(&world, &stores[0], submitted).await;
}

/// Asks again while the answer is that the connection was lost: the last kill may have closed a connection that was not
/// used since.
async fn read<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) if is_answer(&error) || begin.elapsed() > Duration::from_secs(30) => panic!("{error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn check(world: &World, store: &Store, submitted: usize) {
    let mut by_task: BTreeMap<String, Vec<Op>> = BTreeMap::new();
    let mut anywhere = Vec::new();
    for (task, op) in world.ops.lock().unwrap().iter() {
        match task {
            Some(task) => by_task.entry(task.clone()).or_default().push(*op),
            None => anywhere.push(*op),
        }
    }
    anywhere.sort_by_key(|op| op.begin);
    assert_eq!(by_task.len(), submitted);
    for (task, mut ops) in by_task {
        let row = read(async || store.task(&task).await).await;
        assert_eq!(row.index.status, TaskStatus::Completed, "{task} is lost: {ops:?}");
        let ended = read(async || store.runs(&task).await).await;
        let ended = ended.iter().filter(|run| run.outcome == Some(TaskStatus::Completed)).count();
        assert_eq!(ended, 1, "{task} ended {ended} times");
        // Calls that may have been about this task matter only if its own history has a gap.
        if ops.len() > 3 {
            for what in [What::PerhapsTake, What::PutBack] {
                ops.extend(anywhere.iter().filter(|op| op.what == what).take(AS_MANY));
            }
        }
        assert!(is_explained(&ops), "no order explains what was seen of {task}: {ops:?}");
    }
}

#[test]
fn a_planted_double_claim_is_found() {
    let op = |begin, what| Op { begin, end: begin + 5, what, is_sure: true };
    let mut ops = vec![op(0, What::Submit), op(10, What::Take(1)), op(20, What::Done(1))];
    assert!(is_explained(&ops));
    ops.push(op(12, What::Take(2)));
    assert!(!is_explained(&ops), "two callers have it");
    ops.push(Op { is_sure: false, ..op(11, What::PutBack) });
    assert!(!is_explained(&ops), "the first run was put back, and its end was accepted all the same");
    ops[2].what = What::Done(2);
    assert!(is_explained(&ops), "it was put back between them");
    ops.remove(2);
    assert!(!is_explained(&ops), "it never ended");
}
