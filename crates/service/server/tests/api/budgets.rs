//! Budgets over the wire: the counts, the reports, and the tasks that each choice holds. The same calls without a
//! budget, or with one that only warns, are the negative control.

use cantle_clearml::budgets::{BudgetView, GetBudgets, SetBudget};
use cantle_clearml::quotas::{GetFleet, SetQuota};
use cantle_model::{AtFull, Budget, ProjectQuota, Quota};
use serde_json::{Value, json};

use crate::common::TestServer;

struct World {
    server: TestServer,
    queue: String,
}

impl World {
    async fn new() -> Self {
        let server = TestServer::start().await;
        let queue = server.queue("q").await;
        Self { server, queue }
    }

    async fn call(&self, endpoint: &str, body: Value) -> Value {
        self.server.client.call_value(endpoint, &body).await.unwrap()
    }

    async fn budget(&self, project: &str, gpu_seconds: u64, at_full: AtFull) {
        let budget = Some(Budget { gpu_seconds, warn_percent: 80, at_full });
        self.server.client.call(&SetBudget { project: project.into(), budget }).await.unwrap();
    }

    async fn view(&self, project: &str) -> BudgetView {
        let found = self.server.client.call(&GetBudgets { project: Some(project.into()) }).await.unwrap();
        let [view] = found.budgets.try_into().unwrap();
        view
    }

    async fn queued(&self, project: &str) -> String {
        let found = self.call("projects.get_all", json!({"name": format!("^{project}$")})).await;
        let new = json!({"name": "t", "type": "training", "project": found["projects"][0]["id"]});
        let task = self.call("tasks.create", new).await["id"].as_str().unwrap().to_owned();
        self.call("tasks.enqueue", json!({"task": task, "queue": self.queue})).await;
        task
    }

    async fn claim(&self, task: &str, milli: u32) -> Result<(), String> {
        self.call("queues.get_next_task", json!({"queue": self.queue, "task": task})).await;
        let slice = json!({"gpu": "GPU-a", "milli": milli, "memory_limit_bytes": 1 << 30});
        let claim = json!({"task": task, "node": "n", "lease": format!("of {task}"), "slices": [slice]});
        let done = self.server.client.call_value("cantle.report_task", &claim).await;
        done.map(|_| ()).map_err(|error| error.to_string())
    }

    async fn fleet(&self) -> cantle_clearml::quotas::Fleet {
        let request = GetFleet { node: "n".into(), queues: vec![self.queue.clone()] };
        self.server.client.call(&request).await.unwrap()
    }

    async fn why(&self, task: &str) -> String {
        self.call("cantle.explain_task", json!({"task": task})).await["reason"].as_str().unwrap().to_owned()
    }

    /// Messages of events of this kind.
    async fn told(&self, kind: &str) -> Vec<String> {
        let answer = self.call("cantle.get_events", json!({})).await;
        let events = answer["events"].as_array().unwrap().iter().filter(|event| event["kind"] == kind);
        events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
    }

