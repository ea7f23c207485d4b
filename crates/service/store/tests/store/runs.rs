//! Every run of a task is kept, and a report about an older one is refused.

use cantle_model::{Measured, Milli, Slice, TaskStatus};
use cantle_store::{
    Change, LogLine, NewTask, OutputPiece, RunRow, Scalar, Store, StoreError, TaskClaim, Terms, former_output,
};
use serde_json::Map;

use crate::common;

async fn open() -> (Store, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let new = NewTask { id: "t".into(), name: "t".into(), kind: "training".into(), ..NewTask::default() };
    store.submit(&new, "q", &at(1)).await.unwrap();
    (store, fresh)
}

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

fn claim(lease: &str, run: Option<i64>) -> TaskClaim {
    let slice = Slice { gpu: "GPU-a".into(), milli: Milli(500), memory_limit_bytes: 1 << 30, mig: None };
    TaskClaim {
        task: "t".into(),
        node: "n".into(),
        lease: lease.into(),
        run,
        slices: vec![slice],
        terms: Terms::default(),
        exit_code: None,
        reason: None,
        measured: Measured::default(),
    }
}

fn shape(run: &RunRow) -> (i64, Option<&str>, Option<TaskStatus>, Option<i64>, Option<i64>) {
    (run.run, run.lease.as_deref(), run.outcome, run.started_us, run.ended_us)
}

#[tokio::test]
async fn nothing_erases_a_run() {
    use TaskStatus::{Completed, Failed, InProgress, Queued};
    let (store, _dir) = open().await;
    assert!(store.runs("t").await.unwrap().is_empty(), "a task that waits has not run");
    // Taken and never started; then it fails; then it is enqueued again, completes, and is reset and deleted.
    assert_eq!(store.take_next("q", None, 2).await.unwrap().unwrap().run, 1);
    store.reclaim(10, 11).await.unwrap();
    assert_eq!(store.take_next("q", None, 12).await.unwrap().unwrap().run, 2);
    store.claim(&claim("two", Some(2)), 13).await.unwrap();
    store.set_status("t", InProgress, &at(14)).await.unwrap();
    let measured = Measured { peak_bytes: Some(7 << 30), gpu_time_us: Some(1_500_000) };
    let reason = Some("no memory".into());
    let exit = TaskClaim { exit_code: Some(3), reason, measured, ..claim("two", Some(2)) };
    store.claim(&exit, 20).await.unwrap();
    store.set_status("t", Failed, &at(21)).await.unwrap();
    store.enqueue("t", "q", &Change { force: true, ..at(30) }).await.unwrap();
    assert_eq!(store.take_next("q", None, 31).await.unwrap().unwrap().run, 3);
    store.claim(&claim("three", Some(3)), 32).await.unwrap();
    store.set_status("t", InProgress, &at(33)).await.unwrap();
    store.set_status("t", Completed, &at(40)).await.unwrap();
    store.reset("t", &at(50), |_| ()).await.unwrap();
    store.delete_task("t", &at(60)).await.unwrap();
    let runs = store.runs("t").await.unwrap();
    let shapes: Vec<_> = runs.iter().map(shape).collect();
    assert_eq!(
        shapes,
        [
            (1, None, Some(Queued), None, Some(11)),
            (2, Some("two"), Some(Failed), Some(14), Some(20)),
            (3, Some("three"), Some(Completed), Some(33), Some(40)),
        ]
    );
    assert_eq!(runs[1].why.as_deref(), Some("no memory"));
    assert_eq!([runs[1].measured, runs[2].measured], [measured, Measured::default()]);
    assert_eq!((runs[1].exit_code, runs[1].slices[0].milli), (Some(3), Milli(500)));
}

#[tokio::test]
async fn a_task_that_starts_without_an_agent_has_a_run_too() {
    let (store, _dir) = open().await;
    store.set_status("t", TaskStatus::InProgress, &at(2)).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &at(3)).await.unwrap();
    store.set_status("t", TaskStatus::Stopped, &at(4)).await.unwrap();
    let runs = store.runs("t").await.unwrap();
    assert_eq!(
        runs.iter().map(shape).collect::<Vec<_>>(),
        [(1, None, Some(TaskStatus::Stopped), Some(2), Some(4))]
    );
}

