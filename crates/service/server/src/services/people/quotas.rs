//! `cantle.*` about projects: quotas, shares, and what agents need to enforce them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use cantle_clearml::pools::{PoolShare, PoolShares};
use cantle_clearml::queues::HEAD_LIMIT;
use cantle_clearml::quotas::{
    Evict, Fleet, GetFleet, GetProjects, GetQuotas, GiveBack, HeldElsewhere, HeldTask, ProjectView,
    ProjectViews, QuotaView, Quotas, SetQuota, Stopping, Victim, WaitingTask,
};
use cantle_clearml::tasks::HyperParams;
use cantle_clearml::{Empty, StopRequest, TaskRequest, subcode};
use cantle_metrics::Fallback;
use cantle_model::{Amounts, Cause, PoolQuota, Preempt, ProjectQuota, projects_above};
use cantle_store::{HeldSum, ProjectRow, StoreError, TaskRow, Terms, WaitingRow};
use serde::Deserialize as _;
use serde_json::Map;

use super::budgets::FullBudgets;
use super::projects::named;
use super::shares;
use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::metrics::FALLBACKS;
use crate::rights::Right;
use crate::routes::Routes;
use crate::services::fleet::nodes;
use crate::usage::PastUse;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_quotas);
    routes.typed(set_quota);
    routes.typed(get_projects);
    routes.typed(get_fleet);
    routes.typed(evict);
    routes.typed(give_back);
}

/// A project, then those above it, nearest first.
pub(crate) fn project_path(name: &str) -> impl Iterator<Item = &str> {
    std::iter::once(name).chain(projects_above(name))
}

/// The projects with their quotas, and the quota that each project counts against.
pub(crate) struct ProjectQuotas {
    pub(crate) projects: Vec<ProjectRow>,
    /// By id of a project: the name of the project whose quota its tasks count against.
    counted_to: BTreeMap<String, String>,
    pub(crate) budgets: FullBudgets,
}

impl ProjectQuotas {
    pub(crate) async fn read(call: &Call) -> Result<Self, ApiError> {
        // The project against which a task counts may be hidden from its owner.
        let projects = call.app.store.projects().await?;
        let with_quota: BTreeSet<&str> =
            projects.iter().filter(|row| row.quota.is_some()).map(|row| row.name.as_str()).collect();
        let counted_to = |row: &ProjectRow| {
            let name = row.name.as_str();
            let to = project_path(name).find(|name| with_quota.contains(name))?;
            Some((row.id.clone(), to.to_owned()))
        };
        let counted_to = projects.iter().filter_map(counted_to).collect();
        let budgets = FullBudgets::read(call, &projects).await?;
        Ok(Self { projects, counted_to, budgets })
    }

    /// Projects with a quota of their own, by name.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&str, &ProjectQuota)> {
        self.projects.iter().filter_map(|row| Some((row.name.as_str(), row.quota.as_ref()?)))
    }

    /// The same, as agents get them: no more than the budgets leave.
    pub(crate) fn views(&self) -> Vec<QuotaView> {
        let view = |(project, quota): (&str, &ProjectQuota)| QuotaView {
            project: project.to_owned(),
            quota: self.budgets.within(project, quota),
        };
        self.own().map(view).collect()
    }

    /// Why no task of the project with this id starts, if its budget or one above it is used up.
    pub(crate) fn kept_back(&self, project: Option<&String>) -> Option<String> {
        let row = self.projects.iter().find(|row| Some(&row.id) == project)?;
        let has_quota = |name: &str| self.own().any(|(own, _)| own == name);
        self.budgets.keeps_back(&row.name, has_quota)
    }

    /// The reason why the tasks of the project with this id are limited to their quota.
    pub(crate) fn kept_within(&self, project: Option<&String>) -> Option<String> {
        let row = self.projects.iter().find(|row| Some(&row.id) == project)?;
        self.budgets.limits(&row.name)
    }

    /// How a task of the project with this id makes room for others, if a project says so: its own or the nearest above.
    fn preempt(&self, project: Option<&String>) -> Option<Preempt> {
        let row = self.projects.iter().find(|row| Some(&row.id) == project)?;
        let of = |name: &str| self.own().find(|(own, _)| *own == name).and_then(|(_, quota)| quota.preempt);
        project_path(&row.name).find_map(of)
    }

    /// Does any project have a quota of a pool?
    fn any_by_pool(&self) -> bool {
        self.own().any(|(_, quota)| !quota.by_pool.is_empty())
    }

    /// The nearest project above `name` with a quota.
    pub(crate) fn parent(&self, name: &str) -> Option<String> {
        let has_quota = |above: &&str| self.own().any(|(name, _)| name == *above);
        projects_above(name).find(has_quota).map(str::to_owned)
    }

    /// The project whose quota the tasks of the project with this id count against: itself, or the nearest above with a quota.
    pub(crate) fn counted_to(&self, project: Option<&String>) -> Option<String> {
        self.counted_to.get(project?).cloned()
    }
}

