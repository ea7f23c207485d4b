//! The reasons why a task waits, each in one line.

use std::fmt;

use cantle_model::{Milli, PoolRule, TaskId};

use crate::{Cluster, Cut, Resource, Shape};

/// The part of the GPUs that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// In use, foreign use included.
    pub used: Milli,
    /// All usable GPUs.
    pub total: Milli,
}

/// A part of a GPU that is free but not enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreePart {
    /// Free part of the GPU.
    pub milli: Milli,
    /// Name of the node; `None` where there is only one.
    pub node: Option<String>,
    /// NVML index of the GPU.
    pub gpu: u32,
    /// The obstacle for the suitable MIG profile, if enough is free.
    pub obstacle: Option<Obstacle>,
}

/// Why an instance cannot be made of a part that is large enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The part is at no place where an instance of this profile could be.
    Place(String),
    /// Others have the media engines that an instance of this profile needs.
    Engines(String),
}

impl fmt::Display for FreePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of GPU {}", self.milli, self.gpu)?;
        if let Some(node) = &self.node {
            write!(f, " on {node}")?;
        }
        match &self.obstacle {
            None => Ok(()),
            Some(Obstacle::Place(profile)) => write!(f, " but no place for {profile}"),
            Some(Obstacle::Engines(profile)) => write!(f, " but too few media engines for {profile}"),
        }
    }
}

/// A project's fair share that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedShare {
    /// The project.
    pub project: String,
    /// Of what; the amounts are in its unit.
    pub resource: Resource,
    /// The holdings of the project's tasks.
    pub held: u64,
    /// The fair share at the moment, given all demands.
    pub fair: u64,
    /// Guaranteed.
    pub deserved: u64,
    /// Never more than this.
    pub limit: Option<u64>,
}

/// `project a holds 1.5 GPUs and its share is 1.5 GPUs (quota 1, limit 2)`.
impl fmt::Display for UsedShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { project, resource, held, fair, deserved, limit } = self;
        let (held, fair, quota) = (resource.text(*held), resource.text(*fair), resource.number(*deserved));
        write!(f, "project {project} holds {held} and its share is {fair} (quota {quota}")?;
        match limit {
            Some(limit) => write!(f, ", limit {})", resource.number(*limit)),
            None => write!(f, ")"),
        }
    }
}

/// A project's quota of a pool that a task would exceed. Amounts are in thousandths of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedPool {
    /// The project.
    pub project: String,
    /// The pool.
    pub pool: String,
    /// The holdings of the project's tasks; those that cannot be stopped for others, if `for_good`.
    pub held: u64,
    /// The limit; the quota, if `for_good`.
    pub most: u64,
    /// The demand of the task.
    pub asked: u64,
    /// The task cannot be stopped for others, so it must fit the quota.
    pub for_good: bool,
}

/// `project a holds 1 GPU of pool x and its limit of it is 1 GPU`.
impl fmt::Display for UsedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { project, pool, held, most, for_good, .. } = self;
        let (held, most) = (Resource::Gpu.text(*held), Resource::Gpu.text(*most));
        match for_good {
            false => write!(f, "project {project} holds {held} of pool {pool} and its limit of it is {most}"),
            true => write!(
                f,
                "project {project} holds {held} of pool {pool} with tasks that cannot be stopped for others, and its \
                 quota of it is {most}"
            ),
        }
    }
}

/// The holder of GPUs that would serve a project within its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeldBy {
    /// Tasks that are not preemptible.
    NotPreemptible,
    /// Tasks that have not run for their project's minimum time.
    MinimumTime,
    /// Projects that hold no more than they may keep.
    WithinQuota,
    /// Tasks that may be preempted, but do not make room for it.
    Preemptible,
}

/// The obstacle between a project and its quota. Amounts are in thousandths of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldQuota {
    /// The project.
    pub project: String,
    /// The holdings of its tasks.
    pub held: u64,
    /// Guaranteed.
    pub quota: u64,
    /// The holders of the GPUs that would do.
    pub by: Vec<(HeldBy, u64)>,
    /// May tasks be preempted at all?
    pub reclaim: bool,
}