/// A node was lost and its task runs elsewhere. Reports of the first agent, even with `force`, change nothing.
#[tokio::test]
async fn an_older_run_can_neither_claim_nor_start_nor_end_the_task() {
    let (store, _dir) = open().await;
    store.take_next("q", None, 2).await.unwrap().unwrap();
    store.claim(&claim("old", Some(1)), 3).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &Change { run: Some(1), ..at(4) }).await.unwrap();
    store.enqueue("t", "q", &Change { force: true, reason: "node lost".into(), ..at(5) }).await.unwrap();
    store.take_next("q", None, 6).await.unwrap().unwrap();
    store.claim(&claim("new", Some(2)), 7).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &Change { run: Some(2), ..at(8) }).await.unwrap();
    let forced = Change { run: Some(1), force: true, ..at(9) };
    for status in [TaskStatus::Completed, TaskStatus::Failed, TaskStatus::InProgress] {
        let refused = store.set_status("t", status, &forced).await.unwrap_err();
        assert!(matches!(refused, StoreError::StaleRun { run: 1, newest: 2, .. }), "{refused}");
    }
    let refused = store.claim(&claim("old", Some(1)), 10).await.unwrap_err();
    assert!(matches!(refused, StoreError::StaleRun { .. }), "{refused}");
    assert_eq!(store.task("t").await.unwrap().index.status, TaskStatus::InProgress);
    let runs = store.runs("t").await.unwrap();
    assert_eq!((runs[0].outcome, runs[0].why.as_deref()), (Some(TaskStatus::Queued), Some("node lost")));
    assert_eq!((runs[1].outcome, runs[1].lease.as_deref()), (None, Some("new")));
}

/// An agent that was cut off before it started the task gives it back, and the server did so long ago.
#[tokio::test]
async fn a_run_that_was_given_up_cannot_put_itself_back() {
    let (store, _fresh) = open().await;
    let give_back = |run, now| Change { force: true, run: Some(run), ..at(now) };
    let first = store.take_next("q", None, 2).await.unwrap().unwrap().run;
    assert_eq!(store.reclaim(3, 4).await.unwrap(), ["t"]);
    let second = store.take_next("q", None, 5).await.unwrap().unwrap().run;
    store.claim(&claim("second", Some(second)), 6).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &at(7)).await.unwrap();
    let refused = store.enqueue("t", "q", &give_back(first, 8)).await;
    assert!(matches!(refused, Err(StoreError::StaleRun { .. })), "another agent runs it");
    assert_eq!(store.task("t").await.unwrap().index.status, TaskStatus::InProgress);
    store.enqueue("t", "q", &give_back(second, 9)).await.unwrap();
    assert_eq!(store.queue("q").await.unwrap().entries.len(), 1, "its own agent may");
}

/// Between the moment when an agent takes a task and the one when it starts it, a user stops the task.
#[tokio::test]
async fn a_task_that_was_stopped_after_it_was_taken_does_not_start() {
    for is_claimed in [false, true] {
        let (store, _fresh) = open().await;
        let run = store.take_next("q", None, 2).await.unwrap().unwrap().run;
        if is_claimed {
            store.claim(&claim("taken", Some(run)), 3).await.unwrap();
        }
        store.set_status("t", TaskStatus::Stopped, &at(4)).await.unwrap();
        let refused = store.claim(&claim("taken", Some(run)), 5).await;
        assert!(matches!(refused, Err(StoreError::StaleRun { .. })), "{refused:?}");
        let starts = Change { force: true, run: Some(run), ..at(6) };
        let refused = store.set_status("t", TaskStatus::InProgress, &starts).await;
        assert!(matches!(refused, Err(StoreError::StaleRun { .. })), "{refused:?}");
        assert_eq!(store.task("t").await.unwrap().index.status, TaskStatus::Stopped);
        let outcomes: Vec<_> = store.runs("t").await.unwrap().iter().map(|run| run.outcome).collect();
        assert_eq!(outcomes, [Some(TaskStatus::Stopped)], "claimed before: {is_claimed}");
    }
}

/// An agent repeats its report when the answer is lost.
#[tokio::test]
async fn a_second_report_that_a_task_runs_keeps_the_request_to_stop_it() {
    let (store, _fresh) = open().await;
    let run = store.take_next("q", None, 2).await.unwrap().unwrap().run;
    store.claim(&claim("taken", Some(run)), 3).await.unwrap();
    let starts = |now| Change { force: true, run: Some(run), message: "pulled by agent".into(), ..at(now) };
    store.set_status("t", TaskStatus::InProgress, &starts(4)).await.unwrap();
    store.ask_to_stop("t", &Change { message: "stopping".into(), ..at(5) }).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &starts(6)).await.unwrap();
    let row = store.task("t").await.unwrap();
    assert_eq!((row.status_message.as_str(), row.stop_asked), ("stopping", true));
}

fn line(msg: &str) -> LogLine {
    let (task, worker, level) = ("t".into(), "w".into(), "info".into());
    LogLine { id: 0, task, timestamp_ms: 1, worker, level, msg: msg.into() }
}

fn value(value: f64) -> Scalar {
    Scalar { task: "t".into(), metric: "loss".into(), variant: "v".into(), iter: 1, timestamp_ms: 1, value }
}

/// What the store has of a task, or of one of its former runs: text, and values.
async fn output(store: &Store, of: &str) -> (Vec<String>, Vec<f64>) {
    let lines = store.logs_after(of, 0, 100).await.unwrap();
    let values = store.latest_scalars(of).await.unwrap();
    (lines.into_iter().map(|line| line.msg).collect(), values.iter().map(|line| line.last.value).collect())
}

