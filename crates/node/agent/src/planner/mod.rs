//! Decides which waiting task starts where: reads queues and quotas from the server, and plans and audits with the
//! scheduler.

pub(crate) mod fleet;
mod history;
mod hours;
mod returns;
mod schedule;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cantle_clearml::queues::HEAD_LIMIT;
use cantle_clearml::quotas::{Fleet, WaitingTask};
use cantle_clearml::{Listing, TaskRequest, WireError, cantle, tasks};
use cantle_decide::{decide, describe_waiting, policy_under};
use cantle_metrics::Fallback;
use cantle_model::{Bytes, Gpu, GpuRequest, HostLimit, Lease, LeaseId, QueueId, TaskId, TimeLimit};
use cantle_node::capacity;
use cantle_node::clock::now_ms;
use cantle_node::{Awaited, NodeError};
use cantle_sched::{Host, Plan, Queue, Reason, Start, Wait, Waiting};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::info_span;

use crate::claims::Extras;
use crate::entry::OwnTasks;
use crate::environment::Environment;
use crate::executor::limit_of;
use crate::meter::FALLBACKS;
use crate::queues::{Backlog, Queued, Served, read_backlog};
use hours::ForceProperty;
use returns::Returning;

pub(crate) use history::History;
pub(crate) use returns::Return;
pub use schedule::{Hours, Schedule, ScheduleError};

/// The longest time between two plans while a task waits: others' use of the GPUs changes unannounced.
const REPLAN_EVERY: Duration = Duration::from_secs(2);

/// The inputs of a plan whose changes are announced.
#[derive(PartialEq, Eq)]
struct Announced {
    backlog: Backlog,
    /// `None` if they cannot be read. The plan itself reads them again, under the lock, and fails then.
    leases: Option<Vec<LeaseId>>,
    fleet: Fleet,
}

/// The inputs of a plan that come from the server.
pub(crate) struct PlanInputs {
    /// The tasks that the plan considers.
    backlog: Backlog,
    /// Their requests, by task.
    requests: BTreeMap<String, TaskRequest>,
    pub(crate) fleet: Fleet,
}

/// Remembers what the last plan was made from, and its result.
pub(crate) struct Planner {
    planned_from: Option<Announced>,
    planned_at: Option<Instant>,
    last_served: Option<String>,
    force: ForceProperty,
    history: History,
    /// Why tasks wait that no plan considers, by task.
    closed: BTreeMap<String, cantle::WaitReport>,
    /// Why each task waits, by task.
    waits: BTreeMap<String, cantle::WaitReport>,
    /// The starts of the last plan that wait for lent memory.
    lent: Lent,
}

/// The tasks that could start if others gave back what is lent to them, by task.
pub(crate) type Lent = BTreeMap<String, Awaited>;

impl Planner {
    pub(crate) fn new(history: History) -> Self {
        Self {
            planned_from: None,
            planned_at: None,
            last_served: None,
            force: ForceProperty::default(),
            history,
            closed: BTreeMap::new(),
            waits: BTreeMap::new(),
            lent: Lent::new(),
        }
    }

    /// Why tasks wait, as of the last plan.
    pub(crate) fn waits(&self) -> Vec<cantle::WaitReport> {
        self.waits.values().cloned().collect()
    }

    /// Reads what the next plan is made from; `None` if no task waits, or nothing has changed since the last plan. `has_returning`: suspended
    /// tasks wait, too.
    pub(crate) async fn read(
        &mut self,
        env: &Environment,
        fleet: Fleet,
        has_returning: bool,
    ) -> Result<Option<PlanInputs>, WireError> {
        let mut backlog = read_backlog(env).await?;
        let is_empty = |backlog: &Backlog| backlog.values().all(|queue| queue.waiting.is_empty());
        self.closed = if is_empty(&backlog) {
            BTreeMap::new()
        } else {
            hours::close(env, &mut self.force, &mut backlog).await?
        };
        if is_empty(&backlog) && !has_returning {
            self.lent.clear();
            self.set_waits(env, &Plan::default());
            return Ok(None);
        }
        let leases = match env.node.leases() {
            Ok(leases) => Some(leases.into_iter().map(|lease| lease.id).collect()),
            Err(error) => {
                if FALLBACKS.count(Fallback::UnreadableLeases, &error.to_string()) {
                    tracing::warn!(%error, "leases cannot be read: changes are not detected");
                }
                None
            }
        };
        if !self.is_stale(Announced { backlog: backlog.clone(), leases, fleet: fleet.clone() }) {
            return Ok(None);
        }
        let backlog = considered(backlog, &fleet);
        let requests = read_requests(env, &backlog).await?;
        Ok(Some(PlanInputs { backlog, requests, fleet }))
    }

