//! `cantle projects | quota`: the quotas of projects, and what they hold.

use std::process::ExitCode;

use cantle_clearml::pools::PoolShare;
use cantle_clearml::quotas::{GetProjects, GetQuotas, ProjectView, QuotaView, SetQuota};
use cantle_model::{
    AmountError, Bytes, Milli, PoolQuota, Preempt, PreemptError, ProjectQuota, Resource, TimeLimit,
    TimeLimitError,
};
use clap::{Args, Subcommand};

use crate::cmd::kubernetes::cluster;
use crate::cmd::kubernetes::cluster::ClusterArg;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::Column;
use crate::shared_args::values;

/// `cantle quota …`
#[derive(Subcommand, Debug)]
pub(crate) enum QuotaCommand {
    /// Show the quotas of projects
    Show {
        /// Only this project
        #[arg(value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Set a project's quota; omitted values do not change
    Set(QuotaArgs),
    /// Remove a project's own quota; its tasks then count against the nearest parent project that has one
    Unset {
        /// The project's name
        #[arg(value_name = "PROJECT")]
        project: String,
        /// Only its quota of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
}

/// `cantle quota set`
#[derive(Args, Debug)]
pub(crate) struct QuotaArgs {
    /// The project, created if it does not exist; the quota of a holds for a/b and a/c together
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    #[command(flatten)]
    pub(crate) parts: QuotaParts,
}

/// The parts of a quota, each optional.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct QuotaParts {
    /// Guaranteed GPUs, in steps of 0.001: lent while unused, reclaimed when needed
    #[arg(long, alias = "gpus", value_name = "F", value_parser = gpus)]
    pub(crate) gpu: Option<Milli>,
    /// Upper limit of GPUs, or none
    #[arg(long, value_name = "F|none", value_parser = or_none(gpus))]
    pub(crate) limit: Option<OrNone<Milli>>,
    /// Weight of the project when spare capacity is shared among projects; 0: it gets none
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// Projects of higher priority get spare capacity first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Guaranteed CPU cores, or none if they are not counted
    #[arg(long, value_name = "CORES|none", value_parser = or_none(values::cores))]
    pub(crate) cpu: Option<OrNone<Milli>>,
    /// Upper limit of CPU cores, or none
    #[arg(long, value_name = "CORES|none", value_parser = or_none(values::cores))]
    pub(crate) cpu_limit: Option<OrNone<Milli>>,
    /// Guaranteed main memory, e.g. 64Gi, or none if it is not counted
    #[arg(long, value_name = "M|none", value_parser = or_none(values::bytes))]
    pub(crate) memory: Option<OrNone<Bytes>>,
    /// Upper limit of main memory, or none
    #[arg(long, value_name = "M|none", value_parser = or_none(values::bytes))]
    pub(crate) memory_limit: Option<OrNone<Bytes>>,
    /// Seconds that its tasks may run before they can be preempted
    #[arg(long, value_name = "SECONDS")]
    pub(crate) min_run: Option<u32>,
    /// How its tasks make room for others: suspend,requeue or requeue; none: as those of the project above it
    #[arg(long, value_name = "WAYS|none", value_parser = or_none(preempt))]
    pub(crate) preempt: Option<OrNone<Preempt>>,
    /// The longest time that one of its tasks may run (2h, 1d12h), or none; a task that asks for no time has this
    #[arg(long, value_name = "TIME|none", value_parser = or_none(time_limit))]
    pub(crate) max_time: Option<OrNone<TimeLimit>>,
    /// Pools whose GPUs its tasks may use, separated by commas, or none for every GPU
    #[arg(long, value_name = "NAME,…|none", value_parser = or_none(pool_names))]
    pub(crate) pools: Option<OrNone<Vec<String>>>,
    /// --gpu and --limit are of the GPUs of this pool; the quota of all GPUs applies too
    #[arg(
        long,
        value_name = "NAME",
        conflicts_with_all = ["weight", "priority", "cpu", "cpu_limit", "memory", "memory_limit", "min_run", "preempt", "max_time", "pools"]
    )]
    pub(crate) pool: Option<String>,
}

/// An amount, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrNone<T> {
    Some(T),
    None,
}

impl<T> From<OrNone<T>> for Option<T> {
    fn from(given: OrNone<T>) -> Self {
        match given {
            OrNone::Some(amount) => Some(amount),
            OrNone::None => None,
        }
    }
}

pub(crate) fn or_none<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone + Send + Sync {
    move |text| if text == "none" { Ok(OrNone::None) } else { parse(text).map(OrNone::Some) }
}

