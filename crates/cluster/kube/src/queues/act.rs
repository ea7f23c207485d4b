//! Carries out the leader's actions on one pod. Each action is idempotent, so it can be repeated after a crash.

use cantle_clearml::{subcode, tasks};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use super::controller::{ActionResult, Backlog, Controller};
use super::metrics::{CountedOutcome, known_uid};
use crate::KubeError;
use crate::api_status::is_denied_by_webhook;
use cantle_kube_model::inject::missing_slice;
use cantle_kube_model::queues::admit::{Admission, task_of};
use cantle_kube_model::queues::builder::{FINALIZER, GATE, OWNER_LABEL, QUEUE_LABEL, TASK_LABEL, name_of};
use cantle_kube_model::queues::outcome::{
    PodAction, STOP_DEADLINE_S, TaskOutcome, claim, is_gated, is_on_node,
};
use cantle_kube_model::queues::pod_request::{AdmittedSlices, PodRequest};

/// Field manager of what we write.
pub(super) const MANAGER: &str = "cantle-queues";

/// The result of creating a pod.
pub(super) enum PodCreation {
    Pod(Box<Pod>),
    /// The task has failed instead.
    Never,
    /// Not now.
    Later(String),
}

impl Controller {
    /// Carries out the action for a pod.
    pub(super) async fn act(&self, pod: &Pod, step: PodAction) -> Result<ActionResult, KubeError> {
        let Some(task) = task_of(pod).filter(|_| self.leader.leads()) else {
            return Ok(ActionResult::Nothing);
        };
        match step {
            // Taking is for the admission, which fences it.
            PodAction::Nothing | PodAction::Claim => Ok(ActionResult::Nothing),
            PodAction::LiftGate => self.lift(pod, task).await,
            PodAction::Report(words) => {
                self.server.report_message(task, &words).await?;
                Ok(ActionResult::Reported(words))
            }
            PodAction::Stop => {
                tracing::info!(task, "its pod is stopped: the task is to stop");
                self.stop(pod).await.map(|()| ActionResult::Nothing)
            }
            PodAction::End(end) => {
                tracing::info!(task, ?end, "the task has ended");
                self.server.end(task, &end).await?;
                self.metrics.count(CountedOutcome::from(&end));
                self.remove(pod).await
            }
            PodAction::Requeue(why) => self.requeue(pod, task, &why).await,
            PodAction::GiveBack(why) => {
                tracing::info!(task, "back to the front of its queue: {why}");
                self.server.give_back(task, &known_uid(pod.uid()), &why).await?;
                self.metrics.count(CountedOutcome::Requeued);
                self.remove(pod).await
            }
            PodAction::Remove(why) => {
                tracing::info!(task, "its pod is removed: {why}");
                self.remove(pod).await
            }
        }
    }

    async fn requeue(&self, pod: &Pod, task: &str, why: &str) -> Result<ActionResult, KubeError> {
        tracing::info!(task, "back to the front of its queue: {why}");
        let queue = pod.labels().get(QUEUE_LABEL).map(String::as_str).unwrap_or_default();
        self.server.requeue(queue, task, why).await?;
        self.metrics.count(CountedOutcome::Requeued);
        self.remove(pod).await
    }

    /// Creates the pod of a task, which is not scheduled yet.
    pub(super) async fn make(&self, task: &tasks::Task, admission: &Admission) -> PodCreation {
        let Admission { queue, slices, .. } = admission;
        let made = match self.builder.pod(task, &self.builder.file.queues[*queue], &self.ids[*queue]) {
            Ok(mut pod) => {
                slices.iter().for_each(|slices| slices.write_into(&mut pod));
                self.create(pod).await
            }
            Err(why) => return self.fail(&task.id, why).await,
        };
        match made {
            Ok(pod) => self.with_slice(&task.id, pod).await,
            Err(kube::Error::Api(status)) if status.code == 409 => self.existing(&task.id).await,
            Err(kube::Error::Api(status)) if is_final(&status) => self.fail(&task.id, status.message).await,
            Err(kube::Error::Api(status)) => {
                // A quota of the namespace, mostly: people want to know.
                let said =
                    self.server.report_message(&task.id, &format!("waiting: {}", status.message)).await;
                PodCreation::Later(said.err().map_or(status.message, |error| error.to_string()))
            }
            Err(error) => PodCreation::Later(error.to_string()),
        }
    }

