//! Lists of tasks.

use super::*;

/// Lists by tag and by a text in the name are the same whichever index answers them.
#[tokio::test]
async fn tags_and_texts_that_few_and_many_tasks_have() {
    let f = open().await;
    let tags_of = |n: usize| {
        let mut tags = vec!["common".to_owned()];
        tags.extend(n.is_multiple_of(500).then(|| "rare".to_owned()));
        tags.extend(n.is_multiple_of(3).then(|| "NUL \0 ü".to_owned()));
        tags
    };
    let new = |n: usize| NewTask {
        id: format!("t{n:04}"),
        name: format!("run {n}"),
        kind: "training".to_owned(),
        tags: tags_of(n),
        ..NewTask::default()
    };
    for n in 0..2100 {
        f.store.create_task(&new(n), 1).await.unwrap();
    }
    let by_tag = async |tag: &str| {
        let rule = TagRule { all: vec![tag.to_owned()], ..TagRule::default() };
        f.store.task_ids(&TaskFilter { tags: vec![rule], ..TaskFilter::default() }).await.unwrap()
    };
    assert_eq!(by_tag("rare").await, ["t2000", "t1500", "t1000", "t0500", "t0000"]);
    assert_eq!((by_tag("common").await.len(), by_tag("never").await.len()), (2100, 0));
    assert_eq!(by_tag("NUL \u{fffd} ü").await.len(), 700);
    let other = TaskEdit { tags: Some(vec!["new".to_owned()]), ..TaskEdit::default() };
    f.store.edit_task("t1000", &other, false, 2).await.unwrap();
    f.store.delete_task("t1500", &at(3)).await.unwrap();
    assert_eq!(by_tag("rare").await, ["t2000", "t0500", "t0000"]);
    assert_eq!(by_tag("new").await, ["t1000"]);

    let by_name = async |pattern: &str| {
        let filter = TaskFilter { name_pattern: Some(pattern.to_owned()), ..TaskFilter::default() };
        f.store.task_ids(&filter).await.unwrap()
    };
    assert_eq!(by_name("^run 24+$").await, ["t0244", "t0024"]);
    assert_eq!((by_name("run").await.len(), by_name("RUN").await.len()), (2099, 0));
    assert_eq!(by_name("(?i)RUN 77$").await, ["t0077"]);
}

/// The web page of ClearML sorts its table of experiments so. Tasks without a value come last, also behind the first page.
#[tokio::test]
async fn lists_in_the_order_of_a_measured_value() {
    let f = open().await;
    for (n, id) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
        f.store.create_task(&new, i64::try_from(n).unwrap()).await.unwrap();
    }
    let measured = |task: &str, value| Scalar {
        task: task.into(),
        metric: "loss".into(),
        variant: "train".into(),
        iter: 1,
        timestamp_ms: 1,
        value,
    };
    f.store.add_scalars(&[measured("a", 0.5), measured("b", -1.0), measured("c", 2.0)]).await.unwrap();
    let listed = async |which, down, limit, offset| {
        let key = TaskKey::Metric("loss".into(), "train".into(), which);
        let order = vec![OrderBy { key, down }];
        let filter = TaskFilter { order, limit, offset, ..TaskFilter::default() };
        f.store.task_ids(&filter).await.unwrap().concat()
    };
    for which in [Which::Last, Which::Least, Which::Greatest] {
        assert_eq!(listed(which, false, None, 0).await[..3], *"bac");
        assert_eq!(listed(which, true, None, 0).await[..3], *"cab");
    }
    assert_eq!(listed(Which::Last, true, Some(4), 0).await, "cabe");
    assert_eq!(listed(Which::Last, true, Some(2), 3).await, "ed");
}
