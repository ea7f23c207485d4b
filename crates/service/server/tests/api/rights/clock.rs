//! The cost of rights. It watches a clock: `cargo xtask test clock` runs it.

use super::*;

/// Time of each of two calls, in turns so that the machine's load is the same for both: medians in microseconds.
async fn compared(world: &World, rounds: usize, calls: [(&str, &str, &Value); 2]) -> [u128; 2] {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (times, (who, endpoint, body)) in times.iter_mut().zip(calls) {
            let started = tokio::time::Instant::now();
            let answer = world.call(who, endpoint, body).await;
            times.push(started.elapsed().as_micros());
            assert_eq!(answer.code, 200, "{who} {endpoint}: {}", answer.text);
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}

#[tokio::test]
#[ignore = "clock"]
async fn rights_cost_little_with_many_users_and_projects() {
    let world = world().await;
    fill(&world.store).await;
    // A change through the server makes it read what another writer has written.
    world
        .ok("admin", "cantle.set_role", json!({"who": "everybody", "role": "viewer", "project": "elsewhere"}))
        .await;
    let page = json!({"page": 0, "page_size": 50, "order_by": ["-last_update"], "only_fields": ["id", "name", "status"], "project": ["p3", "p4"]});
    let [all, seen] =
        compared(&world, 40, [("admin", "tasks.get_all", &page), ("ben", "tasks.get_all", &page)]).await;
    let claim = json!({"task": world.task, "node": "n2", "lease": "l2", "slices": []});
    let mut world = world;
    world.add_user("agent2", json!({"role": "agent", "node": "n2"})).await;
    let [free, asked] = compared(
        &world,
        40,
        [("admin", "cantle.report_task", &claim), ("agent2", "cantle.report_task", &claim)],
    )
    .await;
    println!(
        "a page: {all} µs, with rights {seen} µs; a claim: {free} µs, with rights {asked} µs (medians of 40, in turns)"
    );
    // Little, and on a machine that is busy with others not more than the call itself.
    let is_little = |without: u128, with: u128| with < without + without.max(20_000);
    assert!(is_little(all, seen) && is_little(free, asked), "{all} {seen} {free} {asked}");
}

/// A thousand users in five hundred projects, with five thousand tasks.
async fn fill(store: &Store) {
    for n in 0..1000 {
        let user =
            cantle_store::UserRow { id: format!("u{n}"), name: format!("user{n}"), ..Default::default() };
        let role = |project: String| cantle_store::GrantRow {
            subject: format!("user:u{n}"),
            project,
            role: "member".into(),
        };
        store
            .add_user(
                &user,
                &[role(format!("project{}", n % 500)), role(format!("project{}", (n + 1) % 500))],
            )
            .await
            .unwrap();
    }
    for n in 0..500 {
        let (id, name) = (format!("p{n}"), format!("project{n}"));
        let (description, doc) = (String::new(), serde_json::Map::new());
        let row = cantle_store::ProjectRow {
            id,
            name,
            description,
            created_us: 1,
            last_update_us: 1,
            quota: None,
            doc,
        };
        store.create_project(&row).await.unwrap();
    }
    for project in 0..20 {
        let role = cantle_store::GrantRow {
            subject: "everybody".into(),
            project: format!("project{project}"),
            role: "viewer".into(),
        };
        store.set_grant(&role, true).await.unwrap();
    }
    let new = |n: usize| cantle_store::NewTask {
        id: format!("{n:032x}"),
        name: format!("task{n}"),
        kind: "training".into(),
        owner: format!("u{}", n % 1000),
        project: Some(format!("p{}", n % 500)),
        ..Default::default()
    };
    let tasks: Vec<_> = (0..5000).map(|n| (i64::try_from(n).unwrap(), new(n))).collect();
    store.create_ended(&tasks, "completed".parse().unwrap()).await.unwrap();
}