#[tokio::test]
async fn a_run_keeps_its_output_when_the_next_one_starts() {
    let (store, _dir) = open().await;
    for run in 1..=3 {
        assert_eq!(store.take_next("q", None, 10 * run).await.unwrap().unwrap().run, run);
        let was_reset = run == 3;
        let own = if run == 1 || was_reset { run } else { run - 1 };
        for of in 1..=run {
            let is_former = store.is_former_output("t", of, run).await.unwrap();
            assert_eq!(is_former, of != own, "run {of} before run {run} starts");
        }
        store.set_status("t", TaskStatus::InProgress, &at(10 * run + 1)).await.unwrap();
        // Clients repeat it.
        store.set_status("t", TaskStatus::InProgress, &at(10 * run + 2)).await.unwrap();
        let number = u32::try_from(run).unwrap();
        store.add_logs(&[line(&format!("run {run}"))], 10 * run).await.unwrap();
        store.add_scalars(&[value(f64::from(number))]).await.unwrap();
        match run {
            // Preempted, then failed and reset, then it stays.
            1 => store.enqueue("t", "q", &Change { force: true, ..at(19) }).await.unwrap(),
            2 => {
                store.set_status("t", TaskStatus::Failed, &at(28)).await.unwrap();
                store.reset("t", &at(28), |_| ()).await.unwrap();
                assert_eq!(output(&store, "t").await, (vec![], vec![]), "a draft");
                assert!(store.is_former_output("t", 2, 2).await.unwrap());
                store.enqueue("t", "q", &at(29)).await.unwrap();
            }
            _ => {}
        }
    }
    for run in 1..=2 {
        let expected = (vec![format!("run {run}")], vec![f64::from(u32::try_from(run).unwrap())]);
        assert_eq!(output(&store, &former_output("t", run)).await, expected);
    }
    assert_eq!(output(&store, "t").await, (vec!["run 3".to_owned()], vec![3.0]), "clients see the newest");
    assert!(!store.is_former_output("t", 3, 3).await.unwrap());
    store.set_status("t", TaskStatus::Completed, &at(50)).await.unwrap();
    store.delete_task("t", &at(60)).await.unwrap();
    for of in ["t".to_owned(), former_output("t", 1), former_output("t", 2)] {
        assert_eq!(output(&store, &of).await, (vec![], vec![]), "{of}");
    }
}

/// A script that its author starts again and again: ClearML's SDK resets its task each time, or goes on with it.
#[tokio::test]
async fn what_nobody_took_from_a_queue_is_not_kept() {
    let (store, _dir) = open().await;
    store.set_status("t", TaskStatus::InProgress, &at(2)).await.unwrap();
    store.add_logs(&[line("first")], 3).await.unwrap();
    store.set_status("t", TaskStatus::Stopped, &at(4)).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &at(5)).await.unwrap();
    store.add_logs(&[line("goes on")], 6).await.unwrap();
    assert_eq!(output(&store, "t").await.0, ["first", "goes on"]);
    store.reset("t", &Change { force: true, ..at(7) }, |_| ()).await.unwrap();
    assert_eq!(output(&store, "t").await.0, Vec::<String>::new());
    assert!(!store.is_former_output("t", 2, 2).await.unwrap());
}

/// An agent that was killed before it noted the answer, or got none, sends the same part of the output once more, perhaps a longer one.
#[tokio::test]
async fn a_piece_of_output_is_kept_once() {
    let (store, _dir) = open().await;
    store.take_next("q", None, 2).await.unwrap();
    store.claim(&claim("one", Some(1)), 3).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &at(4)).await.unwrap();
    let piece = |lease: &str, begin_bytes, end_bytes, text: &str| OutputPiece {
        task: "t".into(),
        lease: lease.into(),
        begin_bytes,
        end_bytes,
        lines: vec![line(text)],
    };
    assert_eq!(store.add_output(&piece("one", 0, 6, "first"), 5).await.unwrap(), None);
    assert_eq!(store.add_output(&piece("one", 0, 6, "first"), 6).await.unwrap(), Some(6));
    assert_eq!(store.add_output(&piece("one", 0, 13, "first and second"), 7).await.unwrap(), Some(6));
    assert_eq!(store.add_output(&piece("one", 6, 13, "second"), 8).await.unwrap(), None);
    assert_eq!(store.add_output(&piece("one", 900, 950, "the end"), 9).await.unwrap(), None, "left out");
    assert_eq!(output(&store, "t").await.0, ["first", "second", "the end"]);
    // The next run has an output of its own.
    store.set_status("t", TaskStatus::Failed, &at(20)).await.unwrap();
    store.enqueue("t", "q", &Change { force: true, ..at(21) }).await.unwrap();
    store.take_next("q", None, 22).await.unwrap();
    store.claim(&claim("two", Some(2)), 23).await.unwrap();
    store.set_status("t", TaskStatus::InProgress, &at(24)).await.unwrap();
    assert_eq!(store.add_output(&piece("two", 0, 6, "again"), 24).await.unwrap(), None);
    assert_eq!(output(&store, "t").await.0, ["again"]);
}