/// `project a holds 0 GPUs of its quota of 4 GPUs: others hold 3 GPUs with tasks that are not preemptible`.
impl fmt::Display for HeldQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { project, held, quota, by, reclaim } = self;
        let (held, quota) = (Resource::Gpu.text(*held), Resource::Gpu.text(*quota));
        write!(f, "project {project} holds {held} of its quota of {quota}")?;
        if !reclaim {
            return write!(f, ", and tasks are not preempted here");
        }
        let with = |(by, milli): &(HeldBy, u64)| {
            let what = match by {
                HeldBy::NotPreemptible => "with tasks that are not preemptible",
                HeldBy::MinimumTime => "with tasks in their minimum time",
                HeldBy::WithinQuota => "within what they may keep",
                HeldBy::Preemptible => "with tasks that can be preempted but make no room for it",
            };
            format!("{} {what}", Resource::Gpu.text(*milli))
        };
        match by.as_slice() {
            [] => Ok(()),
            by => write!(f, ": others hold {}", by.iter().map(with).collect::<Vec<_>>().join(", ")),
        }
    }
}

/// Why a task does not start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Not enough is free in one place.
    NoRoom {
        /// Its demand, as text.
        needs: String,
        /// The free capacity of suitable GPUs, the largest first, a few of them.
        free: Vec<FreePart>,
        /// The number of further ones.
        more: usize,
        /// The part in use.
        in_use: Use,
        /// The share of its project, if that is the reason why no task is stopped for it.
        share: Option<UsedShare>,
        /// The obstacle between its project and its quota, if it is within it.
        quota: Option<Box<HeldQuota>>,
        /// The pools that its project may use, if they are restricted, and those it has used up.
        pools: Vec<String>,
    },
    /// No GPU here is in a pool that it may use.
    OutsidePools {
        /// Its demand, as text.
        needs: String,
        /// The rules of its projects.
        rules: Vec<PoolRule>,
    },
    /// Quotas name pools, and this planner cannot keep to them.
    PoolsUnknown {
        /// The project whose quota names pools.
        project: String,
    },
    /// A project's quota of a pool, and no other GPU will do.
    OverPool {
        /// Its demand, as text.
        needs: String,
        /// The quota.
        used: UsedPool,
    },
    /// GPUs would do, but no node with them has the CPU or memory that it needs as well.
    NoHost {
        /// Its demand, as text.
        needs: String,
        /// CPU it needs, in thousandths of a core.
        cpu_milli: u64,
        /// Main memory it needs, in bytes.
        memory_bytes: u64,
    },
    /// The free capacity is reserved for a larger task ahead of it.
    Reserved {
        /// Its demand, as text.
        needs: String,
        /// The task ahead.
        task: TaskId,
    },
    /// Another task of its turn order waits already.
    Behind {
        /// The waiting task ahead.
        task: TaskId,
        /// The queue of that task.
        queue: String,
        /// The demand of that task, as text.
        needs: String,
    },
    /// A project's limit.
    OverLimit {
        /// Its demand, as text.
        needs: String,
        /// The project.
        project: String,
        /// Of what.
        resource: Resource,
        /// The limit, in the resource's unit.
        limit: u64,
        /// The holdings of the project's tasks.
        held: u64,
        /// Its demand.
        asked: u64,
    },
    /// It cannot be stopped for others, so it must fit its project's quota.
    OverQuota {
        /// Its demand, as text.
        needs: String,
        /// The project.
        project: String,
        /// Of what.
        resource: Resource,
        /// The quota, in the resource's unit.
        quota: u64,
        /// The holdings of its non-preemptible tasks.
        held: u64,
        /// Its demand.
        asked: u64,
    },
    /// Others have been asked to stop for it.
    Freeing {
        /// Its demand, as text.
        needs: String,
        /// Tasks that stop on the nodes where it will start.
        tasks: Vec<TaskId>,
    },
    /// Another planner has asked tasks to stop for it.
    FreeingOn {
        /// Its demand, as text.
        needs: String,
        /// Where.
        node: String,
    },
    /// Some of its gang are not there yet.
    GangIncomplete {
        /// The gang.
        gang: String,
        /// Tasks of the gang that wait.
        present: u32,
        /// Tasks of the gang.
        size: u32,
    },
    /// As many tasks run as may run at once.
    EnoughAtOnce {
        /// How many that is.
        most: usize,
    },
    /// Even an idle cluster could not run it.
    Never {
        /// Its demand, as text.
        needs: String,
        /// The largest that is possible, in words.
        largest: String,
    },
}

