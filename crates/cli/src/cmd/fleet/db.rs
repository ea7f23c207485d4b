//! `cantle db`: the server's database.

use std::process::ExitCode;

use cantle_store::{Broken, Database, DatabaseStatus, Store, copy};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::out::Column;

/// `cantle db`
#[derive(Args, Debug)]
pub(crate) struct DbArgs {
    #[command(subcommand)]
    command: DbCommand,
}

/// Actions on a database.
#[derive(Subcommand, Debug)]
enum DbCommand {
    /// Report version, tables, size, tasks and connected servers of a database
    Status(PlaceArgs),
    /// Check whether a database can be used, and whether its records fit together; servers may run
    Check(PlaceArgs),
    /// Bring a database's tables up to date, as the server does at its start
    Migrate(PlaceArgs),
    /// Copy a SQLite database into an empty PostgreSQL; no server may use either of them
    Copy(CopyArgs),
}

/// A database.
#[derive(Args, Debug)]
struct PlaceArgs {
    /// The database
    #[arg(value_name = "sqlite:PATH|postgres://…")]
    database: String,
}

/// Two databases.
#[derive(Args, Debug)]
struct CopyArgs {
    /// The old database
    #[arg(value_name = "sqlite:PATH")]
    from: String,
    /// The new database
    #[arg(value_name = "postgres://…")]
    to: String,
}

/// A table that was copied.
#[derive(Serialize)]
struct Copied {
    table: &'static str,
    rows: i64,
}

const COLUMNS: [Column<Copied>; 2] = [
    Column { head: "TABLE", wide: false, cell: |copied| copied.table.to_owned() },
    Column { head: "ROWS", wide: false, cell: |copied| copied.rows.to_string() },
];

/// A database and what there is to know about it.
#[derive(Serialize)]
struct InspectedDatabase {
    database: String,
    #[serde(flatten)]
    status: DatabaseStatus,
}

const STATUS: [Column<InspectedDatabase>; 9] = [
    Column { head: "DATABASE", wide: false, cell: |found| found.database.clone() },
    Column {
        head: "VERSION",
        wide: false,
        cell: |found| format!("{} {}", found.status.kind, found.status.version),
    },
    Column { head: "TABLES", wide: false, cell: |found| tables(&found.status) },
    Column { head: "SIZE", wide: false, cell: |found| mib(found.status.size_bytes) },
    Column { head: "TASKS", wide: false, cell: |found| found.status.tasks.values().sum::<i64>().to_string() },
    Column { head: "QUEUES", wide: true, cell: |found| found.status.queues.to_string() },
    Column { head: "NODES", wide: true, cell: |found| found.status.nodes.to_string() },
    Column { head: "SERVERS", wide: false, cell: |found| servers(&found.status) },
    Column { head: "LEADER", wide: false, cell: |found| leader(&found.status) },
];

const BROKEN: [Column<Broken>; 3] = [
    Column { head: "COUNT", wide: false, cell: |broken| broken.count.to_string() },
    Column { head: "TASKS THAT", wide: false, cell: |broken| broken.rule.to_owned() },
    Column { head: "EXAMPLE", wide: false, cell: |broken| broken.example.clone() },
];

/// `13`, or `11, pending: 12 13`
fn tables(status: &DatabaseStatus) -> String {
    if status.pending.is_empty() {
        return status.schema.to_string();
    }
    let pending: Vec<String> = status.pending.iter().map(i64::to_string).collect();
    format!("{}, pending: {}", status.schema, pending.join(" "))
}

fn mib(bytes: i64) -> String {
    const MIB: i64 = 1 << 20;
    format!("{} MiB", (bytes + MIB - 1) / MIB)
}

/// The number of connected servers; SQLite does not report it.
fn servers(status: &DatabaseStatus) -> String {
    status.servers.as_ref().map_or_else(|| "-".to_owned(), |servers| servers.len().to_string())
}

fn leader(status: &DatabaseStatus) -> String {
    let leader = status.servers.iter().flatten().find(|server| server.leads);
    leader.map_or_else(|| "-".to_owned(), |server| format!("{} ({})", server.name, server.address))
}

/// `1 record does`, `2 records do`
fn records(broken: &[Broken]) -> String {
    match broken.iter().map(|broken| broken.count).sum::<i64>() {
        1 => "1 record does".to_owned(),
        count => format!("{count} records do"),
    }
}

pub(crate) fn db(context: &Context, args: &DbArgs) -> CommandResult {
    let failed = |error| CliError::from(cantle_server::ServerError::Store(error));
    runtime()?.block_on(async {
        match &args.command {
            DbCommand::Status(args) => {
                let database = existing(&args.database)?;
                let status = database.status().await.map_err(failed)?;
                let found = [InspectedDatabase { database: database.to_string(), status }];
                context.printer.items(&found, |found| found.database.clone(), &STATUS);
            }
            DbCommand::Check(args) => {
                let database = existing(&args.database)?;
                let broken = database.verify().await.map_err(failed)?;
                if !broken.is_empty() {
                    context.printer.items(&broken, |broken| broken.example.clone(), &BROKEN);
                    let what = format!("{database}: {} not fit together", records(&broken));
                    let error = CliError::new(ErrorKind::Failed, what);
                    return Err(error.with_hint("keep a copy of the database, and restore a backup"));
                }
                context.printer.say(&format!("{database}: it can be used"));
            }
            DbCommand::Migrate(args) => {
                let database = existing(&args.database)?;
                Store::connect(&database).await.map_err(failed)?.close().await;
                context.printer.say(&format!("{database}: its tables are up to date"));
            }
            DbCommand::Copy(args) => {
                let (from, to) = (existing(&args.from)?, existing(&args.to)?);
                let Database::Sqlite(path) = &from else {
                    let error = CliError::new(ErrorKind::Usage, format!("{from} is not a SQLite database"));
                    return Err(error.with_hint("copy a PostgreSQL with pg_dump and pg_restore"));
                };
                let copied = copy(path, &to).await.map_err(failed)?;
                let copied: Vec<Copied> =
                    copied.into_iter().map(|(table, rows)| Copied { table, rows }).collect();
                context.printer.items(&copied, |copied| copied.table.to_owned(), &COLUMNS);
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// A database that is there: these commands make none.
fn existing(text: &str) -> Result<Database, CliError> {
    let database: Database =
        text.parse().map_err(|error| CliError::from(cantle_server::ServerError::Store(error)))?;
    match &database {
        Database::Sqlite(path) if !path.is_file() => {
            Err(CliError::new(ErrorKind::NotFound, format!("there is no database {}", path.display())))
        }
        _ => Ok(database),
    }
}
