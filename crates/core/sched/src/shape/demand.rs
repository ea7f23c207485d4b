//! A task's demand: its request, resolved for each kind of GPU of a cluster.

use std::fmt;
use std::sync::Arc;

use cantle_mig::{Table, grant};
use cantle_model::{ComputeMode, GpuRequest, Isolation, Milli, PoolRule, QueueWant};
use serde::{Deserialize, Serialize};

use crate::{Amounts, Cut, Host, InstanceCut, Queue, Waiting};

/// The demand for GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuDemand {
    /// No GPU at all.
    Nothing,
    /// The same part of each of `devices` GPUs of one node.
    Part {
        /// A fraction, an amount of memory or a MIG profile.
        request: GpuRequest,
        /// Number of GPUs, at least 1.
        devices: u32,
        /// The part of each one's compute time, if that is more than the fraction.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        compute: Option<Milli>,
    },
    /// As many untouched GPUs of one node as are free, from `min` to `max`.
    Whole {
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
}

impl GpuDemand {
    /// Least and greatest number of GPUs.
    #[must_use]
    pub const fn devices(&self) -> (u32, u32) {
        match self {
            Self::Nothing => (0, 0),
            Self::Part { devices, .. } => (*devices, *devices),
            Self::Whole { min, max } => (*min, *max),
        }
    }
}

/// As a reason names it: `0.5 GPU`, `0.2 GPU with 0.8 of its compute time`, `2 GPUs`, `1 to 4 GPUs`, `10 GiB of GPU memory on each of 2 GPUs`.
impl fmt::Display for GpuDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => write!(f, "no GPU"),
            Self::Part { request, devices, compute } => {
                write!(f, "{request}")?;
                if let Some(part) = compute {
                    write!(f, " with {part} of its compute time")?;
                }
                if *devices > 1 { write!(f, " on each of {devices} GPUs") } else { Ok(()) }
            }
            Self::Whole { min, max } if min == max => write!(f, "{}", GpuRequest::Gpus(*min)),
            Self::Whole { min, max } => write!(f, "{min} to {max} GPUs"),
        }
    }
}

/// All that one task needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// GPUs.
    #[serde(rename = "ask")]
    pub gpus: GpuDemand,
    /// GPU models that will do; empty means any.
    pub models: Vec<String>,
    /// A GPU must satisfy all of these rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolRule>,
    /// Pools of which its project may have no more now.
    #[serde(skip)]
    pub used_up: Vec<String>,
    /// CPU and main memory.
    pub host: Host,
    /// Its isolation.
    pub isolation: Isolation,
    /// How its compute time is divided. A gate is at shared GPUs only: [`Isolation::Any`] is no MIG instance then.
    #[serde(default)]
    pub compute: ComputeMode,
}

impl Demand {
    /// The demand of `task` when it is taken from `queue`.
    #[must_use]
    pub fn of(queue: &Queue, task: &Waiting) -> Self {
        let ask = match &queue.spec.want {
            QueueWant::Range { min, max } => GpuDemand::Whole { min: *min, max: *max },
            want => match want.request_for(task.request.as_ref()) {
                None => GpuDemand::Nothing,
                Some(GpuRequest::Gpus(n)) => GpuDemand::Whole { min: n, max: n },
                Some(request) => {
                    let compute = task.compute.named_part().filter(|part| match &request {
                        _ if *want != QueueWant::Task => false,
                        GpuRequest::Fraction(of_memory) => part.0 * 10 > of_memory.ten_thousandths(),
                        _ => true,
                    });
                    GpuDemand::Part { request, devices: task.devices.max(1), compute }
                }
            },
        };
        let compute = task.compute.mode;
        let gated = task.compute.is_enforced()
            && !matches!(&ask, GpuDemand::Part { request: GpuRequest::MigProfile(_), .. });
        let isolation = match task.isolation {
            Isolation::Any if gated => Isolation::Shared,
            asked => asked,
        };
        Self {
            gpus: ask,
            models: task.models.clone(),
            pools: task.pools.clone(),
            used_up: Vec::new(),
            host: task.host,
            isolation,
            compute,
        }
    }

    /// As a reason names it among GPUs of these classes.
    pub(crate) fn words(&self, classes: &[GpuClass]) -> String {
        match self.compute {
            ComputeMode::Even => self.gpus.to_string(),
            mode if self.isolation == Isolation::Shared && classes.iter().any(|class| class.mig) => {
                format!("{} without MIG (compute {mode})", self.gpus)
            }
            _ => self.gpus.to_string(),
        }
    }
}