pub(crate) fn gpus(text: &str) -> Result<Milli, String> {
    text.parse().map_err(|error: AmountError| error.to_string())
}

pub(crate) fn preempt(text: &str) -> Result<Preempt, String> {
    text.parse().map_err(|error: PreemptError| error.to_string())
}

pub(crate) fn time_limit(text: &str) -> Result<TimeLimit, String> {
    text.parse().map_err(|error: TimeLimitError| error.to_string())
}

fn pool_names(text: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(|name| name.is_empty() || name == "none") {
        return Err(format!("\"{text}\" is no list of pools; write names separated by commas, or none"));
    }
    names.sort();
    names.dedup();
    Ok(names)
}

const PROJECT_COLUMNS: [Column<ProjectView>; 10] = [
    Column { head: "PROJECT", wide: false, cell: |p| p.name.clone() },
    Column { head: "QUOTA", wide: false, cell: |p| of_quota(p, p.deserved_milli) },
    Column { head: "FAIR SHARE", wide: false, cell: |p| of_quota(p, p.fair_share_milli) },
    Column { head: "ALLOCATED", wide: false, cell: |p| number(p.allocated_milli) },
    Column { head: "OVER QUOTA", wide: false, cell: |p| of_quota(p, p.over_quota_milli) },
    Column { head: "LIMIT", wide: false, cell: |p| p.limit_milli.map_or_else(dash, number) },
    Column { head: "PAST USE", wide: false, cell: |p| p.usage_ppm.map_or_else(dash, percent) },
    Column { head: "RUNNING", wide: false, cell: |p| p.running.to_string() },
    Column { head: "WAITING", wide: false, cell: |p| p.waiting.to_string() },
    Column { head: "IN POOLS", wide: true, cell: in_pools },
];