/// Free parts named before "and N more".
const NAMED: usize = 3;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom { needs, free, more, in_use, share, quota, pools } => {
                write!(f, "needs {needs}, ")?;
                parts(f, free, *more)?;
                write!(f, " ({} of {} in use)", in_use.used, in_use.total)?;
                share.as_ref().map_or(Ok(()), |share| write!(f, "; {share}"))?;
                quota.as_ref().map_or(Ok(()), |quota| write!(f, "; {quota}"))?;
                pools.iter().try_for_each(|pool| write!(f, "; {pool}"))
            }
            Self::OutsidePools { needs, rules } => {
                let rules: Vec<String> = rules.iter().map(ToString::to_string).collect();
                write!(f, "needs {needs}, {}, and no GPU here is one of these", rules.join(", "))
            }
            Self::PoolsUnknown { project } => write!(
                f,
                "the quota of project {project} names pools, which queues on Kubernetes do not place by"
            ),
            Self::OverPool { needs, used } => write!(f, "needs {needs}, {used}"),
            Self::NoHost { needs, cpu_milli, memory_bytes } => {
                let memory = cantle_model::Bytes(*memory_bytes);
                let cores = Resource::Cpu.text(*cpu_milli);
                write!(f, "needs {needs} with {cores} and {memory} of memory, no node has both free")
            }
            Self::Reserved { needs, task } => {
                write!(f, "needs {needs}, what is free is kept for task {task}, which is ahead of it")
            }
            Self::Behind { task, queue, needs } => {
                write!(f, "behind task {task} of queue {queue}, which needs {needs}")
            }
            Self::OverLimit { needs, project, resource, limit, held, .. } => {
                let (limit, held) = (resource.text(*limit), resource.text(*held));
                write!(f, "needs {needs}, project {project} holds {held} and its limit is {limit}")
            }
            Self::OverQuota { needs, project, resource, quota, held, .. } => {
                let (quota, held) = (resource.text(*quota), resource.text(*held));
                write!(
                    f,
                    "needs {needs} and cannot be stopped for others, so it must fit the quota of project {project}: \
                     {quota}, {held} of it held by such tasks"
                )
            }
            Self::Freeing { needs, tasks } => {
                let tasks: Vec<&str> = tasks.iter().map(|task| task.0.as_str()).collect();
                write!(f, "needs {needs}, being freed by {}", tasks.join(", "))
            }
            Self::FreeingOn { needs, node } => write!(f, "needs {needs}, being freed on {node}"),
            Self::GangIncomplete { gang, present, size } => {
                write!(f, "{present} of {size} tasks of gang {gang} are here; they start together")
            }
            Self::EnoughAtOnce { most: 1 } => write!(f, "this agent runs one task at a time"),
            Self::EnoughAtOnce { most } => {
                write!(f, "this agent runs at most {most} tasks at a time, and {most} run")
            }
            Self::Never { needs, largest } => write!(f, "needs {needs}, can never run here: {largest}"),
        }
    }
}