/// The request of a task. The agent refuses a task whose request cannot be read; here the task requests nothing.
pub(crate) fn request(task: &TaskRow) -> TaskRequest {
    read_request(task).unwrap_or_else(|error| {
        let id = &task.index.id;
        if FALLBACKS.count(Fallback::UnreadableRequest, &format!("{id} {error}")) {
            tracing::warn!(task = %id, %error, "a task's request cannot be read; it counts as none until an agent refuses it");
        }
        TaskRequest::default()
    })
}

fn read_request(task: &TaskRow) -> Result<TaskRequest, Box<dyn Error>> {
    let Some(params) = task.doc.get("hyperparams") else { return Ok(TaskRequest::default()) };
    let params = HyperParams::deserialize(params)?;
    Ok(TaskRequest::from_hyperparams(&params)?.unwrap_or_default())
}

/// The count of a task's claim against quotas, apart from its slices.
pub(crate) fn terms(task: &TaskRow) -> Terms {
    let TaskRequest { cpu_milli, memory_bytes, non_preemptible, .. } = request(task);
    Terms { cpu_milli, memory_bytes, preemptible: !non_preemptible, quota_milli: None }
}

async fn get_quotas(call: Call, request: GetQuotas) -> Result<Quotas, ApiError> {
    let mut quotas = ProjectQuotas::read(&call).await?;
    quotas.projects.retain(|row| call.who.may(Right::See, Some(&row.name)));
    if let Some(wanted) = &request.project
        && !quotas.projects.iter().any(|row| row.id == *wanted || row.name == *wanted)
    {
        let message = format!("no project \"{wanted}\"");
        return Err(ApiError::new(400, subcode::INVALID_PROJECT_ID, message));
    }
    let asked = |row: &&ProjectRow| request.project.as_ref().is_none_or(|p| row.id == *p || row.name == *p);
    let view = |row: &ProjectRow| Some(QuotaView { project: row.name.clone(), quota: row.quota.clone()? });
    Ok(Quotas { quotas: quotas.projects.iter().filter(asked).filter_map(view).collect() })
}

async fn set_quota(call: Call, request: SetQuota) -> Result<Empty, ApiError> {
    let SetQuota { project, quota } = request;
    let project = named(&project)?;
    if let Some(quota) = &quota {
        quota
            .check()
            .map_err(|error| ApiError::invalid(format!("project {project}: {error}")).caused_by(error))?;
        call.store.check_pools(quota).await?;
        make_project(&call, &project).await?;
    }
    call.store.set_quota(&project, quota.as_ref(), &call.who.label(), call.now_us).await?;
    Ok(Empty {})
}

