//! How long a task may run, and which tasks end before it starts.

use cantle_model::TaskStatus::{self, Completed, Created, Failed, InProgress, Queued, Stopped};
use cantle_model::{After, Ending, IdleTime, Measured, TimeLimit};
use cantle_store::{
    Change, ChangedLimit, NewTask, QueueTimes, Settled, Store, StoreError, TaskClaim, Terms, Wishes,
};
use serde_json::Map;

use crate::common;

const S: i64 = 1_000_000;

fn at(seconds: i64) -> Change {
    Change { now_us: seconds * S, ..Change::default() }
}

async fn open() -> (Store, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "queue", &Map::new(), 1).await.unwrap();
    (store, fresh)
}

fn after(ending: Ending, task: &str) -> After {
    After { ending, task: task.to_owned() }
}

fn new(id: &str, after: Vec<After>) -> NewTask {
    let wishes = Wishes { after, ..Wishes::default() };
    NewTask {
        id: id.into(),
        name: format!("name of {id}"),
        kind: "custom".into(),
        wishes,
        ..NewTask::default()
    }
}

async fn submit(store: &Store, id: &str, after: Vec<After>) {
    store.submit(&new(id, after), "q", &at(1)).await.unwrap();
}

async fn entries(store: &Store) -> Vec<String> {
    store.queue("q").await.unwrap().entries.into_iter().map(|(task, _)| task).collect()
}

async fn status(store: &Store, id: &str) -> TaskStatus {
    store.task(id).await.unwrap().index.status
}

async fn end(store: &Store, id: &str, to: TaskStatus) {
    store.take_next("q", Some(id), 2 * S).await.unwrap().unwrap();
    store.set_status(id, InProgress, &at(2)).await.unwrap();
    store.set_status(id, to, &at(3)).await.unwrap();
}

#[tokio::test]
async fn a_task_enters_its_queue_when_what_it_waits_for_has_ended() {
    let (store, _fresh) = open().await;
    submit(&store, "a", Vec::new()).await;
    submit(&store, "b", vec![after(Ending::Ok, "a")]).await;
    submit(&store, "c", Vec::new()).await;
    assert_eq!((entries(&store).await, status(&store, "b").await), (vec!["a".into(), "c".into()], Queued));
    assert_eq!(store.take_next("q", Some("b"), 2 * S).await.unwrap(), None, "no agent gets it by its name");
    assert_eq!(store.settle_after(2 * S).await.unwrap(), []);
    let waits = store.waiting_after().await.unwrap();
    assert_eq!(waits["b"][0].now, Some(("name of a".to_owned(), Queued)));

    end(&store, "a", Completed).await;
    assert_eq!(entries(&store).await, ["c"]);
    assert_eq!(store.settle_after(4 * S).await.unwrap(), [("b".into(), Settled::Queued("q".into()))]);
    assert_eq!(entries(&store).await, ["c", "b"], "at the end: it did not wait in the queue");
    assert!(store.waiting_after().await.unwrap().is_empty());
    assert_eq!(store.settle_after(5 * S).await.unwrap(), [], "once");
    end(&store, "b", Completed).await;
}

#[tokio::test]
async fn each_end_meets_what_it_is_and_stops_what_waits_for_the_contrary() {
    for (how, ended) in
        [(Completed, [true, true, false]), (Failed, [false, true, true]), (Stopped, [false, true, true])]
    {
        let (store, _fresh) = open().await;
        submit(&store, "a", Vec::new()).await;
        let endings = [Ending::Ok, Ending::Any, Ending::Fail];
        for ending in endings {
            submit(&store, ending.word(), vec![after(ending, "a")]).await;
        }
        end(&store, "a", how).await;
        assert_eq!(store.settle_after(4 * S).await.unwrap().len(), 3);
        for (ending, enters) in endings.into_iter().zip(ended) {
            let row = store.task(ending.word()).await.unwrap();
            let expected = if enters { Queued } else { Stopped };
            assert_eq!(row.index.status, expected, "{how}: {}", ending.word());
            let why = format!("after {}:name of a, which is {how}", ending.word());
            assert_eq!(row.status_reason, if enters { String::new() } else { why });
        }
    }
}

