//! The secrets of users, and which tasks get them.

use cantle_store::{MOST_SECRETS, SecretRow};

use crate::common::fresh;

fn secret(owner: &str, name: &str, sealed: &str) -> SecretRow {
    SecretRow { owner: owner.into(), name: name.into(), sealed: sealed.into(), set_us: 1, used_us: None }
}

#[tokio::test]
async fn secrets_belong_to_their_users() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    assert!(store.set_secret(&secret("anna", "A", "old")).await.unwrap());
    assert!(store.set_secret(&secret("ben", "A", "ben's")).await.unwrap());
    assert!(store.set_secret(&secret("anna", "A", "new")).await.unwrap());
    store.secrets_used("anna", &["A".into(), "B".into()], 7).await.unwrap();
    let used = SecretRow { used_us: Some(7), ..secret("anna", "A", "new") };
    assert_eq!(store.secrets("anna").await.unwrap(), [used]);
    for n in 1..MOST_SECRETS {
        assert!(store.set_secret(&secret("anna", &format!("N{n}"), "x")).await.unwrap(), "{n}");
    }
    assert!(!store.set_secret(&secret("anna", "MORE", "x")).await.unwrap());
    assert!(store.set_secret(&secret("anna", "A", "x")).await.unwrap(), "a change is no other one");
    assert!(store.delete_secret("anna", "A").await.unwrap());
    assert!(!store.delete_secret("anna", "A").await.unwrap());
    store.remove_user("anna", 1).await.unwrap();
    assert_eq!(store.secrets("anna").await.unwrap(), []);
    assert_eq!(store.secrets("ben").await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_task_has_the_secrets_that_it_was_given_last() {
    let fresh = fresh().await;
    let store = fresh.open().await;
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    store.give_secrets("t", &names(&["A", "B", "A"])).await.unwrap();
    assert_eq!(store.secrets_of_task("t").await.unwrap(), names(&["A", "B"]));
    store.give_secrets("t", &names(&["B", "C"])).await.unwrap();
    assert_eq!(store.secrets_of_task("t").await.unwrap(), names(&["B", "C"]));
    store.give_secrets("t", &[]).await.unwrap();
    assert_eq!(store.secrets_of_task("t").await.unwrap(), names(&[]));
}
