//! `cantle projects | quota`: who is granted what, and who has what.

use std::process::ExitCode;

use cantle_clearml::quotas::{GetProjects, GetQuotas, ProjectView, QuotaView, SetQuota};
use cantle_model::{ProjectQuota, Resource};

use super::Context;
use crate::args::{Grant, QuotaArgs, QuotaCommand};
use crate::connect::Server;
use crate::error::{CliError, Kind, Outcome};
use crate::out::Column;

const PROJECT_COLUMNS: [Column<ProjectView>; 9] = [
    Column { head: "PROJECT", wide: false, cell: |p| p.name.clone() },
    Column { head: "DESERVED", wide: false, cell: |p| of_quota(p, p.deserved_milli) },
    Column { head: "FAIR SHARE", wide: false, cell: |p| of_quota(p, p.fair_share_milli) },
    Column { head: "ALLOCATED", wide: false, cell: |p| number(p.allocated_milli) },
    Column { head: "OVER QUOTA", wide: false, cell: |p| of_quota(p, p.over_quota_milli) },
    Column { head: "LIMIT", wide: false, cell: |p| p.limit_milli.map_or_else(dash, number) },
    Column { head: "PAST USE", wide: false, cell: |p| p.usage_ppm.map_or_else(dash, percent) },
    Column { head: "RUNNING", wide: false, cell: |p| p.running.to_string() },
    Column { head: "WAITING", wide: false, cell: |p| p.waiting.to_string() },
];

/// Projects by name, with their part of the GPUs.
pub(crate) fn projects(context: &Context) -> Outcome {
    let projects = Server::find(context)?.call(&GetProjects {})?.projects;
    context.printer.items(&projects, |p| p.name.clone(), &PROJECT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

const QUOTA_COLUMNS: [Column<QuotaView>; 7] = [
    Column { head: "PROJECT", wide: false, cell: |q| q.project.clone() },
    Column { head: "GPU", wide: false, cell: |q| amount(Resource::Gpu, q.quota.gpu.deserved) },
    Column { head: "LIMIT", wide: false, cell: |q| amount(Resource::Gpu, q.quota.gpu.limit) },
    Column { head: "WEIGHT", wide: false, cell: |q| q.quota.gpu.weight.to_string() },
    Column { head: "PRIORITY", wide: false, cell: |q| q.quota.priority.to_string() },
    Column { head: "MIN RUN", wide: true, cell: |q| format!("{} s", q.quota.min_run_ms / 1000) },
    Column { head: "ALL", wide: true, cell: |q| q.quota.to_string() },
];

/// Shows, grants or takes away.
pub(crate) fn quota(context: &Context, command: QuotaCommand) -> Outcome {
    let server = Server::find(context)?;
    match command {
        QuotaCommand::Show { project } => {
            let found = granted(&server, project.as_deref())?;
            if let (Some(project), []) = (&project, found.as_slice()) {
                context.printer.say(&format!("project {project} has no quota of its own"));
            }
            context.printer.items(&found, |q| q.project.clone(), &QUOTA_COLUMNS);
        }
        QuotaCommand::Set(QuotaArgs { project, grant }) => {
            let mut quota = match granted(&server, Some(&project)) {
                Ok(mut found) => found.pop().map(|found| found.quota).unwrap_or_default(),
                Err(error) if error.is(Kind::NotFound) => ProjectQuota::default(),
                Err(error) => return Err(error),
            };
            apply(&grant, &mut quota);
            quota
                .check()
                .map_err(|error| CliError::new(Kind::Usage, format!("project {project}: {error}")))?;
            server.call(&SetQuota { project: project.clone(), quota: Some(quota) })?;
            context.printer.say(&format!("{project}: {quota}"));
        }
        QuotaCommand::Unset { project } => {
            granted(&server, Some(&project))?;
            server.call(&SetQuota { project: project.clone(), quota: None })?;
            context.printer.say(&format!("{project}: no quota of its own any more"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn granted(server: &Server, project: Option<&str>) -> Result<Vec<QuotaView>, CliError> {
    let request = GetQuotas { project: project.map(str::to_owned) };
    server.about_project(project.unwrap_or_default(), &request).map(|answer| answer.quotas)
}

fn apply(grant: &Grant, quota: &mut ProjectQuota) {
    if let Some(gpu) = grant.gpu {
        quota.gpu.deserved = Some(gpu.0.into());
    }
    if let Some(weight) = grant.weight {
        // One weight for all resources: a project's part of what is left over is not split by kind.
        (quota.gpu.weight, quota.cpu.weight, quota.memory.weight) = (weight, weight, weight);
    }
    if let Some(priority) = grant.priority {
        quota.priority = priority;
    }
    if let Some(seconds) = grant.min_run {
        quota.min_run_ms = i64::from(seconds) * 1000;
    }
    for (given, place) in [
        (grant.limit, &mut quota.gpu.limit),
        (grant.cpu, &mut quota.cpu.deserved),
        (grant.cpu_limit, &mut quota.cpu.limit),
    ] {
        if let Some(given) = given {
            *place = Option::from(given).map(|milli: cantle_model::Milli| milli.0.into());
        }
    }
    for (given, place) in
        [(grant.memory, &mut quota.memory.deserved), (grant.memory_limit, &mut quota.memory.limit)]
    {
        if let Some(given) = given {
            *place = Option::from(given).map(|bytes: cantle_model::Bytes| bytes.0);
        }
    }
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
