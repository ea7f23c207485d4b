//! `cantle.renew_leases`, and the runs whose node may be gone for good.

use std::collections::BTreeMap;

use cantle_clearml::Empty;
use cantle_clearml::leases::{
    EndFenced, GetTaskToken, LeaseRenewal, RenewLeases, RenewedLease, RenewedLeases, ReportSlices, SetQueue,
    SetQueuePreempt, TaskToken,
};
use cantle_clearml::{StopRequest, subcode};
use cantle_store::{Renewal, Renewed, StoreError};

use crate::app::Call;
use crate::error::ApiError;
use crate::projection::few;
use crate::rights::OwnRun;
use crate::rights::act::Change;
use crate::routes::Routes;

/// Agents renew every few seconds; below this a server that is restarted would end tasks.
const LEAST_S: u64 = 10;
/// A year.
const MOST_S: u64 = 366 * 24 * 3600;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(renew_leases);
    routes.typed(report_slices);
    routes.typed(end_fenced);
    routes.typed(set_queue);
    routes.typed(set_queue_preempt);
    routes.typed(get_task_token);
}

async fn renew_leases(call: Call, request: RenewLeases) -> Result<RenewedLeases, ApiError> {
    few(&request.leases.iter().map(|run| run.task.clone()).collect::<Vec<_>>())?;
    let runs = request.leases.into_iter().map(|LeaseRenewal { task, lease, fence_ms }| {
        let fence_ms = fence_ms.map(|ms| i64::try_from(ms.min(MOST_S * 1000)).unwrap_or(i64::MAX));
        Renewal { task, lease, fence_ms }
    });
    let renewed = call.store.renew(&runs.collect::<Vec<_>>(), call.now_us).await?;
    let answer = |Renewed { held, fence_ms }| RenewedLease {
        held,
        fence_ms: fence_ms.and_then(|ms| u64::try_from(ms).ok()),
    };
    Ok(RenewedLeases { leases: renewed.into_iter().map(answer).collect() })
}

async fn report_slices(call: Call, request: ReportSlices) -> Result<Empty, ApiError> {
    let ReportSlices { task, lease, slices, stays, .. } = request;
    let held = call.task(&task).await?;
    call.store.change_slices(&held, &lease, &slices, call.now_us).await?;
    if stays {
        let change = call.change(true, None, Some(StopRequest::Evict.to_string()));
        call.store.stop_evicted(&held, &lease, &change).await?;
    }
    Ok(Empty {})
}

/// The token lasts as long as the lease holds the task, so only its holder gets one.
async fn get_task_token(call: Call, request: GetTaskToken) -> Result<TaskToken, ApiError> {
    let GetTaskToken { task, lease } = request;
    let row = call.store.task(&call.task::<Change>(&task).await?).await?;
    if row.lease.as_deref() != Some(&lease) || row.exit_code.is_some() {
        return Err(StoreError::NotHeld { task, lease }.into());
    }
    let token = call.keys.token_of_run(&row.owner, &OwnRun { task, lease }, call.now_us)?;
    let user = call.people.register().name(&row.owner).to_owned();
    let (secrets, no_secret) = match crate::services::people::secrets::of_task(&call, &row).await? {
        Ok(secrets) => (secrets, None),
        Err(why) => (BTreeMap::new(), Some(why)),
    };
    Ok(TaskToken { token, user, secrets, no_secret })
}

async fn end_fenced(call: Call, request: EndFenced) -> Result<Empty, ApiError> {
    call.store.end_fenced(&call.task(&request.task).await?, &request.lease, call.now_us).await?;
    Ok(Empty {})
}

async fn set_queue(call: Call, request: SetQueue) -> Result<Empty, ApiError> {
    let SetQueue { queue, requeue_after_s } = request;
    if let Some(seconds) = requeue_after_s.filter(|seconds| !(LEAST_S..=MOST_S).contains(seconds)) {
        let text = format!("requeue_after_s: {seconds} is not between {LEAST_S} and {MOST_S}");
        return Err(ApiError::invalid(text));
    }
    let after_ms = requeue_after_s.and_then(|seconds| i64::try_from(seconds * 1000).ok());
    call.store.set_requeue(&queue_named(&call, &queue).await?.0, after_ms).await?;
    Ok(Empty {})
}

async fn set_queue_preempt(call: Call, request: SetQueuePreempt) -> Result<Empty, ApiError> {
    call.store.set_queue_preempt(&queue_named(&call, &request.queue).await?.0, request.preempt).await?;
    Ok(Empty {})
}

/// Id and name of the queue with this name or id.
pub(crate) async fn queue_named(call: &Call, wanted: &str) -> Result<(String, String), ApiError> {
    let found = call.store.queue_names().await?.into_iter().find(|(id, name)| id == wanted || name == wanted);
    found.ok_or_else(|| ApiError::new(400, subcode::INVALID_QUEUE_ID, format!("no queue \"{wanted}\"")))
}