/// An administrator may set a quota before the first task comes.
pub(crate) async fn make_project(call: &Call, name: &str) -> Result<(), ApiError> {
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

/// How the tasks of queues make room for others, by id of the queue.
#[derive(Default)]
struct Preempts(BTreeMap<String, Preempt>);

impl Preempts {
    async fn read(call: &Call) -> Result<Self, ApiError> {
        Ok(Self(call.store.queue_preempts().await?))
    }

    /// How a task makes room: as its queue says, else as its project says.
    fn of(&self, task: &TaskRow, quotas: &ProjectQuotas) -> Preempt {
        let of_queue = task.index.queue.as_ref().and_then(|queue| self.0.get(queue).copied());
        of_queue.or_else(|| quotas.preempt(task.index.project.as_ref())).unwrap_or_default()
    }
}

/// Sums over the tasks of a project and of those below it.
#[derive(Clone, Copy, Default)]
struct Sums {
    allocated_milli: u64,
    running: u64,
    waiting: u64,
}

/// By name of the project.
fn sums<'a>(quotas: &'a ProjectQuotas, held: &[TaskRow], waiting: &[TaskRow]) -> BTreeMap<&'a str, Sums> {
    let names: BTreeMap<&str, &str> =
        quotas.projects.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
    let mut sums = BTreeMap::new();
    let mut add = |task: &TaskRow, part: Sums| {
        let name = task.index.project.as_deref().and_then(|id| names.get(id).copied());
        for name in name.into_iter().flat_map(project_path) {
            let sum: &mut Sums = sums.entry(name).or_default();
            sum.allocated_milli += part.allocated_milli;
            sum.running += part.running;
            sum.waiting += part.waiting;
        }
    };
    for task in held {
        add(task, Sums { allocated_milli: task.amounts().0[0], running: 1, waiting: 0 });
    }
    for task in waiting {
        add(task, Sums { waiting: 1, ..Sums::default() });
    }
    sums
}

/// By name of a project, its holdings in pools and of those below it.
type InPools = BTreeMap<String, BTreeMap<String, u64>>;

async fn in_pools(call: &Call, quotas: &ProjectQuotas, held: &[TaskRow]) -> Result<InPools, ApiError> {
    let mut sums = InPools::new();
    if !quotas.any_by_pool() {
        return Ok(sums);
    }
    let names: BTreeMap<&str, &str> =
        quotas.projects.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
    let of_tasks = call.store.held_in_pools(held).await?;
    for task in held {
        let name = task.index.project.as_deref().and_then(|id| names.get(id).copied());
        for name in name.into_iter().flat_map(project_path) {
            let sums = sums.entry(name.to_owned()).or_default();
            for (pool, milli) in of_tasks.get(&task.index.id).into_iter().flatten() {
                *sums.entry(pool.clone()).or_default() += milli;
            }
        }
    }
    Ok(sums)
}

fn pool_shares(row: &ProjectRow, held: &InPools) -> PoolShares {
    let held = |pool: &String| held.get(&row.name).and_then(|sums| sums.get(pool)).copied().unwrap_or(0);
    let share = |(pool, quota): (&String, &PoolQuota)| {
        (pool.clone(), PoolShare { quota: *quota, allocated_milli: held(pool) })
    };
    row.quota.iter().flat_map(|quota| &quota.by_pool).map(share).collect()
}

async fn get_projects(call: Call, _request: GetProjects) -> Result<ProjectViews, ApiError> {
    let quotas = ProjectQuotas::read(&call).await?;
    let queues: Vec<String> = call.store.queues().await?.into_iter().map(|queue| queue.id).collect();
    let (held, waiting) = call.store.held_and_waiting(&queues).await?;
    let past = PastUse::read(&call).await?;
    let state = shares::snapshot(&call, &quotas, &past, &held, &waiting).await?;
    let found: BTreeMap<String, _> = cantle_sched::shares(&state, &past.policy())
        .into_iter()
        .map(|share| (share.project.clone(), share))
        .collect();
    let sums = sums(&quotas, &held, &waiting);
    let in_pools = in_pools(&call, &quotas, &held).await?;
    let view = |row: &ProjectRow| {
        let share = found.get(&row.name);
        let Sums { allocated_milli, running, waiting } =
            sums.get(row.name.as_str()).copied().unwrap_or_default();
        let deserved_milli = share.map_or(0, |share| share.deserved_milli);
        ProjectView {
            name: row.name.clone(),
            quota: row.quota.clone(),
            deserved_milli,
            fair_share_milli: share.map_or(0, |share| share.fair_milli),
            allocated_milli,
            over_quota_milli: share.map_or(0, |_| allocated_milli.saturating_sub(deserved_milli)),
            limit_milli: share.and_then(|share| share.limit_milli),
            usage_ppm: past.ppm(&quotas.projects, &row.name),
            by_pool: pool_shares(row, &in_pools),
            running,
            waiting,
        }
    };
    let seen = quotas.projects.iter().filter(|row| call.who.may(Right::See, Some(&row.name)));
    Ok(ProjectViews { projects: seen.map(view).collect() })
}

