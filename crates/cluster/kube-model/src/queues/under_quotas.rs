//! Decides which tasks may be admitted where projects have quotas, and which of the scheduler's decisions are carried
//! out.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::TaskRequest;
use cantle_model::WaitingTask;
use cantle_sched::Eviction;
use k8s_openapi::api::core::v1::Pod;

use super::admit::{Admission, free_counts, queue_of, task_of};
use super::config::QueueConfig;
use super::outcome::is_unschedulable;
use super::plan::{ClusterDecision, OwnPod, TaskCandidate};
use super::pod_request::{AdmittedSlices, PodRequest};
use crate::ObjectExt as _;
use crate::phase::has_ended;

/// The queues of a controller, and the tasks that wait in them.
#[derive(Clone, Copy, Debug)]
pub struct ServedQueues<'a> {
    /// The first one goes first.
    pub configs: &'a [QueueConfig],
    /// Their ids, in the same order.
    pub ids: &'a [String],
    /// By id, the tasks that wait.
    pub backlog: &'a BTreeMap<String, Vec<String>>,
}

impl ServedQueues<'_> {
    /// Tasks that wait, that the server has reported, and whose queue may have one more pod. `requests` is what tasks ask for
    /// themselves.
    #[must_use]
    pub fn candidates(
        &self,
        waiting: &[WaitingTask],
        requests: &BTreeMap<String, TaskRequest>,
        pods: &[impl Borrow<Pod>],
        is_held: impl Fn(&str) -> bool,
    ) -> Vec<TaskCandidate> {
        let has_pod: BTreeSet<&str> = pods.iter().filter_map(|pod| task_of(pod.borrow())).collect();
        let free = free_counts(self.configs, pods);
        let candidate = |waiting: &WaitingTask| {
            let task = waiting.task.as_str();
            let at = self.ids.iter().position(|id| *id == waiting.queue).filter(|at| free[*at] > 0)?;
            let is_there =
                self.backlog.get(&waiting.queue).is_some_and(|tasks| tasks.contains(&waiting.task));
            if !is_there || has_pod.contains(task) || is_held(task) {
                return None;
            }
            let own_request = requests.get(task)?.clone();
            let queue = &self.configs[at];
            let request = PodRequest::of_task(&queue.template, &own_request);
            Some(TaskCandidate { queue: queue.name.clone(), request, own_request, waiting: waiting.clone() })
        };
        waiting.iter().filter_map(candidate).collect()
    }

    /// Those of the tasks that may start whose queues may have one more pod.
    #[must_use]
    pub fn admitted(&self, decision: &ClusterDecision, pods: &[impl Borrow<Pod>]) -> Vec<Admission> {
        let mut free = free_counts(self.configs, pods);
        let mut admitted = Vec::new();
        for (task, slices) in &decision.starts {
            let Some(queue) = self.queue_of_waiting(task).filter(|at| free[*at] > 0) else { continue };
            free[queue] -= 1;
            admitted.push(Admission { queue, task: task.clone(), slices: Some(slices.clone()) });
        }
        admitted
    }

    /// No task is stopped for a task whose queue may have no more pods.
    #[must_use]
    pub fn allowed_evictions(&self, decision: &ClusterDecision, pods: &[impl Borrow<Pod>]) -> Vec<Eviction> {
        let free = free_counts(self.configs, pods);
        let mut served: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for admission in self.admitted(decision, pods) {
            served.entry(admission.queue).or_default().insert(admission.task);
        }
        let mut is_allowed = |eviction: &Eviction| {
            let Some(queue) = self.queue_of_waiting(&eviction.for_task.0) else { return false };
            let served = served.entry(queue).or_default();
            served.contains(&eviction.for_task.0)
                || served.len() < free[queue] && served.insert(eviction.for_task.0.clone())
        };
        decision.evictions.iter().filter(|eviction| is_allowed(eviction)).cloned().collect()
    }

    fn queue_of_waiting(&self, task: &str) -> Option<usize> {
        let is_in = |id: &String| {
            self.backlog.get(id).is_some_and(|tasks| tasks.iter().any(|waiting| waiting == task))
        };
        self.ids.iter().position(is_in)
    }
}

impl OwnPod {
    /// One of our pods; none if it has ended.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<Self> {
        if has_ended(pod) {
            return None;
        }
        Some(Self {
            uid: pod.uid()?,
            task: task_of(pod)?.to_owned(),
            queue: queue_of(pod).cloned().unwrap_or_default(),
            request: PodRequest::of_pod(pod),
            admitted: AdmittedSlices::of_pod(pod),
            is_ending: pod.metadata.deletion_timestamp.is_some(),
            is_unschedulable: is_unschedulable(pod),
        })
    }
}
