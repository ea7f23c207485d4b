//! Decides which waiting tasks get a pod next. Pure.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use crate::ObjectExt as _;
use k8s_openapi::api::core::v1::Pod;

use super::builder::{QUEUE_ANNOTATION, TASK_LABEL};
use super::config::QueueConfig;
use super::outcome::is_gated;
use super::pod_request::AdmittedSlices;
use crate::phase::has_ended;

/// Limit of one round: between two rounds, a user may request a stop of a task.
const AT_ONCE: usize = 64;

/// A task that gets a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The queue's position in the list.
    pub queue: usize,
    /// The task.
    pub task: String,
    /// The scheduler's result for it, where projects have quotas.
    pub slices: Option<AdmittedSlices>,
}

/// The number of further pods that each queue may have.
pub fn free_counts(queues: &[QueueConfig], pods: &[impl Borrow<Pod>]) -> Vec<usize> {
    let room = |queue: &QueueConfig| {
        let of_queue = |pod: &&Pod| queue_of(pod) == Some(&queue.name) && !has_ended(pod);
        let used = pods.iter().map(Borrow::<Pod>::borrow).filter(of_queue).count();
        queue.max_pods.map_or(AT_ONCE, |most| most.saturating_sub(used)).min(AT_ONCE)
    };
    queues.iter().map(room).collect()
}

/// The first tasks of each queue that it has room for, the first queue first. A task whose pod is still there waits for its
/// end. `held` are those that could not be given a pod a moment ago.
pub fn admissions(
    queues: &[QueueConfig],
    ids: &[String],
    backlog: &BTreeMap<String, Vec<String>>,
    pods: &[impl Borrow<Pod>],
    held: &BTreeSet<String>,
) -> Vec<Admission> {
    let has_pod: BTreeSet<&str> = pods.iter().filter_map(|pod| task_of(pod.borrow())).collect();
    let mut admitted = Vec::new();
    for (at, (room, id)) in free_counts(queues, pods).into_iter().zip(ids).enumerate() {
        let waiting = backlog.get(id).into_iter().flatten();
        let free = waiting.filter(|task| !has_pod.contains(task.as_str()) && !held.contains(*task));
        let room = room.min(AT_ONCE.saturating_sub(admitted.len()));
        admitted.extend(free.take(room).map(|task| Admission {
            queue: at,
            task: task.clone(),
            slices: None,
        }));
    }
    admitted
}

/// Pods that are too many for their queue and not yet let go: a former leader made them, and did not know that it was one.
pub fn surplus<'a>(queues: &[QueueConfig], pods: &'a [Pod]) -> Vec<&'a Pod> {
    let mut surplus = Vec::new();
    for queue in queues {
        let Some(most) = queue.max_pods else { continue };
        let there = || pods.iter().filter(|pod| queue_of(pod) == Some(&queue.name) && !has_ended(pod));
        let mut gated: Vec<&Pod> = there().filter(|pod| is_gated(pod)).collect();
        gated.sort_by_key(|pod| std::cmp::Reverse((pod.creation_timestamp(), pod.name_any())));
        surplus.extend(gated.into_iter().take(there().count().saturating_sub(most)));
    }
    surplus
}

/// The task of the pod.
pub fn task_of(pod: &Pod) -> Option<&str> {
    pod.labels().get(TASK_LABEL).map(String::as_str)
}

/// From which queue its task came, by name.
pub fn queue_of(pod: &Pod) -> Option<&String> {
    pod.annotations().get(QUEUE_ANNOTATION)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::queues::builder::GATE;

    fn queue(name: &str, max_pods: Option<usize>) -> QueueConfig {
        QueueConfig { name: name.to_owned(), max_pods, template: Map::new() }
    }

    fn pod(queue: &str, task: &str, phase: &str) -> Pod {
        let metadata = json!({"labels": {TASK_LABEL: task}, "annotations": {QUEUE_ANNOTATION: queue}});
        serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap()
    }

    fn admitted(pods: &[Pod], held: &[&str]) -> Vec<String> {
        let queues = [queue("high", Some(2)), queue("low", None), queue("off", Some(0))];
        let ids = ["h", "l", "o"].map(str::to_owned);
        let line = |tasks: &[&str]| tasks.iter().map(|&task| task.to_owned()).collect();
        let backlog = BTreeMap::from([
            ("h".to_owned(), line(&["h1", "h2", "h3"])),
            ("l".to_owned(), line(&["l1", "l2"])),
            ("o".to_owned(), line(&["o1"])),
        ]);
        let held = held.iter().map(|&task| task.to_owned()).collect();
        admissions(&queues, &ids, &backlog, pods, &held).into_iter().map(|a| a.task).collect()
    }

    #[test]
    fn queues_in_order_and_no_more_than_they_may() {
        assert_eq!(admitted(&[], &[]), ["h1", "h2", "l1", "l2"]);
        let running = pod("high", "h0", "Running");
        assert_eq!(admitted(&[running.clone(), pod("low", "l0", "Running")], &[]), ["h1", "l1", "l2"]);
        assert_eq!(admitted(&[running.clone(), pod("high", "x", "Pending")], &[]), ["l1", "l2"]);
        assert_eq!(admitted(&[running, pod("high", "x", "Failed")], &[]), ["h1", "l1", "l2"], "it is over");
    }

    #[test]
    fn a_stale_leaders_pods_are_too_many() {
        let gated = |task: &str| {
            let mut pod = pod("high", task, "Pending");
            pod.metadata.name = Some(task.to_owned());
            pod.spec = serde_json::from_value(json!({"containers": [], "schedulingGates": [{"name": GATE}]}))
                .unwrap();
            pod
        };
        let queues = [queue("high", Some(2)), queue("low", None)];
        let names =
            |pods: &[Pod]| surplus(&queues, pods).iter().map(|pod| pod.name_any()).collect::<Vec<_>>();
        let running = || pod("high", "r", "Running");
        assert_eq!(names(&[running(), gated("a")]), [""; 0]);
        assert_eq!(names(&[running(), gated("a"), gated("b")]), ["b"], "the newest");
        assert_eq!(names(&[running(), running(), gated("a")]), ["a"]);
        assert_eq!(names(&[running(), running(), running()]), [""; 0], "what runs is never ended for that");
    }

    #[test]
    fn a_task_has_one_pod() {
        assert_eq!(admitted(&[pod("high", "h1", "Failed")], &["l1"]), ["h2", "h3", "l2"]);
    }
}