/// The tasks that wait for the limits of their users or for budgets, in order.
async fn held_back(call: &Call, quotas: &ProjectQuotas, queues: &[String]) -> Result<Vec<String>, ApiError> {
    let limited = call.people.register().limits_gpus();
    let held_back = if limited { call.store.held_back().await? } else { Vec::new() };
    let mut held_back: Vec<String> = held_back.into_iter().map(|waits| waits.task).collect();
    if !quotas.budgets.is_empty() {
        let waiting = call.store.waiting_projects(queues).await?;
        let kept = waiting.into_iter().filter(|(_, project)| quotas.kept_back(project.as_ref()).is_some());
        held_back.extend(kept.map(|(task, _)| task));
        held_back.sort_unstable();
        held_back.dedup();
    }
    Ok(held_back)
}

async fn get_fleet(call: Call, request: GetFleet) -> Result<Fleet, ApiError> {
    let quotas = ProjectQuotas::read(&call).await?;
    let projects = quotas.views();
    let held_back = held_back(&call, &quotas, &request.queues).await?;
    // Before the tasks: an eviction in between makes decisions from this answer out of date, as it should.
    let evictions = call.store.last_eviction().await?;
    if projects.is_empty() && evictions == 0 {
        return Ok(Fleet { held_back, ..Fleet::default() });
    }
    let fleet = call.store.fleet(&request.node, &request.queues, quotas.any_by_pool()).await?;
    if projects.is_empty() {
        // Without quotas, a task makes room only for memory that was lent to it.
        let evicted = fleet.here.iter().filter(|task| task.evicted.is_some());
        let held = evicted.map(|task| held_task(task, &quotas, &Preempts::default())).collect();
        return Ok(Fleet { held, evictions, held_back, ..Fleet::default() });
    }
    let named: BTreeSet<&str> = quotas.own().flat_map(|(_, quota)| quota.named_pools()).collect();
    let pools = if named.is_empty() { Vec::new() } else { call.store.pools().await? };
    let pools = pools.into_iter().filter(|pool| named.contains(pool.name.as_str())).collect();
    let others = nodes::all(&call).await?;
    let others: BTreeMap<&str, u64> = others
        .iter()
        .filter(|node| node.alive && node.report.node != request.node)
        .map(|node| (node.report.node.as_str(), 1000 * node.report.gpus.len() as u64))
        .collect();
    // Slices that a silent node was about to free stay taken.
    let freeing_on: BTreeMap<&str, &str> = fleet
        .freeing
        .iter()
        .map(|(task, node)| (task.as_str(), node.as_str()))
        .filter(|(_, node)| others.contains_key(node))
        .collect();
    let mut seen: BTreeMap<(&str, Option<String>), usize> = BTreeMap::new();
    let mut waiting = Vec::new();
    for task in fleet.waiting.iter().filter(|task| held_back.binary_search(&task.task).is_err()) {
        let project = quotas.counted_to(task.project.as_ref());
        let ahead = seen.entry((&task.queue, project.clone())).or_default();
        *ahead += 1;
        if *ahead <= HEAD_LIMIT {
            let freeing_on = freeing_on.get(task.task.as_str()).map(|node| (*node).to_owned());
            waiting.push(waiting_task(task, project, freeing_on));
        }
    }
    let is_stopping = fleet.here.iter().any(|task| task.evicted.is_some());
    let preempts = if is_stopping { Preempts::read(&call).await? } else { Preempts::default() };
    let past = PastUse::read(&call).await?;
    let usage_ppm =
        quotas.own().filter_map(|(name, _)| Some((name.to_owned(), past.ppm(&quotas.projects, name)?)));
    Ok(Fleet {
        usage_ppm: usage_ppm.collect(),
        usage_weight_percent: past.policy().usage_weight_percent,
        projects,
        other_gpus_milli: others.values().sum(),
        held: fleet.here.iter().map(|task| held_task(task, &quotas, &preempts)).collect(),
        elsewhere: fleet.elsewhere.iter().map(|sum| held_elsewhere(sum, &quotas)).collect(),
        waiting,
        evictions,
        pools,
        held_back,
    })
}