    /// The same when there are `count`: PostgreSQL shows an event when no older transaction is open, also one of another test.
    async fn until_told(&self, kind: &str, count: usize) -> Vec<String> {
        for _ in 0..600 {
            let told = self.told(kind).await;
            if told.len() >= count {
                return told;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("fewer than {count} events {kind} within a minute");
    }

    /// A task of this project holds a whole GPU for more than a second.
    async fn used(&self, project: &str) -> String {
        let task = self.queued(project).await;
        self.claim(&task, 1000).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        task
    }

    async fn quota(&self, project: &str, milli: u64) {
        let gpu = Quota { deserved: Some(milli), ..Quota::NONE };
        let quota = Some(ProjectQuota { gpu, ..ProjectQuota::default() });
        self.server.client.call(&SetQuota { project: project.into(), quota }).await.unwrap();
    }
}

#[tokio::test]
async fn a_project_over_its_budget_waits_for_the_next_month() {
    let world = World::new().await;
    world.budget("vision", 3600, AtFull::Queue).await;
    world.quota("vision/a", 1000).await;
    world.used("vision/a").await;
    let waits = world.queued("vision/a").await;
    assert!(!world.why(&waits).await.contains("GPU-hours") && world.fleet().await.held_back.is_empty());
    // A budget that is changed counts what was used before.
    world.budget("vision", 1, AtFull::Queue).await;
    let view = world.view("vision").await;
    assert!(view.used_seconds >= 1 && view.used_percent >= 100 && view.month.is_some(), "{view:?}");
    assert_eq!(world.fleet().await.held_back, std::slice::from_ref(&waits));
    let why = world.why(&waits).await;
    assert!(
        why.contains("project vision has used 0 of its 0 GPU-hours in 20")
            && why.contains("waits until the month ends"),
        "{why}"
    );
    let refused = world.claim(&waits, 250).await.unwrap_err();
    assert!(refused.contains("project vision has used") && refused.contains("/9001)"), "{refused}");
    let told = world.until_told("budget-reached", 1).await;
    assert!(told.len() == 1 && told[0].contains("its tasks wait until the month ends"), "{told:?}");
    // Other tasks continue.
    world.quota("speech", 1000).await;
    let other = world.queued("speech").await;
    world.claim(&other, 250).await.unwrap();
    // And this one, with a larger budget, or with none.
    let again = world.queued("vision/a").await;
    world.budget("vision", 1, AtFull::Warn).await;
    assert!(world.fleet().await.held_back.is_empty());
    world.claim(&again, 250).await.unwrap();
    world.server.client.call(&SetBudget { project: "vision".into(), budget: None }).await.unwrap();
    assert_eq!(world.server.client.call(&GetBudgets::default()).await.unwrap().budgets, []);
}

#[tokio::test]
async fn a_project_over_its_budget_borrows_no_more() {
    let world = World::new().await;
    world.quota("vision", 1500).await;
    world.quota("speech", 500).await;
    world.budget("vision", 1, AtFull::NoBorrowing).await;
    world.used("vision").await;
    world.budget("vision", 1, AtFull::NoBorrowing).await;
    let fleet = world.fleet().await;
    let limit = |project: &str| {
        let found = fleet.projects.iter().find(|view| view.project == project).unwrap();
        found.quota.gpu.limit
    };
    assert_eq!((limit("vision"), limit("speech")), (Some(1500), None));
    assert!(fleet.held_back.is_empty(), "it may use its quota");
    let within = world.queued("vision").await;
    world.claim(&within, 500).await.unwrap();
    let beyond = world.queued("vision").await;
    let refused = world.claim(&beyond, 250).await.unwrap_err();
    assert!(refused.contains("project vision has used"), "{refused}");
    let other = world.queued("speech").await;
    world.claim(&other, 750).await.unwrap();

    // Without a quota, all is borrowed.
    world.budget("plain", 1, AtFull::NoBorrowing).await;
    world.used("plain").await;
    world.budget("plain", 1, AtFull::NoBorrowing).await;
    let waits = world.queued("plain").await;
    assert!(world.fleet().await.held_back.contains(&waits));
    assert!(world.why(&waits).await.contains("project plain has used"));
}

#[tokio::test]
async fn a_budget_is_told_before_it_is_used_up() {
    let world = World::new().await;
    world.budget("vision", 3600, AtFull::Warn).await;
    let task = world.used("vision").await;
    let used = async || {
        world.budget("vision", 3600, AtFull::Warn).await;
        world.view("vision").await.used_seconds
    };
    assert!(used().await >= 1);
    let report = json!({"task": task, "node": "n", "lease": format!("of {task}"), "exit_code": 0});
    world.call("cantle.report_task", report).await;
    world.call("tasks.completed", json!({"task": task, "force": true})).await;
    let seconds = used().await;
    assert!((1..60).contains(&seconds), "{seconds}");
    assert!(world.told("budget-near").await.is_empty());
    // At least a half of it, and not all.
    let half = Budget { gpu_seconds: seconds + 1, warn_percent: 50, at_full: AtFull::Queue };
    for _ in 0..2 {
        world.server.client.call(&SetBudget { project: "vision".into(), budget: Some(half) }).await.unwrap();
    }
    let percent = world.view("vision").await.used_percent;
    let near = world.until_told("budget-near", 2).await;
    assert!(
        (50..100).contains(&percent) && near.iter().all(|text| text.contains(&format!("({percent} %)"))),
        "{near:?}"
    );
    assert_eq!(near.len(), 2, "once for each time that it was set: {near:?}");
    assert!(world.told("budget-reached").await.is_empty() && world.fleet().await.held_back.is_empty());
    let wrong = [
        json!({"project": "vision", "budget": {"gpu_seconds": 0}}),
        json!({"project": "vision", "budget": {"gpu_seconds": 10, "warn_percent": 0}}),
        json!({"project": "vision", "budget": {"gpu_seconds": 10, "at_full": "stop"}}),
        json!({"project": "", "budget": {"gpu_seconds": 10}}),
    ];
    for body in wrong {
        world.server.client.call_value("cantle.set_budget", &body).await.unwrap_err();
    }
    let none = json!({"project": "none"});
    let error = world.server.client.call_value("cantle.set_budget", &none).await.unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
}
