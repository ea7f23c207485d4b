//! Days that are kept for reports: whatever changes the records of a day takes it away.

use cantle_model::{ProjectQuota, Quota, TaskStatus};
use cantle_store::{DAY_US, GpuTimeRow, NewTask, Store, UsageDay, UsageForm};
use serde_json::Map;

use crate::common;
use crate::usage::{at, claim, slice};

const FORM: UsageForm = UsageForm(1);

/// An hour of a day.
const fn hour(day: i64, hour: i64) -> i64 {
    day * DAY_US + hour * (DAY_US / 24)
}

/// Marks and keeps days 0 to 9, and returns the days that are kept then.
async fn keep(store: &Store) -> Vec<i64> {
    store.mark_usage_days(FORM, 0, 10, hour(10, 1)).await.unwrap();
    for (day, marked_us) in store.marked_usage_days(FORM, hour(10, 2), 100).await.unwrap() {
        let kept = UsageDay { day, part: vec![7, u8::try_from(day).unwrap()], tasks: Some(vec![9]) };
        assert!(store.keep_usage_day(FORM, kept, marked_us).await.unwrap());
    }
    kept(store).await
}

async fn kept(store: &Store) -> Vec<i64> {
    store.kept_usage_days(FORM, 0, 100).await.unwrap()
}

/// A task that holds a GPU from then on.
async fn begin(store: &Store, id: &str, taken_us: i64) {
    let (name, owner) = (format!("name of {id}"), "ann".to_owned());
    let new = NewTask { id: id.into(), name, kind: "training".into(), owner, ..NewTask::default() };
    store.submit(&new, "q", &at(taken_us - 1)).await.unwrap();
    store.take_next("q", None, taken_us).await.unwrap().unwrap();
    store.claim(&claim(id, vec![slice("g", 500)], None), taken_us).await.unwrap();
    store.set_status(id, TaskStatus::InProgress, &at(taken_us)).await.unwrap();
}

async fn end(store: &Store, id: &str, ended_us: i64) {
    store.claim(&claim(id, vec![slice("g", 500)], Some(0)), ended_us).await.unwrap();
    store.set_status(id, TaskStatus::Completed, &at(ended_us)).await.unwrap();
}

#[tokio::test]
async fn a_change_of_a_day_takes_it_away() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    common::make_project(&store, "p", "p").await;
    begin(&store, "a", hour(2, 5)).await;
    end(&store, "a", hour(4, 5)).await;
    begin(&store, "lasts", hour(6, 5)).await;
    let all: Vec<i64> = (0..10).collect();
    let but = |gone: std::ops::Range<i64>| {
        all.iter().copied().filter(|day| !gone.contains(day)).collect::<Vec<_>>()
    };
    assert_eq!(keep(&store).await, all);
    let read = store.usage_days(FORM, 3, 5, true).await.unwrap();
    assert_eq!(
        read,
        [3_u8, 4].map(|day| UsageDay { day: day.into(), part: vec![7, day], tasks: Some(vec![9]) })
    );
    assert_eq!(store.usage_days(FORM, 3, 4, false).await.unwrap()[0].tasks, None);
    assert!(store.kept_usage_days(UsageForm(2), 0, 100).await.unwrap().is_empty(), "another form");

    store.forget_name("a").await.unwrap();
    assert_eq!(kept(&store).await, but(2..5));
    assert_eq!(keep(&store).await, all);
    assert_eq!(store.forget_owner("ann").await.unwrap(), (1, 1));
    assert_eq!(kept(&store).await, but(2..5), "the other run lasts");
    assert_eq!(keep(&store).await, all);
    // A report of a run that changes nothing of it.
    store.claim(&claim("lasts", vec![slice("g", 500)], None), hour(9, 5)).await.unwrap();
    assert_eq!(kept(&store).await, all);
    store.change_slices("lasts", "lasts", &[], hour(9, 6)).await.unwrap();
    assert_eq!(kept(&store).await, but(6..10), "the first part of it is from its beginning");
    assert_eq!(keep(&store).await, all);
    end(&store, "lasts", hour(10, 0)).await;
    assert_eq!(kept(&store).await, but(6..10));

    assert_eq!(keep(&store).await, all);
    let time = |from_us, state: &str| GpuTimeRow {
        gpu: "g".into(),
        from_us,
        to_us: None,
        node: "n".into(),
        model: "A100".into(),
        pools: String::new(),
        state: state.into(),
    };
    store.begin_gpu_times(&[time(hour(7, 1), "here")]).await.unwrap();
    assert_eq!(kept(&store).await, but(7..10));
    assert_eq!(keep(&store).await, all);
    store.begin_gpu_times(&[time(hour(8, 1), "away")]).await.unwrap();
    assert_eq!(kept(&store).await, but(8..10));
    assert_eq!(keep(&store).await, all);
    let quota = |milli| ProjectQuota {
        gpu: Quota { deserved: Some(milli), ..Quota::NONE },
        ..ProjectQuota::default()
    };
    for (milli, hours) in [(1000, hour(5, 0)), (500, hour(8, 23))] {
        store.set_quota("p", Some(&quota(milli)), "ann", hours).await.unwrap();
        assert_eq!(kept(&store).await, but(hours.div_euclid(DAY_US)..10));
        assert_eq!(keep(&store).await, all);
    }
    // The clock was set back.
    begin(&store, "b", hour(9, 1)).await;
    assert_eq!(kept(&store).await, but(9..10));
}

#[tokio::test]
async fn a_day_that_changes_while_it_is_made_is_not_kept() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    begin(&store, "a", hour(2, 5)).await;
    end(&store, "a", hour(2, 6)).await;
    store.mark_usage_days(FORM, 2, 3, 100).await.unwrap();
    assert_eq!(store.marked_usage_days(FORM, 100, 9).await.unwrap(), [], "it was marked just now");
    let marked = store.marked_usage_days(FORM, 101, 9).await.unwrap();
    assert_eq!(marked, [(2, 100)]);
    store.forget_name("a").await.unwrap();
    let day = || UsageDay { day: 2, part: vec![1], tasks: None };
    assert!(!store.keep_usage_day(FORM, day(), 100).await.unwrap());
    // It is marked again, and what was made of its former state comes late.
    store.mark_usage_days(FORM, 2, 3, 200).await.unwrap();
    assert!(!store.keep_usage_day(FORM, day(), 100).await.unwrap());
    assert!(store.keep_usage_day(FORM, day(), 200).await.unwrap());
    // A server of the next version writes another form.
    store.mark_usage_days(UsageForm(2), 2, 3, 300).await.unwrap();
    assert_eq!((kept(&store).await, store.first_usage().await.unwrap()), (vec![], Some(hour(2, 5))));
}
