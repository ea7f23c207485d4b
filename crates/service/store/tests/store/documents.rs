//! The documents that a user may keep in all.

use cantle_store::{ModelRow, NewTask, StoreError};
use serde_json::{Map, json};

fn doc(kib: usize) -> Map<String, serde_json::Value> {
    Map::from_iter([("comment".to_owned(), json!("x".repeat(kib << 10)))])
}

fn task(id: &str, owner: &str, kib: usize) -> NewTask {
    let (id, owner) = (id.to_owned(), owner.to_owned());
    NewTask { id, name: "t".into(), kind: "training".into(), owner, doc: doc(kib), ..NewTask::default() }
}

fn model(id: &str, kib: usize) -> ModelRow {
    ModelRow {
        id: id.to_owned(),
        name: "m".into(),
        task: None,
        project: None,
        owner: "ann".into(),
        created_us: 1,
        last_update_us: 1,
        doc: doc(kib),
    }
}

#[tokio::test]
async fn a_user_has_a_limit_of_large_documents_together() {
    let fresh = super::common::fresh().await;
    let store = fresh.open().await.with_documents_up_to(1 << 20);
    for n in 0..9 {
        store.create_task(&task(&format!("t{n}"), "ann", 100), 1).await.unwrap();
    }
    store.create_model(&model("m0", 100)).await.unwrap();
    for refused in
        [store.create_task(&task("t10", "ann", 100), 1).await, store.create_model(&model("m1", 100)).await]
    {
        assert!(
            matches!(&refused, Err(StoreError::ManyDocuments { owner, .. }) if owner == "ann"),
            "{refused:?}"
        );
    }
    // Small ones are not counted, and others have room of their own.
    store.create_task(&task("t11", "ann", 60), 1).await.unwrap();
    store.create_task(&task("t12", "bob", 100), 1).await.unwrap();
    let grown = store.update_task_doc("t11", 2, |old| old.extend(doc(100))).await;
    assert!(matches!(grown, Err(StoreError::ManyDocuments { .. })), "{grown:?}");
    // A deleted document makes room, and one that was refused takes none.
    store.delete_task("t0", &super::at(3)).await.unwrap();
    store.create_task(&task("t13", "ann", 100), 4).await.unwrap();
    assert!(store.create_task(&task("t14", "ann", 100), 4).await.is_err());
}

/// Lists are divided into parts by them.
#[tokio::test]
async fn the_sizes_of_documents_are_known_without_reading_them() {
    let fresh = super::common::fresh().await;
    let store = fresh.open().await;
    store.create_task(&task("t", "ann", 100), 1).await.unwrap();
    store.create_task(&task("u", "ann", 0), 1).await.unwrap();
    store.create_model(&model("m", 50)).await.unwrap();
    let ids = ["t", "u", "gone"].map(str::to_owned);
    let sizes = store.document_sizes(&ids).await.unwrap();
    assert_eq!(sizes.keys().collect::<Vec<_>>(), ["t", "u"]);
    assert!((100 << 10..101 << 10).contains(&sizes["t"]) && sizes["u"] < 1 << 10, "{sizes:?}");
    let models = store.model_sizes_seen(&[], &[], None).await.unwrap();
    assert!(matches!(&models[..], [(id, 51_200..52_000)] if id == "m"), "{models:?}");
}