fn held_task(task: &TaskRow, quotas: &ProjectQuotas, preempts: &Preempts) -> HeldTask {
    let stopping = task.evicted.as_ref().map(|evicted| Stopping {
        cause: evicted.cause,
        reason: evicted.reason.clone(),
        for_task: Some(evicted.for_task.clone()),
        preempt: match evicted.cause {
            Cause::Lent => Preempt::SuspendOrRequeue,
            _ => preempts.of(task, quotas),
        },
    });
    HeldTask {
        task: task.index.id.clone(),
        lease: task.lease.clone().unwrap_or_default(),
        cpu_milli: task.terms.cpu_milli,
        memory_bytes: task.terms.memory_bytes,
        project: quotas.counted_to(task.index.project.as_ref()),
        priority: request(task).priority,
        preemptible: task.terms.preemptible,
        started_ms: task.index.started_us.unwrap_or(task.index.status_changed_us) / 1000,
        stopping,
    }
}

fn held_elsewhere(sum: &HeldSum, quotas: &ProjectQuotas) -> HeldElsewhere {
    let Amounts([gpu_milli, cpu_milli, memory_bytes]) = sum.amounts;
    HeldElsewhere {
        project: quotas.counted_to(sum.project.as_ref()),
        gpu_milli,
        pool_milli: sum.pool_milli.clone(),
        cpu_milli,
        memory_bytes,
        preemptible: sum.preemptible,
        stopping: sum.stopping,
    }
}

fn waiting_task(task: &WaitingRow, project: Option<String>, freeing_on: Option<String>) -> WaitingTask {
    let evicted = task.evicted.as_ref();
    WaitingTask {
        task: task.task.clone(),
        queue: task.queue.clone(),
        project,
        yielded_to: evicted.map(|(for_task, _)| for_task.clone()),
        moved: evicted.is_some_and(|(_, cause)| *cause == Cause::Consolidate),
        freeing_on,
    }
}

async fn evict(call: Call, request: Evict) -> Result<Empty, ApiError> {
    let Evict { node, victims, evictions, can_suspend } = request;
    let (preempts, quotas) = (Preempts::read(&call).await?, ProjectQuotas::read(&call).await?);
    let mut all = Vec::with_capacity(victims.len());
    for Victim { task, lease, for_task, cause } in victims {
        // Memory that was lent comes back without an end of the task, where the driver can do that.
        let suspends = can_suspend
            && (cause == Cause::Lent || preempts.of(&call.app.store.task(&task).await?, &quotas).suspends());
        all.push(cantle_store::VictimTask { task, lease, for_task, cause, suspends });
    }
    let change = call.change(true, None, Some(StopRequest::Evict.to_string()));
    call.store.evict(&node, &all, evictions, &change).await?;
    Ok(Empty {})
}

async fn give_back(call: Call, request: GiveBack) -> Result<Empty, ApiError> {
    let GiveBack { task, lease, reason } = request;
    let change = call.change(true, Some(reason.clone()), Some(reason));
    call.store.give_back(&call.task(&task).await?, &lease, &change).await?;
    Ok(Empty {})
}