    async fn create(&self, pod: Value) -> Result<Pod, kube::Error> {
        // As written: amounts may be numbers, as in YAML.
        let pod: DynamicObject = serde_json::from_value(pod).map_err(kube::Error::SerdeError)?;
        let kind = ApiResource::erase::<Pod>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.pods.clone().into_client(), &self.namespace, &kind);
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let made = api.create(&params, &pod).await?;
        serde_json::to_value(made).and_then(serde_json::from_value).map_err(kube::Error::SerdeError)
    }

    /// A pod of this name exists: a former leader, a moment ago, or a stranger.
    async fn existing(&self, task: &str) -> PodCreation {
        let name = name_of(task);
        match self.pods.get(&name).await {
            Ok(pod)
                if pod.labels().get(OWNER_LABEL) == Some(&self.builder.owner)
                    && pod.labels().get(TASK_LABEL).is_some_and(|label| label == task)
                    && is_gated(&pod)
                    && pod.metadata.deletion_timestamp.is_none() =>
            {
                self.with_slice(task, pod).await
            }
            Ok(_) => PodCreation::Later(format!("there is another pod {name}")),
            Err(error) => PodCreation::Later(error.to_string()),
        }
    }

    /// The pod, if it has the slice that it asks for. One without goes again, and its task waits: it would have all GPUs.
    async fn with_slice(&self, task: &str, pod: Pod) -> PodCreation {
        let Some(why) = missing_slice(&pod) else { return PodCreation::Pod(Box::new(pod)) };
        self.warn(&pod, &why).await;
        let done = match self.server.report_message(task, &format!("waiting: {why}")).await {
            Ok(()) => self.remove(&pod).await.map(drop),
            Err(error) => Err(error.into()),
        };
        PodCreation::Later(done.err().map_or(why, |error| error.to_string()))
    }

    /// For people who watch the namespace, and not the task.
    async fn warn(&self, pod: &Pod, why: &str) {
        let event = Event {
            type_: EventType::Warning,
            reason: "NoSlice".to_owned(),
            note: Some(why.to_owned()),
            action: "Admit".to_owned(),
            secondary: None,
        };
        if let Err(error) = self.events.publish(&event, &pod.object_ref(&())).await {
            tracing::warn!("an event could not be written: {error}");
        }
    }

    /// The task cannot ever get a pod.
    async fn fail(&self, task: &str, why: String) -> PodCreation {
        tracing::info!(task, "failed: {why}");
        match self.server.end(task, &TaskOutcome::Failed(why)).await {
            Ok(()) => {
                self.metrics.count(CountedOutcome::Failed);
                PodCreation::Never
            }
            Err(error) => PodCreation::Later(error.to_string()),
        }
    }

    /// Takes the task from its queue and lets its pod be scheduled.
    pub(super) async fn take(&self, pod: &Pod, backlog: &Backlog) -> Result<ActionResult, KubeError> {
        let (Some(task), Some(at)) = (task_of(pod), self.queue_at(pod)) else {
            return self.remove(pod).await;
        };
        let id = &self.ids[at];
        let waits_in =
            |id: &String| backlog.get(id).is_some_and(|waiting| waiting.iter().any(|each| each == task));
        if !waits_in(id) && self.ids.iter().any(waits_in) {
            // It was moved to another queue.
            return self.remove(pod).await;
        }
        if !waits_in(id) {
            // Taken out long ago by an agent that is gone.
            self.server.put_in_front(id, task).await?;
            return Ok(ActionResult::Nothing);
        }
        let words = format!("pod {} waits for a place", pod.name_any());
        if !self.server.take(id, task, &claim(pod), &words).await? {
            // Another agent was quicker, or it was stopped; the next round shows which.
            return Ok(ActionResult::Nothing);
        }
        self.metrics.count(CountedOutcome::Taken);
        tracing::info!(task, queue = self.builder.file.queues[at].name, "its pod is ungated");
        self.lift(pod, task).await
    }

    /// Lets the cluster's scheduler have the pod, once the server counts what it holds.
    async fn lift(&self, pod: &Pod, task: &str) -> Result<ActionResult, KubeError> {
        // Created by any replica: a former leader may have been an older version.
        if let Some(why) = missing_slice(pod) {
            self.warn(pod, &why).await;
            return self.requeue(pod, task, &why).await;
        }
        let admitted = match AdmittedSlices::read(pod) {
            Ok(admitted) => admitted,
            Err(error) => {
                let why = format!("the place with which it was admitted cannot be read: {error}");
                self.warn(pod, &why).await;
                return self.requeue(pod, task, &why).await;
            }
        };
        let uid = known_uid(pod.uid());
        let weight = PodRequest::of_pod(pod).quota_milli;
        match self.server.hold(&self.builder.owner, task, &uid, admitted.slices, weight).await {
            // Others of the project were faster, elsewhere.
            Err(error) if error.is_subcode(subcode::OVER_QUOTA) => {
                return self.requeue(pod, task, &error.to_string()).await;
            }
            held => held?,
        }
        let gates = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten());
        let others: Vec<_> = gates.filter(|gate| gate.name != GATE).collect();
        self.patch(pod, json!({"metadata": {"uid": pod.uid()}, "spec": {"schedulingGates": others}})).await?;
        Ok(ActionResult::Nothing)
    }

    /// The pod goes, and need not stay for us.
    async fn remove(&self, pod: &Pod) -> Result<ActionResult, KubeError> {
        self.delete(pod).await?;
        let others: Vec<_> = pod.finalizers().iter().filter(|name| *name != FINALIZER).collect();
        self.patch(pod, json!({"metadata": {"uid": pod.uid(), "finalizers": others}})).await?;
        Ok(ActionResult::Finished)
    }

    /// The pod ends in its grace period, and stays until its log is in. One that is on no node has none.
    async fn stop(&self, pod: &Pod) -> Result<(), KubeError> {
        if !is_on_node(pod) {
            return self.delete(pod).await;
        }
        let deadline = json!({"activeDeadlineSeconds": STOP_DEADLINE_S});
        self.patch(pod, json!({"metadata": {"uid": pod.uid()}, "spec": deadline})).await
    }

    async fn delete(&self, pod: &Pod) -> Result<(), KubeError> {
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        unless_gone(self.pods.delete(&pod.name_any(), &params).await.map(drop))
    }

    async fn patch(&self, pod: &Pod, patch: Value) -> Result<(), KubeError> {
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        unless_gone(self.pods.patch(&pod.name_any(), &params, &Patch::Merge(patch)).await.map(drop))
    }
}

/// A pod that is gone, or another one of the same name, needs nothing more.
fn unless_gone(answer: Result<(), kube::Error>) -> Result<(), KubeError> {
    match answer {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        answer => Ok(answer?),
    }
}

/// Will the API server refuse the same pod again?
fn is_final(status: &Status) -> bool {
    is_denied_by_webhook(status) || matches!(status.code, 400 | 422)
}
