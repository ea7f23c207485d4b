//! `cantle pools`: named sets of GPUs, which quotas name.

use std::process::ExitCode;

use cantle_clearml::pools::{DeletePool, GetPools, PoolMatches, PoolView, SetPool};
use cantle_model::{Milli, Pool};
use clap::{Args, Subcommand};

use crate::cmd::tasks::list::or_dash;
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::Column;

/// `cantle pools …`
#[derive(Subcommand, Debug)]
pub(crate) enum PoolsCommand {
    /// List pools with their GPUs and the projects whose quotas name them
    List,
    /// Define a pool, or define it again; running tasks keep their GPUs
    Set(PoolArgs),
    /// Delete a pool that no quota names
    Delete {
        /// The pool's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `cantle pools set`
#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    /// The pool: letters, digits, '-', '_' and '.'
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    patterns: Patterns,
}

/// The conditions that select GPUs.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
struct Patterns {
    /// Name of a node, or a glob such as 'gpu-a*'; repeat it for more [default: every node]
    #[arg(long = "node", value_name = "GLOB")]
    nodes: Vec<String>,
    /// Model of a GPU as `cantle gpus` prints it, or a glob such as '*A100*'; repeat it for more [default: every model]
    #[arg(long = "model", value_name = "GLOB")]
    models: Vec<String>,
}

const COLUMNS: [Column<PoolView>; 6] = [
    Column { head: "POOL", wide: false, cell: |p| p.pool.name.clone() },
    Column { head: "NODES", wide: false, cell: |p| all_or(&p.pool.nodes) },
    Column { head: "MODELS", wide: false, cell: |p| all_or(&p.pool.models) },
    Column { head: "GPUS", wide: false, cell: |p| p.gpus.to_string() },
    Column { head: "ALLOCATED", wide: false, cell: allocated },
    Column { head: "PROJECTS", wide: false, cell: |p| or_dash(Some(&p.projects.join(","))) },
];

fn all_or(patterns: &[String]) -> String {
    if patterns.is_empty() { "all".to_owned() } else { patterns.join(",") }
}

fn allocated(pool: &PoolView) -> String {
    Milli(u32::try_from(pool.allocated_milli).unwrap_or(u32::MAX)).to_string()
}

/// Lists, defines or deletes pools.
pub(crate) fn pools(context: &Context, command: PoolsCommand) -> CommandResult {
    match command {
        PoolsCommand::List => {
            let pools = Connection::open(context)?.call(&GetPools {})?.pools;
            context.printer.items(&pools, |p| p.pool.name.clone(), &COLUMNS);
        }
        PoolsCommand::Set(PoolArgs { name, patterns: Patterns { nodes, models } }) => {
            let pool = Pool { name, nodes, models };
            pool.check().map_err(|error| CliError::of(ErrorKind::Usage, error))?;
            let Pool { name, nodes, models } = pool.clone();
            let request = SetPool { pool: name, nodes, models };
            let PoolMatches { gpus, unmatched } = Connection::open(context)?.call(&request)?;
            context.printer.say(&format!("pool {pool}; GPUs in it now: {gpus}"));
            for pattern in unmatched {
                context.printer.say(&format!(
                    "warning: \"{pattern}\" matches no node or model that has reported; cantle nodes and cantle gpus list them"
                ));
            }
        }
        PoolsCommand::Delete { name } => {
            Connection::open(context)?.call(&DeletePool { pool: name.clone() })?;
            context.printer.say(&format!("pool {name}: deleted"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