    /// Has anything changed since the last plan that could change its result?
    fn is_stale(&mut self, now: Announced) -> bool {
        let is_fresh = self.planned_from.as_ref() == Some(&now)
            && self.planned_at.is_some_and(|at| at.elapsed() < REPLAN_EVERY);
        self.planned_from = Some(now);
        !is_fresh
    }

    /// Plans and audits, on the node's leases as the lock's holder has read them. The second part are suspended tasks that come back.
    pub(crate) fn plan(
        &mut self,
        env: &Environment,
        inputs: &PlanInputs,
        mut leases: Vec<Lease>,
        own: &OwnTasks,
    ) -> Result<(Plan, Vec<Return>), NodeError> {
        let waiting = inputs.backlog.values().map(|queue| queue.waiting.len()).sum::<usize>();
        let span = info_span!("plan", waiting, placed = Empty, evictions = Empty).entered();
        if env.config.allocation_mode.is_gpuless() {
            // Tasks of another agent take nothing from this one.
            leases.retain(|lease| own.leases.contains(&lease.id));
        }
        let here: BTreeSet<&str> = leases.iter().map(|lease| lease.task.0.as_str()).collect();
        self.closed.extend(not_ended(&inputs.backlog, &here));
        let queues = inputs.queues(env, &here);
        let world = capacity::describe(
            env.driver.as_ref(),
            &env.node,
            &env.node_name,
            (&env.gpus, capacity::Lent::Free),
            &leases,
        );
        let mut snapshot = world
            .queues(queues)
            .at_once(env.config.allocation_mode.at_once())
            .last_served(self.last_served.clone())
            .expected(self.history.mix())
            .under_quotas(&inputs.fleet, own.ending.clone())
            .build();
        let returning = Returning::among(&leases, own);
        returning.enter(env, &inputs.fleet, own, &mut snapshot);
        let began = Instant::now();
        let policy = policy_under(&env.config.policy, &inputs.fleet);
        let mut plan = decide(&snapshot, &policy, now_ms())?;
        let returns = returning.take(&mut plan);
        env.meter.counts().decisions.observe(began.elapsed().as_secs_f64());
        self.planned_at = Some(Instant::now());
        if let Some(queue) = plan.last_served() {
            self.last_served = Some(queue.to_owned());
        }
        span.record("placed", plan.starts.len()).record("evictions", plan.evictions.len());
        self.set_waits(env, &plan);
        self.history.count(&snapshot, &plan.starts);
        Ok((plan, returns))
    }

    /// Starts of the last plan that wait for memory which is lent to others.
    pub(crate) fn set_lent(&mut self, env: &Environment, lent: Lent) {
        if lent.is_empty() && self.lent.is_empty() {
            return;
        }
        self.waits.retain(|task, _| !self.lent.contains_key(task));
        for (task, awaited) in &lent {
            let report = lent_report(task, awaited);
            let first = |awaited: &Awaited| awaited.0.first().map(|borrower| borrower.lease.clone());
            if self.lent.get(task).is_none_or(|known| first(known) != first(awaited)) {
                env.note("wait", Some(task), None, report.reason.clone());
            }
            self.waits.insert(task.clone(), report);
        }
        self.lent = lent;
        env.journal.note_node_changed();
    }

    fn set_waits(&mut self, env: &Environment, plan: &Plan) {
        let reported = |wait: &Wait| cantle::WaitReport {
            task: wait.task.0.clone(),
            reason: wait.reason.to_string(),
            remedy: Some(wait.reason.remedy()),
        };
        let mut waits: BTreeMap<_, _> =
            plan.waits.iter().map(|wait| (wait.task.0.clone(), reported(wait))).collect();
        waits.extend(self.closed.clone());
        waits.extend(self.lent.iter().map(|(task, of)| (task.clone(), lent_report(task, of))));
        if waits == self.waits {
            return;
        }
        for wait in &plan.waits {
            let known = self.waits.get(&wait.task.0);
            // The task in front of it changes with every start, so only the first such reason is recorded.
            let is_new = known.is_none() || !matches!(wait.reason, Reason::Behind { .. });
            if is_new && known != waits.get(&wait.task.0) {
                env.note("wait", Some(&wait.task.0), Some(&wait.queue), format!("waits: {}", wait.reason));
            }
        }
        self.waits = waits;
        env.journal.note_node_changed();
    }
}

