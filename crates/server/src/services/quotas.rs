//! `cantle.*` about projects: quotas, shares, and what agents need to keep them.

use std::collections::BTreeMap;

use cantle_clearml::quotas::{
    Evict, Fleet, GetFleet, GetProjects, GetQuotas, GiveBack, HeldTask, ProjectView, ProjectViews, QuotaView,
    Quotas, SetQuota, Stopping, Victim, WaitingTask,
};
use cantle_clearml::{Empty, TaskRequest, subcode};
use cantle_model::{ProjectQuota, projects_above};
use cantle_store::{ProjectRow, StoreError, TaskRow, Terms};
use serde_json::Map;

use super::{nodes, shares};
use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::routes::Routes;

/// Waiting tasks of one project and queue that an agent is told of: those behind them wait for them anyway.
const HEAD: usize = 64;

pub(super) fn add(routes: &mut Routes) {
    routes.typed(get_quotas);
    routes.typed(set_quota);
    routes.typed(get_projects);
    routes.typed(get_fleet);
    routes.typed(evict);
    routes.typed(give_back);
}

/// Who is granted what, by ids and names.
pub(super) struct Granted {
    pub(super) projects: Vec<ProjectRow>,
}

impl Granted {
    pub(super) async fn read(call: &Call) -> Result<Self, ApiError> {
        Ok(Self { projects: call.store.projects().await? })
    }

    /// Projects with a quota of their own, by name.
    pub(super) fn quotas(&self) -> impl Iterator<Item = (&str, &ProjectQuota)> {
        self.projects.iter().filter_map(|row| Some((row.name.as_str(), row.quota.as_ref()?)))
    }

    fn has_quota(&self, name: &str) -> bool {
        self.projects.iter().any(|row| row.name == name && row.quota.is_some())
    }

    /// The nearest project above `name` with a quota.
    pub(super) fn parent(&self, name: &str) -> Option<String> {
        projects_above(name).find(|above| self.has_quota(above)).map(str::to_owned)
    }

    /// The project that a task is counted to: its own or the nearest above with a quota.
    pub(super) fn counted_to(&self, task: &TaskRow) -> Option<String> {
        let id = task.index.project.as_ref()?;
        let own = self.projects.iter().find(|row| row.id == *id)?;
        if own.quota.is_some() { Some(own.name.clone()) } else { self.parent(&own.name) }
    }
}

/// What a task asks of cantle. A request that can't be read is refused by the agent; here it is taken for none.
pub(super) fn request(task: &TaskRow) -> TaskRequest {
    let params = task.doc.get("hyperparams").cloned().unwrap_or_default();
    let params = serde_json::from_value(params).unwrap_or_default();
    TaskRequest::from_hyperparams(&params).ok().flatten().unwrap_or_default()
}

/// What a claim of the task counts beside its slices.
pub(super) fn terms(task: &TaskRow) -> Terms {
    let TaskRequest { cpu_milli, memory_bytes, non_preemptible, .. } = request(task);
    Terms { cpu_milli, memory_bytes, preemptible: !non_preemptible }
}

async fn get_quotas(call: Call, request: GetQuotas) -> Result<Quotas, ApiError> {
    let granted = Granted::read(&call).await?;
    if let Some(wanted) = &request.project
        && !granted.projects.iter().any(|row| row.id == *wanted || row.name == *wanted)
    {
        let message = format!("no project \"{wanted}\"");
        return Err(ApiError::new(400, subcode::INVALID_PROJECT_ID, message));
    }
    let asked = |row: &&ProjectRow| request.project.as_ref().is_none_or(|p| row.id == *p || row.name == *p);
    let view = |row: &ProjectRow| Some(QuotaView { project: row.name.clone(), quota: row.quota? });
    Ok(Quotas { quotas: granted.projects.iter().filter(asked).filter_map(view).collect() })
}

async fn set_quota(call: Call, request: SetQuota) -> Result<Empty, ApiError> {
    let SetQuota { project, quota } = request;
    if project.trim().is_empty() {
        return Err(ApiError::invalid("a quota needs the name of a project"));
    }
    if let Some(quota) = &quota {
        quota.check().map_err(|error| ApiError::invalid(format!("project {project}: {error}")))?;
        make_project(&call, &project).await?;
    }
    call.store.set_quota(&project, quota.as_ref(), call.now_us).await?;
    Ok(Empty {})
}