#[tokio::test]
async fn a_task_waits_for_all_and_a_deleted_one_ends_the_wait() {
    let (store, _fresh) = open().await;
    submit(&store, "a", Vec::new()).await;
    submit(&store, "b", Vec::new()).await;
    submit(&store, "both", vec![after(Ending::Any, "a"), after(Ending::Any, "b")]).await;
    end(&store, "a", Failed).await;
    assert_eq!(store.settle_after(4 * S).await.unwrap(), [], "one of two");
    store.delete_task("b", &Change { force: true, ..at(5) }).await.unwrap();
    let why = "after any:b, which was deleted".to_owned();
    assert_eq!(store.settle_after(6 * S).await.unwrap(), [("both".into(), Settled::Stopped(why.clone()))]);
    assert_eq!(store.task("both").await.unwrap().status_reason, why);
    // A task that waits for it in turn is stopped, too.
    submit(&store, "x", Vec::new()).await;
    submit(&store, "y", vec![after(Ending::Ok, "x")]).await;
    submit(&store, "z", vec![after(Ending::Ok, "y")]).await;
    end(&store, "x", Failed).await;
    store.settle_after(7 * S).await.unwrap();
    store.settle_after(8 * S).await.unwrap();
    assert_eq!(status(&store, "z").await, Stopped);
}

#[tokio::test]
async fn a_queue_that_is_gone_ends_the_wait() {
    let (store, _fresh) = open().await;
    submit(&store, "a", Vec::new()).await;
    submit(&store, "b", vec![after(Ending::Any, "a")]).await;
    end(&store, "a", Completed).await;
    store.delete_queue("q").await.unwrap();
    store.settle_after(4 * S).await.unwrap();
    let row = store.task("b").await.unwrap();
    assert_eq!(
        (row.index.status, row.status_reason.as_str()),
        (Stopped, "its queue does not exist any more")
    );
}

#[tokio::test]
async fn a_waiting_task_is_stopped_taken_out_and_queued_again_like_others() {
    let (store, fresh) = open().await;
    submit(&store, "a", Vec::new()).await;
    submit(&store, "b", vec![after(Ending::Ok, "a")]).await;
    let check = fresh.database.verify().await.unwrap();
    assert!(check.is_empty(), "{check:?}");
    store.set_status("b", Stopped, &at(2)).await.unwrap();
    end(&store, "a", Completed).await;
    assert_eq!(store.settle_after(4 * S).await.unwrap(), [], "a stopped task stays stopped");
    // Now nothing is to be waited for.
    store.set_wishes(&[("b".into(), Wishes::default())]).await.unwrap();
    store.enqueue("b", "q", &at(5)).await.unwrap();
    assert_eq!(entries(&store).await, ["b"]);
    // Many at once: the ones that wait are left out of the queue.
    store.create_task(&new("c", Vec::new()), 1).await.unwrap();
    store.create_task(&new("d", vec![after(Ending::Ok, "b")]), 1).await.unwrap();
    store.enqueue_many(&["c".into(), "d".into()], "q", &at(6)).await.unwrap();
    assert_eq!((entries(&store).await, status(&store, "d").await), (vec!["b".into(), "c".into()], Queued));
    assert!(store.dequeue("d", None, Created, &at(7)).await.unwrap());
    assert_eq!(status(&store, "d").await, Created);
}

