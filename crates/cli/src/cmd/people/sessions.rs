//! `cantle users session`: logins of people.

use cantle_clearml::sessions::{EndSessions, GetSessions, SessionView};
use clap::Subcommand;

use crate::connect::Connection;
use crate::context::Context;
use crate::error::CliError;
use crate::out::Column;

/// `cantle users session …`
#[derive(Subcommand, Debug)]
pub(crate) enum SessionCommand {
    /// List logins with their last use
    List {
        /// The user [default: you]
        #[arg(value_name = "USER")]
        user: Option<String>,
        /// Those of all users
        #[arg(long, conflicts_with = "user")]
        all: bool,
    },
    /// End a login, or all logins of a user, at once
    End {
        /// Id of the session, as listed
        #[arg(value_name = "SESSION", required_unless_present = "user")]
        session: Option<String>,
        /// All of this user
        #[arg(long, value_name = "USER", conflicts_with = "session")]
        user: Option<String>,
    },
}

const COLUMNS: [Column<SessionView>; 8] = [
    Column { head: "SESSION", wide: false, cell: |s| s.id.clone() },
    Column { head: "USER", wide: false, cell: |s| s.user.clone() },
    Column { head: "WHERE", wide: false, cell: |s| s.via.clone() },
    Column { head: "LAST USED", wide: false, cell: |s| s.last_used.clone() },
    Column { head: "FROM", wide: false, cell: |s| s.last_used_from.clone() },
    Column { head: "CLIENT", wide: true, cell: |s| s.client.clone() },
    Column { head: "CREATED", wide: true, cell: |s| s.created.clone() },
    Column { head: "EXPIRES", wide: true, cell: |s| s.expires.clone() },
];

pub(crate) fn sessions(
    context: &Context,
    server: &Connection,
    command: SessionCommand,
) -> Result<(), CliError> {
    let printer = &context.printer;
    match command {
        SessionCommand::List { user, all } => {
            let found = server.call(&GetSessions { user, all })?.sessions;
            printer.items(&found, |s| s.id.clone(), &COLUMNS);
        }
        SessionCommand::End { session, user } => {
            let name = session.clone().or_else(|| user.clone()).unwrap_or_default();
            let ended = server.call(&EndSessions { session, user })?.ended;
            let sessions = if ended == 1 { "1 session".to_owned() } else { format!("{ended} sessions") };
            printer.say(&format!("{name}: {sessions} ended"));
        }
    }
    Ok(())
}