impl PlanInputs {
    /// The extras of a task, in addition to its slices.
    pub(crate) fn extras(&self, env: &Environment, start: &Start) -> Extras {
        let request = self.requests.get(&start.task.0);
        let served = env.queues.iter().find(|served| served.spec.name == start.queue);
        // A queue gives no part to a task without a GPU.
        let gives =
            served.is_some_and(|served| self.gives_part(&served.id, request)) && !start.slices.is_empty();
        let is_auto = gives || request.is_some_and(|request| request.cpu_auto);
        let memory_bytes = request.map_or(0, |request| request.memory_bytes);
        let part = || env.host.part(HostLimit::milli_of(&start.slices), memory_bytes);
        Extras {
            memory_limit: request.and_then(|request| request.gpu_memory_limit),
            host: is_auto.then(part),
        }
    }

    /// Does the queue give a task that asks for no cores its part of the node?
    fn gives_part(&self, queue: &QueueId, request: Option<&TaskRequest>) -> bool {
        let is_open = request.is_none_or(|request| request.cpu_milli == 0);
        is_open && self.backlog.get(queue).is_some_and(|queue| queue.cpu_auto)
    }

    /// The queues as the scheduler sees them, without the tasks that are here.
    fn queues(&self, env: &Environment, here: &BTreeSet<&str>) -> Vec<Queue> {
        let by_server: BTreeMap<&str, &WaitingTask> =
            self.fleet.waiting.iter().map(|waiting| (waiting.task.as_str(), waiting)).collect();
        let queue = |served: &Served| {
            let waiting = self.backlog.get(&served.id).into_iter().flat_map(|queue| &queue.waiting);
            let waiting = waiting.filter(|queued| !here.contains(queued.task.as_str())).map(|queued| {
                let by_server = by_server.get(queued.task.as_str()).copied();
                let asked = self.requests.get(&queued.task);
                let mut waiting = waiting_task(queued, asked, by_server);
                if let Some(request) = served.spec.want.request_for(waiting.request.as_ref()) {
                    let is_auto =
                        self.gives_part(&served.id, asked) || asked.is_some_and(|asked| asked.cpu_auto);
                    // Only quotas count it before it has a place.
                    if is_auto && by_server.is_some() {
                        let memory_bytes = asked.map_or(0, |asked| asked.memory_bytes);
                        let part = env.host.part(milli_of(&request, &env.gpus), memory_bytes);
                        waiting.host = Host { cpu_milli: part.cpu_milli, memory_bytes: part.memory_bytes };
                    }
                    waiting.isolation = env.config.whole_gpu.isolation(&request, waiting.isolation);
                }
                waiting
            });
            Queue::new(served.spec.clone(), waiting.collect())
        };
        env.queues.iter().map(queue).collect()
    }
}

fn lent_report(task: &str, awaited: &Awaited) -> cantle::WaitReport {
    cantle::WaitReport { task: task.to_owned(), reason: awaited.to_string(), remedy: None }
}

/// The requests of these tasks. The amount of GPU counts in `NAME=task` queues only; the kind of GPU, and CPU and
/// memory, count everywhere.
async fn read_requests(
    env: &Environment,
    backlog: &Backlog,
) -> Result<BTreeMap<String, TaskRequest>, WireError> {
    let waiting = backlog.values().flat_map(|queue| &queue.waiting);
    let ids: Vec<String> = waiting.map(|queued| queued.task.clone()).collect();
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let list = Listing::fields(ids, &["id", "hyperparams", "cantle_time_limit_s"]);
    let answer = env.server.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?;
    let request = |task: tasks::Task| {
        let request = TaskRequest::from_hyperparams(&task.hyperparams).unwrap_or_else(|error| {
            if FALLBACKS.count(Fallback::UnreadableRequest, &format!("{} {error}", task.id)) {
                tracing::warn!(task = task.id, %error, "a request cannot be read; it counts as none until the task is refused");
            }
            None
        });
        let time = limit_of(&task);
        // The server knows the time of a task that asks for nothing.
        let request = if time.is_some() { Some(request.unwrap_or_default()) } else { request };
        Some((task.id, TaskRequest { time, ..request? }))
    };
    Ok(answer.tasks.into_iter().filter_map(request).collect())
}

/// The tasks that a plan considers; under quotas those that the server names: the first of each project.
fn considered(mut backlog: Backlog, fleet: &Fleet) -> Backlog {
    let named: BTreeSet<&str> = fleet.waiting.iter().map(|waiting| waiting.task.as_str()).collect();
    let held_back: BTreeSet<&str> = fleet.held_back.iter().map(String::as_str).collect();
    for waiting in backlog.values_mut().map(|queue| &mut queue.waiting) {
        waiting.retain(|queued| !held_back.contains(queued.task.as_str()));
        if fleet.projects.is_empty() {
            waiting.truncate(HEAD_LIMIT);
        } else {
            waiting.retain(|queued| named.contains(queued.task.as_str()));
        }
    }
    backlog
}