#[tokio::test]
async fn who_waits_for_whom_is_known_over_several_steps() {
    let (store, _fresh) = open().await;
    submit(&store, "a", Vec::new()).await;
    submit(&store, "b", vec![after(Ending::Ok, "a")]).await;
    submit(&store, "c", vec![after(Ending::Ok, "b")]).await;
    let waits = |from: &str, to: &'static str| {
        let (store, from) = (&store, vec![from.to_owned()]);
        async move { store.waits_for(&from, to).await.unwrap() }
    };
    assert!(waits("c", "a").await && waits("b", "a").await && waits("c", "b").await);
    assert!(!waits("a", "c").await && !waits("a", "a").await);
    store.dequeue("b", None, Created, &at(2)).await.unwrap();
    assert!(!waits("c", "a").await, "a draft waits for no task");
}

#[tokio::test]
async fn tasks_that_wait_for_others_count_for_the_limit_of_their_user() {
    let (store, fresh) = open().await;
    fresh.meddle("INSERT INTO users (id, name, created_us, most_queued) VALUES ('u', 'u', 1, 2)").await;
    let wish = Change { is_wish: true, ..at(1) };
    let of_owner = |id: &str, after| NewTask { owner: "u".into(), ..new(id, after) };
    store.submit(&of_owner("a", Vec::new()), "q", &wish).await.unwrap();
    store.submit(&of_owner("b", vec![after(Ending::Ok, "a")]), "q", &wish).await.unwrap();
    let third = store.submit(&of_owner("c", vec![after(Ending::Ok, "a")]), "q", &wish).await;
    assert!(matches!(third, Err(StoreError::OverQueued { most: 2, .. })), "{third:?}");
}

#[tokio::test]
async fn a_time_limit_stays_with_the_task_and_changes_only_while_it_waits_or_runs() {
    let (store, fresh) = open().await;
    let hours = |n: u64| TimeLimit::of_seconds(n * 3600);
    let new = NewTask { wishes: Wishes { time: hours(2), ..Wishes::default() }, ..new("a", Vec::new()) };
    store.create_task(&new, 1).await.unwrap();
    let longer = |was: TimeLimit| TimeLimit::of_seconds(was.seconds() + 3600);
    let refused = store.change_time("a", ChangedLimit::Run, &at(1), longer).await;
    assert!(matches!(refused, Err(StoreError::Status { from: Created, .. })), "{refused:?}");
    store.enqueue("a", "q", &at(2)).await.unwrap();
    assert_eq!(store.change_time("a", ChangedLimit::Run, &at(3), longer).await.unwrap(), hours(3).unwrap());
    let refused = store.change_time("a", ChangedLimit::Run, &at(3), |_| None).await.unwrap_err().to_string();
    assert_eq!(refused, "task a may run 3h: from 1s to 366d have to be left");
    store.close().await;
    let store = fresh.open().await;
    assert_eq!(store.task("a").await.unwrap().time, hours(3), "after a restart, too");
    // Wishes of a task that waits are not changed behind its back.
    store.set_wishes(&[("a".into(), Wishes::default())]).await.unwrap();
    assert_eq!(store.task("a").await.unwrap().time, hours(3));
    end(&store, "a", Completed).await;
    store.set_wishes(&[("a".into(), Wishes { time: hours(1), ..Wishes::default() })]).await.unwrap();
    assert_eq!(store.task("a").await.unwrap().time, hours(1), "for its next run");
    submit(&store, "b", Vec::new()).await;
    assert_eq!(
        store.change_time("b", ChangedLimit::Run, &at(4), longer).await.unwrap_err().to_string(),
        "task b has no time limit"
    );
}

