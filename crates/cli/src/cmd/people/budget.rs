//! `cantle budget`: the GPU time that projects may use in a month.

use std::process::ExitCode;

use cantle_clearml::budgets::{BudgetView, GetBudgets, SetBudget};
use cantle_model::{AtFull, Budget, gpu_hours};
use clap::{Args, Subcommand};

use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::Column;

/// `cantle budget …`
#[derive(Subcommand, Debug)]
pub(crate) enum BudgetCommand {
    /// Show the budgets of projects, and what they used of them in this month
    Show {
        /// Only this project
        #[arg(value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Set a project's budget of a month; omitted values do not change
    Set(BudgetArgs),
    /// Remove a project's budget
    Unset {
        /// The project's name
        #[arg(value_name = "PROJECT")]
        project: String,
    },
}

/// `cantle budget set`
#[derive(Args, Debug)]
#[group(id = "parts", required = true, multiple = true, args = ["gpu_hours", "warn_at", "at_full"])]
pub(crate) struct BudgetArgs {
    /// The project, created if it does not exist; the budget of a holds for a/b and a/c together
    #[arg(value_name = "PROJECT")]
    project: String,
    /// GPU-hours in a month (UTC): half a GPU for two hours is one
    #[arg(long, value_name = "H", value_parser = hours)]
    gpu_hours: Option<u64>,
    /// Send a notice from this part of the budget on, in percent [default: 80]
    #[arg(long, value_name = "PERCENT")]
    warn_at: Option<u32>,
    /// When it is used up: warn (a notice only), no-borrowing (no more than the project's quota), or queue (its tasks wait for the
    /// next month) [default: warn]
    #[arg(long, value_name = "WHAT")]
    at_full: Option<AtFull>,
}

/// GPU-seconds of a number of hours, to the thousandth.
fn hours(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no number of GPU-hours; it is one like 1200 or 0.5, more than 0");
    let hours: f64 = text.parse().map_err(|_| wrong())?;
    let seconds = (hours * 3600.0).round();
    if !(1.0..1e15).contains(&seconds) {
        return Err(wrong());
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the line above checks it")]
    Ok(seconds as u64)
}

const COLUMNS: [Column<BudgetView>; 7] = [
    Column { head: "PROJECT", wide: false, cell: |b| b.project.clone() },
    Column { head: "GPU-HOURS", wide: false, cell: |b| gpu_hours(b.budget.gpu_seconds) },
    Column { head: "USED", wide: false, cell: |b| gpu_hours(b.used_seconds) },
    Column { head: "PART", wide: false, cell: |b| format!("{} %", b.used_percent) },
    Column { head: "MONTH", wide: false, cell: |b| b.month.clone().unwrap_or_else(|| "-".to_owned()) },
    Column { head: "WARN AT", wide: false, cell: |b| format!("{} %", b.budget.warn_percent) },
    Column { head: "AT FULL", wide: false, cell: |b| b.budget.at_full.to_string() },
];

/// Shows, sets or removes budgets.
pub(crate) fn budget(context: &Context, command: BudgetCommand) -> CommandResult {
    let server = Connection::open(context)?;
    match command {
        BudgetCommand::Show { project } => {
            let found = budgets(&server, project.as_deref())?;
            if let (Some(project), []) = (&project, found.as_slice()) {
                context.printer.say(&format!("project {project} has no budget of its own"));
            }
            context.printer.items(&found, |b| b.project.clone(), &COLUMNS);
        }
        BudgetCommand::Set(BudgetArgs { project, gpu_hours, warn_at, at_full }) => {
            let old = match budgets(&server, Some(&project)) {
                Ok(mut found) => found.pop().map(|found| found.budget),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let Some(gpu_seconds) = gpu_hours.or_else(|| old.map(|old| old.gpu_seconds)) else {
                let text = format!("project {project} has no budget yet; add --gpu-hours H");
                return Err(CliError::new(ErrorKind::Usage, text));
            };
            let budget = Budget {
                gpu_seconds,
                warn_percent: warn_at
                    .or_else(|| old.map(|old| old.warn_percent))
                    .unwrap_or_else(Budget::warn_percent),
                at_full: at_full.or_else(|| old.map(|old| old.at_full)).unwrap_or_default(),
            };
            let wrong = |error| CliError::new(ErrorKind::Usage, format!("project {project}: {error}"));
            budget.check().map_err(wrong)?;
            server.call(&SetBudget { project: project.clone(), budget: Some(budget) })?;
            context.printer.say(&format!("{project}: {budget}"));
        }
        BudgetCommand::Unset { project } => {
            if budgets(&server, Some(&project))?.is_empty() {
                let text = format!("project {project} has no budget of its own");
                return Err(
                    CliError::new(ErrorKind::NotFound, text).with_hint("which there are: cantle budget show")
                );
            }
            server.call(&SetBudget { project: project.clone(), budget: None })?;
            context.printer.say(&format!("{project}: no budget any more"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn budgets(server: &Connection, project: Option<&str>) -> Result<Vec<BudgetView>, CliError> {
    let request = GetBudgets { project: project.map(str::to_owned) };
    server.about_project(project.unwrap_or_default(), &request).map(|answer| answer.budgets)
}
