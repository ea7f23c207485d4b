//! Notices that wait for their delivery.

use std::collections::BTreeSet;

use cantle_store::{EventRow, NoticeRow, ReceiverRow};

use crate::common::fresh;

fn notice(id: &str, receiver: &str, created_us: i64) -> NoticeRow {
    let (owner, body) = ("anna".to_owned(), "{}".to_owned());
    NoticeRow { id: id.to_owned(), owner, receiver: receiver.to_owned(), body, created_us }
}

fn receiver(name: &str) -> ReceiverRow {
    ReceiverRow {
        owner: "anna".to_owned(),
        name: name.to_owned(),
        address: "https://x.example/secret".to_owned(),
        secret: Some("s".to_owned()),
        happens: "failed".to_owned(),
        always: true,
    }
}

#[tokio::test]
async fn receivers_belong_to_their_users() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    assert!(store.set_receiver(&receiver("a"), true).await.unwrap());
    let changed = ReceiverRow { always: false, ..receiver("a") };
    assert!(store.set_receiver(&changed, true).await.unwrap());
    assert_eq!(store.receivers(Some("anna")).await.unwrap(), std::slice::from_ref(&changed));
    assert_eq!(store.receivers(Some("ben")).await.unwrap(), []);
    assert_eq!(store.receivers(None).await.unwrap(), [changed]);
    for n in 1..20 {
        assert!(store.set_receiver(&receiver(&format!("r{n}")), true).await.unwrap(), "{n}");
    }
    assert!(!store.set_receiver(&receiver("r20"), true).await.unwrap());
    assert!(store.set_receiver(&receiver("a"), true).await.unwrap(), "a change is no other one");
    assert!(store.delete_receiver("anna", "a").await.unwrap());
    assert!(!store.delete_receiver("anna", "a").await.unwrap());
    store.remove_user("anna", 1).await.unwrap();
    assert_eq!(store.receivers(None).await.unwrap(), []);
}

#[tokio::test]
async fn a_notice_waits_until_it_is_delivered_or_given_up() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    let (a1, a2, b1) = (notice("1", "a", 10), notice("2", "a", 20), notice("3", "b", 30));
    store.add_notices(&[a1.clone(), a2.clone(), b1.clone(), a1.clone()], None).await.unwrap();
    assert_eq!(store.next_notices().await.unwrap(), [a1.clone(), b1.clone()], "the oldest of each");
    let waiting: Vec<i64> = store.receiver_states().await.unwrap().iter().map(|one| one.waiting).collect();
    assert_eq!(waiting, [2, 1], "also before the first try");
    store.notice_failed(&a1, "no answer", false).await.unwrap();
    store.notice_failed(&a1, "refused", false).await.unwrap();
    store.notice_sent(&b1, 40).await.unwrap();
    let states = store.receiver_states().await.unwrap();
    let [a, b] = states.as_slice() else { panic!("{states:?}") };
    assert_eq!((a.failure.as_deref(), a.failures, a.waiting, a.dropped), (Some("refused"), 2, 2, 0));
    assert_eq!((b.sent_us, b.failure.as_deref(), b.waiting), (Some(40), None, 0));
    store.notice_sent(&a1, 50).await.unwrap();
    assert_eq!(store.next_notices().await.unwrap(), std::slice::from_ref(&a2));
    assert_eq!(store.drop_notices(20).await.unwrap(), []);
    assert_eq!(store.drop_notices(21).await.unwrap(), [("anna".to_owned(), "a".to_owned(), 1)]);
    let states = store.receiver_states().await.unwrap();
    assert_eq!((states[0].failure.as_deref(), states[0].waiting, states[0].dropped), (None, 0, 1));
}

#[tokio::test]
async fn one_receiver_fills_its_own_place_only() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    let many: Vec<NoticeRow> = (0..1003).map(|n| notice(&format!("{n:04}"), "a", n)).collect();
    store.add_notices(&many, None).await.unwrap();
    store.add_notices(&[notice("x", "b", 1)], None).await.unwrap();
    let states = store.receiver_states().await.unwrap();
    assert_eq!((states[0].waiting, states[0].dropped), (1000, 3));
    assert_eq!(store.next_notices().await.unwrap().len(), 2);
}

#[tokio::test]
async fn notices_begin_with_the_first_receiver_and_go_on_where_they_were() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    let event = |kind: &str| EventRow { time_us: 1, kind: kind.to_owned(), ..EventRow::default() };
    store.add_events(vec![event("past")]).await.unwrap();
    store.set_receiver(&receiver("a"), true).await.unwrap();
    let place = store.notice_place().await.unwrap();
    store.add_events(vec![event("new")]).await.unwrap();
    let found = store.events(None, Some(place), 10).await.unwrap();
    assert_eq!(found.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(), ["new"]);
    store.set_receiver(&receiver("b"), true).await.unwrap();
    assert_eq!(store.notice_place().await.unwrap(), place, "the second one skips nothing");
    store.add_notices(&[], Some(found[0].id)).await.unwrap();
    assert_eq!(store.notice_place().await.unwrap(), found[0].id);
}

#[tokio::test]
async fn a_condition_is_an_event_when_it_begins_and_when_it_ends() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let named = |kind: &'static str| {
        move |name: &str| EventRow { kind: kind.to_owned(), message: name.to_owned(), ..EventRow::default() }
    };
    for (now_us, now) in [(1, set(&["a"])), (2, set(&["a"])), (3, set(&["b"])), (4, set(&[]))] {
        store.note_conditions(&now, now_us, named("begun"), named("over")).await.unwrap();
    }
    let events = store.events(None, None, 10).await.unwrap();
    let seen: Vec<_> = events.iter().map(|e| (e.time_us, e.kind.as_str(), e.message.as_str())).collect();
    assert_eq!(seen, [(1, "begun", "a"), (3, "begun", "b"), (3, "over", "a"), (4, "over", "b")]);
}
