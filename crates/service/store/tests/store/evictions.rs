//! Tasks that are to make room for others.

use super::*;

#[tokio::test]
async fn evictions_are_decided_one_after_the_other() {
    let (f, victim) = contended().await;
    let evict = |victim: VictimTask, seen| {
        let store = &f.store;
        async move { store.evict("n", &[victim], seen, &at(10)).await }
    };
    let stale = |answer: Result<(), StoreError>| matches!(answer, Err(StoreError::StaleEviction(_)));
    assert!(stale(evict(VictimTask { lease: "former".into(), ..victim.clone() }, 0).await), "another run");
    assert!(
        stale(evict(VictimTask { for_task: "victim".into(), ..victim.clone() }, 0).await),
        "a running task waits for nothing"
    );
    assert_eq!(f.store.last_eviction().await.unwrap(), 0, "nothing of what was refused is left");
    evict(victim.clone(), 0).await.unwrap();
    let last = f.store.last_eviction().await.unwrap();
    assert!(stale(evict(victim.clone(), 0).await), "decided without knowing of the first");
    assert!(stale(evict(victim, last).await), "it stops already");
    let (held, waiting) = f.store.held_and_waiting(&["q".into()]).await.unwrap();
    let names =
        |tasks: &[cantle_store::TaskRow]| tasks.iter().map(|t| t.index.id.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&held), names(&waiting)),
        (vec!["victim".into()], vec!["other".into(), "claimant".into()])
    );
    assert!(
        held[0].evicted.as_ref().unwrap().reason.starts_with("reclaimed by project poor for task claimant")
    );
}

#[tokio::test]
async fn an_agent_is_told_of_its_own_tasks_and_of_sums_elsewhere() {
    let (f, victim) = contended().await;
    f.queued_in("rich", "second").await;
    let terms = Terms { cpu_milli: 2000, memory_bytes: 1 << 30, ..Terms::default() };
    f.started("other", terms).await.unwrap();
    f.started("second", terms).await.unwrap();
    f.store.evict("n", &[victim], 0, &at(10)).await.unwrap();
    let queues = ["q".to_owned()];
    let here = f.store.fleet("n", &queues, false).await.unwrap();
    assert_eq!((here.here.len(), here.elsewhere.len()), (3, 0), "all of it is here");
    let there = f.store.fleet("m", &queues, false).await.unwrap();
    assert!(there.here.is_empty());
    let sum = |stopping, amounts| HeldSum {
        project: Some("rich".into()),
        preemptible: true,
        stopping,
        amounts: Amounts(amounts),
        pool_milli: BTreeMap::new(),
    };
    assert_eq!(there.elsewhere, [sum(false, [1000, 4000, 2 << 30]), sum(true, [500, 0, 0])]);
    assert_eq!(there.freeing, [("claimant".into(), "n".into())]);
    let names: Vec<&str> = there.waiting.iter().map(|waiting| waiting.task.as_str()).collect();
    assert_eq!(names, ["claimant"]);
    f.store.give_back("victim", "victim", &at(11)).await.unwrap();
    let after = f.store.fleet("m", &queues, false).await.unwrap();
    assert_eq!(after.waiting[0].evicted, Some(("claimant".into(), Cause::Reclaim)));
    assert_eq!((after.elsewhere.len(), after.freeing.len()), (1, 0));
}

#[tokio::test]
async fn the_evicted_go_to_the_front_once_and_keep_their_history() {
    let (f, victim) = contended().await;
    f.store.evict("n", &[victim], 0, &at(10)).await.unwrap();
    // The program was killed by the signal, or reported the signal itself: both are no end.
    f.store.set_status("victim", TaskStatus::Stopped, &at(11)).await.unwrap();
    let change = Change { reason: "reclaimed".into(), ..at(12) };
    assert!(!f.store.give_back("victim", "former", &change).await.unwrap(), "another run");
    assert!(f.store.give_back("victim", "victim", &change).await.unwrap());
    assert!(!f.store.give_back("victim", "victim", &change).await.unwrap(), "the call is repeated");
    assert_eq!(f.order().await, ["victim", "other", "claimant"]);
    let row = f.store.task("victim").await.unwrap();
    assert_eq!((row.index.status, row.lease, row.index.started_us), (TaskStatus::Queued, None, None));
    assert_eq!(row.evicted.unwrap().for_task, "claimant", "which goes first");
    f.started("victim", Terms::default()).await.unwrap();
    assert_eq!(f.store.task("victim").await.unwrap().evicted, None, "a new run");
    let story = f.store.events(Some("victim"), Some(0), 100).await.unwrap();
    let kinds: Vec<&str> = story.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["enqueue", "place", "start", "reclaim", "end", "requeue", "place", "start"]);
}

#[tokio::test]
async fn the_suspended_make_room_until_they_are_back() {
    let (f, victim) = contended().await;
    let slices = f.store.task("victim").await.unwrap().slices;
    let before = f.store.task("victim").await.unwrap().status_message;
    let asked = Change { message: "stop".into(), ..at(10) };
    f.store.evict("n", &[VictimTask { suspends: true, ..victim }], 0, &asked).await.unwrap();
    let told = async || f.store.task("victim").await.unwrap().status_message;
    assert_eq!(told().await, before, "a task that is suspended hears nothing");
    f.store.stop_evicted("victim", "another", &asked).await.unwrap();
    assert_eq!(told().await, before, "another lease");
    f.store.change_slices("victim", "victim", &[], 11).await.unwrap();
    assert!(f.store.task("victim").await.unwrap().is_out());
    // What is out waits, and others can make room for it; the negative control: one that ran and is done.
    f.started("other", Terms::default()).await.unwrap();
    let wish = |for_task: &str| VictimTask {
        task: "other".into(),
        lease: "other".into(),
        for_task: for_task.into(),
        cause: Cause::Reclaim,
        suspends: false,
    };
    let last = f.store.last_eviction().await.unwrap();
    assert!(f.store.evict("n", &[wish("other")], last, &asked).await.is_err());
    f.store.evict("n", &[wish("victim")], last, &asked).await.unwrap();
    assert_eq!(f.store.task("other").await.unwrap().status_message, "stop");
    f.store.change_slices("victim", "victim", &slices, 12).await.unwrap();
    let back = f.store.task("victim").await.unwrap();
    assert_eq!((back.evicted, back.index.status), (None, TaskStatus::InProgress));
    f.store.stop_evicted("victim", "victim", &asked).await.unwrap();
    assert_eq!(told().await, before, "it makes room for no task");
}

#[tokio::test]
async fn the_evicted_that_are_done_or_aborted_are_not_queued_again() {
    for (ends, then) in
        [(TaskStatus::Completed, TaskStatus::Completed), (TaskStatus::InProgress, TaskStatus::Stopped)]
    {
        let (f, victim) = contended().await;
        f.store.evict("n", &[victim], 0, &at(10)).await.unwrap();
        if ends == TaskStatus::InProgress {
            f.store.ask_to_stop("victim", &at(11)).await.unwrap();
        }
        f.store.set_status("victim", ends, &at(12)).await.unwrap();
        assert!(!f.store.give_back("victim", "victim", &at(13)).await.unwrap());
        assert_eq!(f.status("victim").await, then);
        assert_eq!(f.order().await, ["other", "claimant"]);
    }
}