/// An administrator may grant before the first task comes.
async fn make_project(call: &Call, name: &str) -> Result<(), ApiError> {
    let (id, now_us) = (new_id(), call.now_us);
    let row = ProjectRow {
        id,
        name: name.to_owned(),
        description: String::new(),
        created_us: now_us,
        last_update_us: now_us,
        quota: None,
        doc: Map::new(),
    };
    match call.store.create_project(&row).await {
        Ok(()) | Err(StoreError::NameTaken { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn get_projects(call: Call, _request: GetProjects) -> Result<ProjectViews, ApiError> {
    let granted = Granted::read(&call).await?;
    let queues: Vec<String> = call.store.queues().await?.into_iter().map(|queue| queue.id).collect();
    let (held, waiting) = call.store.held_and_waiting(&queues).await?;
    let state = shares::state(&call, &granted, &held, &waiting).await?;
    let found: BTreeMap<String, _> = cantle_sched::shares(&state, &cantle_sched::Policy::default())
        .into_iter()
        .map(|share| (share.project.clone(), share))
        .collect();
    let view = |row: &ProjectRow| {
        let inside = |task: &&TaskRow| {
            let of = granted.projects.iter().find(|p| Some(&p.id) == task.index.project.as_ref());
            of.is_some_and(|of| {
                of.name == row.name || projects_above(&of.name).any(|above| above == row.name)
            })
        };
        let share = found.get(&row.name);
        let allocated_milli = held.iter().filter(inside).map(|task| task.amounts().0[0]).sum();
        let deserved_milli = share.map_or(0, |share| share.deserved_milli);
        ProjectView {
            name: row.name.clone(),
            quota: row.quota,
            deserved_milli,
            fair_share_milli: share.map_or(0, |share| share.fair_milli),
            allocated_milli,
            over_quota_milli: share.map_or(0, |_| allocated_milli.saturating_sub(deserved_milli)),
            limit_milli: share.and_then(|share| share.limit_milli),
            running: held.iter().filter(inside).count() as u64,
            waiting: waiting.iter().filter(inside).count() as u64,
        }
    };
    Ok(ProjectViews { projects: granted.projects.iter().map(view).collect() })
}

async fn get_fleet(call: Call, request: GetFleet) -> Result<Fleet, ApiError> {
    let granted = Granted::read(&call).await?;
    let view =
        |(project, quota): (&str, &ProjectQuota)| QuotaView { project: project.to_owned(), quota: *quota };
    let projects: Vec<QuotaView> = granted.quotas().map(view).collect();
    if projects.is_empty() {
        return Ok(Fleet::default());
    }
    // Before the tasks: an eviction in between makes what is decided from this answer out of date, as it should.
    let evictions = call.store.last_eviction().await?;
    let (held, waiting) = call.store.held_and_waiting(&request.queues).await?;
    let others = nodes::all(&call).await?;
    let others: Vec<_> =
        others.iter().filter(|node| node.alive && node.report.node != request.node).collect();
    let freeing_on = |task: &TaskRow| {
        let makes_room = |held: &&TaskRow| held.evicted.as_ref().is_some_and(|e| e.for_task == task.index.id);
        let node = held.iter().find(makes_room)?.node.clone()?;
        // What a dead node was about to free stays taken.
        others.iter().any(|other| other.report.node == node).then_some(node)
    };
    let mut heads: BTreeMap<(Option<String>, Option<String>), usize> = BTreeMap::new();
    let mut first = Vec::new();
    for task in &waiting {
        let project = granted.counted_to(task);
        let seen = heads.entry((task.index.queue.clone(), project.clone())).or_default();
        *seen += 1;
        if *seen <= HEAD {
            first.push(waiting_task(task, project, freeing_on(task)));
        }
    }
    Ok(Fleet {
        projects,
        other_gpus_milli: others.iter().map(|node| 1000 * node.report.gpus.len() as u64).sum(),
        held: held.iter().map(|task| held_task(task, granted.counted_to(task))).collect(),
        waiting: first,
        evictions,
    })
}

fn held_task(task: &TaskRow, project: Option<String>) -> HeldTask {
    HeldTask {
        task: task.index.id.clone(),
        node: task.node.clone().unwrap_or_default(),
        lease: task.lease.clone().unwrap_or_default(),
        slices: task.slices.clone(),
        cpu_milli: task.terms.cpu_milli,
        memory_bytes: task.terms.memory_bytes,
        project,
        priority: request(task).priority,
        preemptible: task.terms.preemptible,
        started_ms: task.index.started_us.unwrap_or(task.index.status_changed_us) / 1000,
        stopping: task.evicted.as_ref().map(|e| Stopping { cause: e.cause, reason: e.reason.clone() }),
    }
}

fn waiting_task(task: &TaskRow, project: Option<String>, freeing_on: Option<String>) -> WaitingTask {
    let evicted = task.evicted.as_ref();
    WaitingTask {
        task: task.index.id.clone(),
        queue: task.index.queue.clone().unwrap_or_default(),
        project,
        yielded_to: evicted.map(|evicted| evicted.for_task.clone()),
        moved: evicted.is_some_and(|evicted| evicted.cause == cantle_model::Cause::Consolidate),
        freeing_on,
    }
}

async fn evict(call: Call, request: Evict) -> Result<Empty, ApiError> {
    let Evict { node, victims, evictions } = request;
    let victim = |victim: Victim| {
        let Victim { task, lease, for_task, cause } = victim;
        cantle_store::Victim { task, lease, for_task, cause }
    };
    let victims: Vec<_> = victims.into_iter().map(victim).collect();
    call.store.evict(&node, &victims, evictions, call.now_us).await?;
    Ok(Empty {})
}

async fn give_back(call: Call, request: GiveBack) -> Result<Empty, ApiError> {
    let GiveBack { task, lease, reason } = request;
    let change = call.change(true, Some(reason.clone()), Some(reason));
    call.store.give_back(&task, &lease, &change).await?;
    Ok(Empty {})
}