/// A kind of GPU: GPUs that no request distinguishes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuClass {
    /// Product name.
    pub model: String,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// In MIG mode?
    pub mig: bool,
    /// Its offer then, if known.
    pub table: Option<Arc<Table>>,
    /// Names of the pools that it belongs to, in order.
    pub pools: Vec<String>,
}

impl GpuClass {
    /// Can such a GPU serve a request with this isolation?
    pub(crate) fn serves(&self, isolation: Isolation) -> bool {
        match isolation {
            Isolation::Any => self.table.is_some() || !self.mig,
            Isolation::Mig => self.table.is_some(),
            Isolation::Shared => !self.mig,
        }
    }

    /// Do the rules of a task allow such a GPU?
    pub(crate) fn is_allowed(&self, rules: &[PoolRule]) -> bool {
        rules.iter().all(|rule| rule.allows(&self.pools))
    }

    /// The most memory that one task can get of such a GPU.
    pub(crate) fn most_bytes(&self) -> u64 {
        let of = |table: &Arc<Table>| table.profiles.iter().map(|profile| profile.memory_bytes).max();
        self.table.as_ref().and_then(of).unwrap_or(self.memory_bytes)
    }
}

/// A [`Demand`] worked out for the GPU classes of one cluster. Equal shapes are placed alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    min: u32,
    max: u32,
    host: Host,
    /// For each class what is taken of one GPU, or `None` if such a GPU will not do.
    shares: Vec<Option<Cut>>,
}

impl Shape {
    pub(crate) fn new(demand: &Demand, classes: &[GpuClass]) -> Self {
        let (min, max) = demand.gpus.devices();
        let shares = classes.iter().map(|class| share(demand, class)).collect();
        Self { min, max, host: demand.host, shares }
    }

    /// Least and greatest number of GPUs.
    #[must_use]
    pub const fn devices(&self) -> (u32, u32) {
        (self.min, self.max)
    }

    /// CPU and main memory.
    #[must_use]
    pub const fn host(&self) -> Host {
        self.host
    }

    /// The part that it takes of a GPU of the class at this position; `None` if such a GPU will not do.
    #[must_use]
    pub fn share(&self, class: usize) -> Option<Cut> {
        *self.shares.get(class)?
    }

    /// The least that it takes of a GPU of any class, in thousandths.
    pub(crate) fn least_milli(&self) -> u32 {
        self.shares.iter().flatten().map(|cut| cut.milli.0).min().unwrap_or(0)
    }

    /// Its maximum count against quotas, on any GPU.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        let milli = self.shares.iter().flatten().map(|cut| u64::from(cut.milli.0)).max().unwrap_or(0);
        Amounts([milli * u64::from(self.min), self.host.cpu_milli, self.host.memory_bytes])
    }

    /// Positions of the classes that will do.
    pub(crate) fn classes(&self) -> impl Iterator<Item = usize> + '_ {
        self.shares.iter().enumerate().filter(|(_, share)| share.is_some()).map(|(class, _)| class)
    }
}

fn share(demand: &Demand, class: &GpuClass) -> Option<Cut> {
    let (request, compute) = match &demand.gpus {
        GpuDemand::Nothing => return None,
        GpuDemand::Part { request, compute, .. } => (request, *compute),
        GpuDemand::Whole { .. } => (&GpuRequest::Gpus(1), None),
    };
    let model_ok = demand.models.is_empty() || demand.models.contains(&class.model);
    let pool_ok =
        class.is_allowed(&demand.pools) && !demand.used_up.iter().any(|pool| class.pools.contains(pool));
    if !model_ok || !pool_ok || !class.serves(demand.isolation) {
        return None;
    }
    match &class.table {
        None => request.share_of(class.memory_bytes).map(|share| Cut::from(share.with_compute(compute))),
        Some(table) => instance(request, table),
    }
}

fn instance(request: &GpuRequest, table: &Table) -> Option<Cut> {
    let granted = grant(table, request).ok()?;
    Some(Cut {
        milli: granted.milli(),
        memory_limit_bytes: table.profiles[granted.profile].memory_bytes,
        mig: Some(InstanceCut { profile: granted.profile, start: None }),
    })
}