/// The tasks that wait again while a run of theirs has not ended here, as after a pause of this node: it must end first.
fn not_ended(backlog: &Backlog, here: &BTreeSet<&str>) -> BTreeMap<String, cantle::WaitReport> {
    let waiting = backlog.values().flat_map(|queue| &queue.waiting);
    let report = |queued: &Queued| {
        let reason = "its last run has not ended on this machine yet".to_owned();
        (queued.task.clone(), cantle::WaitReport { task: queued.task.clone(), reason, remedy: None })
    };
    waiting.filter(|queued| here.contains(queued.task.as_str())).map(report).collect()
}

/// The GPUs that a request will be counted as, in thousandths, as far as that is known before it has a place.
fn milli_of(request: &GpuRequest, gpus: &[Gpu]) -> u64 {
    let total = gpus.first().map_or(0, |gpu| gpu.memory_bytes);
    match request {
        GpuRequest::Gpus(count) => 1000 * u64::from(*count),
        // Its name ends with its memory: 1g.10gb. The claim counts the real instance.
        GpuRequest::MigProfile(name) => {
            let gib = name.rsplit('.').next().and_then(|word| word.strip_suffix("gb")?.parse::<u64>().ok());
            let share = gib.and_then(|gib| GpuRequest::Memory(Bytes(gib << 30)).share_of(total));
            share.map_or(0, |share| u64::from(share.milli.0))
        }
        _ => request.share_of(total).map_or(0, |share| u64::from(share.milli.0)),
    }
}

fn waiting_task(queued: &Queued, request: Option<&TaskRequest>, by_server: Option<&WaitingTask>) -> Waiting {
    let mut waiting = Waiting::new(TaskId(queued.task.clone()), queued.added_ms);
    if let Some(request) = request {
        waiting.request.clone_from(&request.gpu);
        waiting.isolation = request.isolation;
        waiting.compute = request.compute;
        waiting.max_run_ms = request.time.map(TimeLimit::ms);
    }
    if let Some(by_server) = by_server {
        describe_waiting(&mut waiting, by_server, request.map(TaskRequest::terms));
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::QueueBacklog;

    #[test]
    fn tasks_over_the_limit_of_their_user_are_in_no_plan() {
        let queued = |task: &str| Queued { task: task.to_owned(), added_ms: 0 };
        let queue = QueueBacklog { force: None, cpu_auto: false, waiting: vec![queued("a"), queued("b")] };
        let backlog = Backlog::from([("q".into(), queue)]);
        let fleet = Fleet { held_back: vec!["a".to_owned()], ..Fleet::default() };
        let left = considered(backlog, &fleet);
        assert_eq!(
            left.values().flat_map(|queue| &queue.waiting).map(|q| q.task.as_str()).collect::<Vec<_>>(),
            ["b"]
        );
    }

    #[test]
    fn a_task_whose_last_run_has_not_ended_here_waits_for_its_end() {
        let queued = |task: &str| Queued { task: task.to_owned(), added_ms: 0 };
        let queue = QueueBacklog { force: None, cpu_auto: false, waiting: vec![queued("a"), queued("b")] };
        let backlog = Backlog::from([("q".into(), queue)]);
        let waits = not_ended(&backlog, &BTreeSet::from(["a"]));
        assert_eq!(waits.keys().collect::<Vec<_>>(), ["a"]);
        assert!(waits["a"].reason.contains("has not ended on this machine"));
    }

    #[test]
    fn leases_that_cannot_be_read_are_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut planner = Planner::new(History::open(dir.path(), "w"));
        let with = |leases: Option<&[&str]>| Announced {
            backlog: Backlog::new(),
            leases: leases.map(|leases| leases.iter().map(|&lease| LeaseId::from(lease)).collect()),
            fleet: Fleet::default(),
        };
        assert!(planner.is_stale(with(Some(&[]))), "nothing was planned yet");
        // In the future: the interval is not over, however late the next line is.
        planner.planned_at = Some(Instant::now() + 100 * REPLAN_EVERY);
        assert!(!planner.is_stale(with(Some(&[]))));
        assert!(planner.is_stale(with(None)));
        assert!(!planner.is_stale(with(None)), "planned again at intervals only");
        assert!(planner.is_stale(with(Some(&["a"]))));
    }
}
