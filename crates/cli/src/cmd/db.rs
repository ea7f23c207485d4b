//! `cantle db`: the server's database.

use std::process::ExitCode;

use cantle_store::{Database, Store, copy};
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

/// What can be done with a database.
#[derive(Subcommand, Debug)]
enum DbCommand {
    /// Tell whether a database can be used as it is
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

pub(crate) fn db(context: &Context, args: &DbArgs) -> CommandResult {
    let failed = |error| CliError::from(cantle_server::ServerError::Store(error));
    runtime()?.block_on(async {
        match &args.command {
            DbCommand::Check(args) => {
                let database = existing(&args.database)?;
                database.check().await.map_err(failed)?;
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