/// Projects by name, with their share of the GPUs.
pub(crate) fn projects(context: &Context, from: &ClusterArg) -> CommandResult {
    if let Some(report) = from.read(context)? {
        return cluster::projects(context, &report);
    }
    let projects = Connection::open(context)?.call(&GetProjects {})?.projects;
    context.printer.items(&projects, |p| p.name.clone(), &PROJECT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const QUOTA_COLUMNS: [Column<QuotaView>; 8] = [
    Column { head: "PROJECT", wide: false, cell: |q| q.project.clone() },
    Column { head: "GPU", wide: false, cell: |q| amount(Resource::Gpu, q.quota.gpu.deserved) },
    Column { head: "LIMIT", wide: false, cell: |q| amount(Resource::Gpu, q.quota.gpu.limit) },
    Column { head: "WEIGHT", wide: false, cell: |q| q.quota.gpu.weight.to_string() },
    Column { head: "PRIORITY", wide: false, cell: |q| q.quota.priority.to_string() },
    Column { head: "POOLS", wide: false, cell: pools_of_quota },
    Column { head: "MIN RUN", wide: true, cell: |q| format!("{} s", q.quota.min_run_ms / 1000) },
    Column { head: "ALL", wide: true, cell: |q| q.quota.to_string() },
];

/// Shows, sets or removes quotas.
pub(crate) fn quota(context: &Context, command: QuotaCommand) -> CommandResult {
    let server = Connection::open(context)?;
    match command {
        QuotaCommand::Show { project } => {
            let found = quotas(&server, project.as_deref())?;
            if let (Some(project), []) = (&project, found.as_slice()) {
                context.printer.say(&format!("project {project} has no quota of its own"));
            }
            context.printer.items(&found, |q| q.project.clone(), &QUOTA_COLUMNS);
        }
        QuotaCommand::Set(QuotaArgs { project, parts }) => {
            let mut quota = match quotas(&server, Some(&project)) {
                Ok(mut found) => found.pop().map(|found| found.quota).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::NotFound => ProjectQuota::default(),
                Err(error) => return Err(error),
            };
            apply(&parts, &mut quota).map_err(|error| CliError::new(ErrorKind::Usage, error))?;
            quota
                .check()
                .map_err(|error| CliError::wrap(ErrorKind::Usage, format!("project {project}"), error))?;
            server.call(&SetQuota { project: project.clone(), quota: Some(quota.clone()) })?;
            context.printer.say(&format!("{project}: {quota}"));
        }
        QuotaCommand::Unset { project, pool: Some(pool) } => {
            let mut quota =
                quotas(&server, Some(&project))?.pop().map(|found| found.quota).unwrap_or_default();
            if quota.by_pool.remove(&pool).is_none() {
                let what = format!("project {project} has no quota of pool {pool}");
                return Err(CliError::new(ErrorKind::NotFound, what)
                    .with_hint(format!("what it has: cantle quota show {project}")));
            }
            server.call(&SetQuota { project: project.clone(), quota: Some(quota) })?;
            context.printer.say(&format!("{project}: no quota of pool {pool} any more"));
        }
        QuotaCommand::Unset { project, pool: None } => {
            quotas(&server, Some(&project))?;
            server.call(&SetQuota { project: project.clone(), quota: None })?;
            context.printer.say(&format!("{project}: no quota of its own any more"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn quotas(server: &Connection, project: Option<&str>) -> Result<Vec<QuotaView>, CliError> {
    let request = GetQuotas { project: project.map(str::to_owned) };
    server.about_project(project.unwrap_or_default(), &request).map(|answer| answer.quotas)
}

fn apply(parts: &QuotaParts, quota: &mut ProjectQuota) -> Result<(), String> {
    if let Some(pool) = &parts.pool {
        if parts.gpu.is_none() && parts.limit.is_none() {
            return Err(format!("--pool {pool} says nothing alone; add --gpu, --limit or both"));
        }
        let of_pool = quota.by_pool.entry(pool.clone()).or_default();
        of_pool.deserved = parts.gpu.map_or(of_pool.deserved, |gpu| gpu.0.into());
        if let Some(limit) = parts.limit {
            of_pool.limit = Option::from(limit).map(|milli: Milli| milli.0.into());
        }
        return Ok(());
    }
    if let Some(pools) = &parts.pools {
        quota.pools = Option::from(pools.clone()).unwrap_or_default();
    }
    if let Some(gpu) = parts.gpu {
        quota.gpu.deserved = Some(gpu.0.into());
    }
    if let Some(weight) = parts.weight {
        // One weight for all resources: a project's part of the spare capacity is not split by kind.
        (quota.gpu.weight, quota.cpu.weight, quota.memory.weight) = (weight, weight, weight);
    }
    if let Some(priority) = parts.priority {
        quota.priority = priority;
    }
    if let Some(seconds) = parts.min_run {
        quota.min_run_ms = i64::from(seconds) * 1000;
    }
    if let Some(preempt) = parts.preempt {
        quota.preempt = preempt.into();
    }
    if let Some(time) = parts.max_time {
        quota.max_time_s = time.into();
    }
    for (given, place) in [
        (parts.limit, &mut quota.gpu.limit),
        (parts.cpu, &mut quota.cpu.deserved),
        (parts.cpu_limit, &mut quota.cpu.limit),
    ] {
        if let Some(given) = given {
            *place = Option::from(given).map(|milli: Milli| milli.0.into());
        }
    }
    for (given, place) in
        [(parts.memory, &mut quota.memory.deserved), (parts.memory_limit, &mut quota.memory.limit)]
    {
        if let Some(given) = given {
            *place = Option::from(given).map(|bytes: Bytes| bytes.0);
        }
    }
    Ok(())
}

/// `a 2 (limit 3); only a,b`.
fn pools_of_quota(view: &QuotaView) -> String {
    let of_pool = |(pool, quota): (&String, &PoolQuota)| match quota.limit {
        Some(limit) => format!("{pool} {} (limit {})", number(quota.deserved), number(limit)),
        None => format!("{pool} {}", number(quota.deserved)),
    };
    let mut parts: Vec<String> = view.quota.by_pool.iter().map(of_pool).collect();
    if !view.quota.pools.is_empty() {
        parts.push(format!("only {}", view.quota.pools.join(",")));
    }
    if parts.is_empty() { dash() } else { parts.join("; ") }
}

/// `a 1 of 2 (limit 3)`.
fn in_pools(project: &ProjectView) -> String {
    let part = |(pool, share): (&String, &PoolShare)| {
        let limit = share.quota.limit.map(|limit| format!(" (limit {})", number(limit))).unwrap_or_default();
        format!("{pool} {} of {}{limit}", number(share.allocated_milli), number(share.quota.deserved))
    };
    let parts: Vec<String> = project.by_pool.iter().map(part).collect();
    if parts.is_empty() { dash() } else { parts.join("; ") }
}

fn amount(resource: Resource, amount: Option<u64>) -> String {
    amount.map_or_else(dash, |amount| resource.number(amount))
}

fn number(milli: u64) -> String {
    Resource::Gpu.number(milli)
}

fn percent(ppm: u32) -> String {
    format!("{:.1} %", f64::from(ppm) / 10_000.0)
}

fn of_quota(project: &ProjectView, milli: u64) -> String {
    if project.quota.is_some() { number(milli) } else { dash() }
}

fn dash() -> String {
    "-".to_owned()
}