impl Reason {
    /// The change that would let the task start, in one line.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NoRoom { needs, share: None, .. } => {
                format!("a running task that ends and leaves {needs} free on one node")
            }
            Self::NoRoom { needs, share: Some(share), .. } => {
                let project = &share.project;
                format!(
                    "a running task that ends and leaves {needs} free on one node; others are stopped for it once \
                     project {project} holds less, or has a larger share"
                )
            }
            Self::OutsidePools { rules, .. } => {
                let project = rules.first().map_or("", |rule| rule.project.as_str());
                format!("an agent with GPUs of these pools, or more pools for project {project}")
            }
            Self::PoolsUnknown { project } => {
                format!("an agent on a machine of such a pool, or a quota of project {project} without pools")
            }
            Self::OverPool { used: UsedPool { project, pool, held, most, asked, for_good }, .. } => {
                let over = Resource::Gpu.text((held + asked).saturating_sub(*most));
                let what = if *for_good { "quota" } else { "limit" };
                format!(
                    "tasks of project {project} that hold {over} of pool {pool} ending, or a higher {what} of it"
                )
            }
            Self::NoHost { .. } => {
                "a running task that ends on a node with free GPUs, or asking less CPU and memory".into()
            }
            Self::Reserved { task, .. } => format!("task {task} starting, or more free GPUs"),
            Self::Behind { task, .. } => format!("task {task} starting, or backfill switched on"),
            Self::OverLimit { project, resource, limit, held, asked, .. } => {
                let over = resource.text((held + asked).saturating_sub(*limit));
                format!("tasks of project {project} that hold {over} ending, or a higher limit")
            }
            Self::OverQuota { project, resource, quota, held, asked, .. } => {
                let over = resource.text((held + asked).saturating_sub(*quota));
                format!(
                    "being preemptible, a higher quota of project {project}, or such tasks of it that hold {over} \
                     ending"
                )
            }
            Self::Freeing { .. } | Self::FreeingOn { .. } => {
                "those tasks having stopped; nothing else is needed".into()
            }
            Self::GangIncomplete { .. } => "the rest of its gang being submitted".into(),
            Self::EnoughAtOnce { .. } => "a running task that ends, or another agent for the queue".into(),
            Self::Never { .. } => "asking for less, or a larger node".into(),
        }
    }
}

fn parts(f: &mut fmt::Formatter<'_>, free: &[FreePart], more: usize) -> fmt::Result {
    if free.is_empty() {
        return write!(f, "nothing free");
    }
    let named: Vec<String> = free.iter().map(ToString::to_string).collect();
    write!(f, "free {}", named.join(", "))?;
    match more {
        0 => Ok(()),
        more => write!(f, " and parts of {more} more"),
    }
}

impl Cluster {
    /// Use of all usable GPUs of the allowed classes together.
    pub(crate) fn in_use(&self, allowed: &[bool]) -> Use {
        let usable = || {
            let gpus = self.nodes().iter().flat_map(|node| &node.gpus);
            gpus.filter(|gpu| gpu.usable && allowed[gpu.class])
        };
        let total: Milli = usable().map(|_| Milli::ONE).sum();
        let free: Milli = usable().map(|gpu| Milli(gpu.room)).sum();
        Use { used: total.saturating_sub(free), total }
    }

    /// Free parts of the GPUs that `shape` could use: the largest ones, and how many more there are.
    pub(crate) fn free_parts(&self, shape: &Shape) -> (Vec<FreePart>, usize) {
        let one_node = self.len() == 1;
        let mut parts = Vec::new();
        for (at, node) in self.nodes().iter().enumerate() {
            for (gpu, free) in node.gpus.iter().enumerate() {
                let fits = free.usable && free.room > 0;
                if let Some(cut) = shape.share(free.class).filter(|_| fits) {
                    parts.push((std::cmp::Reverse(free.room), at, gpu, cut));
                }
            }
        }
        parts.sort_unstable();
        let more = parts.len().saturating_sub(NAMED);
        let part =
            |&(std::cmp::Reverse(room), at, gpu, cut): &(std::cmp::Reverse<u32>, usize, usize, Cut)| {
                let free = &self.node(at).gpus[gpu];
                let node = (!one_node).then(|| self.node_name(at).to_owned());
                let obstacle = if cut.milli.0 <= room { free.obstacle_to(cut) } else { None };
                FreePart { milli: Milli(room), node, gpu: self.gpu_index(at, gpu), obstacle }
            };
        (parts.iter().take(NAMED).map(part).collect(), more)
    }
}