#[tokio::test]
async fn an_idle_time_is_kept_and_changed_apart_from_the_time_limit() {
    let (store, fresh) = open().await;
    let minutes = |n: u64| IdleTime::of_seconds(n * 60);
    let wishes = Wishes { time: TimeLimit::of_seconds(7200), idle: minutes(30), ..Wishes::default() };
    let new = NewTask { wishes, ..new("a", Vec::new()) };
    store.submit(&new, "q", &at(1)).await.unwrap();
    let by = |seconds: i64| {
        move |was: TimeLimit| TimeLimit::of_seconds(was.seconds().checked_add_signed(seconds)?)
    };
    let idle = ChangedLimit::Idle;
    assert_eq!(store.change_time("a", idle, &at(2), by(600)).await.unwrap().to_string(), "40m");
    let refused = store.change_time("a", idle, &at(3), by(-2399)).await.unwrap_err().to_string();
    assert_eq!(refused, "task a may be idle for 40m: from 1m to 366d have to be left");
    store.close().await;
    let store = fresh.open().await;
    let row = store.task("a").await.unwrap();
    assert_eq!((row.idle, row.time), (minutes(40), TimeLimit::of_seconds(7200)), "after a restart, too");
    end(&store, "a", Completed).await;
    store.set_wishes(&[("a".into(), Wishes { idle: minutes(5), ..Wishes::default() })]).await.unwrap();
    let row = store.task("a").await.unwrap();
    assert_eq!((row.idle, row.time), (minutes(5), None), "for its next run");
    submit(&store, "b", Vec::new()).await;
    assert_eq!(
        store.change_time("b", idle, &at(4), by(60)).await.unwrap_err().to_string(),
        "task b may be idle as long as it likes"
    );
}

#[tokio::test]
async fn the_server_ends_tasks_of_agents_that_know_no_limits() {
    let (store, _fresh) = open().await;
    let wishes = Wishes { time: TimeLimit::of_seconds(60), ..Wishes::default() };
    for id in ["stock", "ours", "waits"] {
        store.submit(&NewTask { wishes: wishes.clone(), ..new(id, Vec::new()) }, "q", &at(1)).await.unwrap();
    }
    submit(&store, "free", Vec::new()).await;
    for id in ["stock", "ours", "free"] {
        store.take_next("q", Some(id), 2 * S).await.unwrap().unwrap();
    }
    let claim = TaskClaim {
        task: "ours".into(),
        node: "n".into(),
        lease: "l".into(),
        run: None,
        slices: Vec::new(),
        terms: Terms::default(),
        exit_code: None,
        reason: None,
        measured: Measured::default(),
    };
    store.claim(&claim, 2 * S).await.unwrap();
    for id in ["stock", "ours", "free"] {
        store.set_status(id, InProgress, &at(10)).await.unwrap();
    }
    let overdue = |nodes: &'static [&str], now_s: i64| {
        let nodes: Vec<String> = nodes.iter().map(|&node| node.to_owned()).collect();
        let store = &store;
        async move { store.end_overdue(&nodes, 60 * S, now_s * S).await.unwrap() }
    };
    assert_eq!(overdue(&["n"], 69).await, Vec::<String>::new());
    assert_eq!(overdue(&["n"], 71).await, ["stock"], "cantle's agent ends its own");
    let row = store.task("stock").await.unwrap();
    assert_eq!((row.index.status, row.status_reason.as_str()), (Failed, "its time of 1m is over"));
    assert_eq!(overdue(&["n"], 129).await, Vec::<String>::new(), "once, and our agent has its time");
    assert_eq!(overdue(&["other"], 500).await, Vec::<String>::new(), "a silent node may be ending it");
    assert_eq!(overdue(&[], 500).await, Vec::<String>::new());
    assert_eq!(overdue(&["n"], 131).await, ["ours"], "it is of a version that knows no limits");
    assert_eq!(status(&store, "free").await, InProgress);
}

#[tokio::test]
async fn a_queue_keeps_its_times_until_it_is_deleted() {
    let (store, _fresh) = open().await;
    let times = QueueTimes {
        max: TimeLimit::of_seconds(7200),
        default_idle: IdleTime::of_seconds(600),
        ..QueueTimes::default()
    };
    store.set_queue_times("q", times).await.unwrap();
    assert_eq!(store.queue_times().await.unwrap()["q"], times);
    store.set_queue_times("q", QueueTimes::default()).await.unwrap();
    assert!(store.queue_times().await.unwrap().is_empty());
    assert!(matches!(store.set_queue_times("none", times).await, Err(StoreError::NoQueue(_))));
}
