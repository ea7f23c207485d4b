//! `cantle notify`: where notices of one's tasks go.

use std::io::Read as _;
use std::process::ExitCode;

use cantle_clearml::notify::{
    DeleteReceiver, GetReceivers, NewReceiver, ReceiverView, SetReceiver, TestReceiver,
};
use clap::{Args, Subcommand};

use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{ErrorKind, as_kind};
use crate::out::Column;

/// Longer addresses are not read.
const LONGEST: u64 = 4096;

/// `cantle notify …`
#[derive(Subcommand, Debug)]
pub(crate) enum NotifyCommand {
    /// List your receivers, and whether notices arrive there
    List,
    /// Make a receiver, or change it; prints the key of its signatures, if it has one
    Set(NotifyArgs),
    /// Send a notice now
    Test {
        /// The receiver's name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Delete a receiver, with the notices that wait for it
    Delete {
        /// The receiver's name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `cantle notify set`
#[derive(Args, Debug)]
pub(crate) struct NotifyArgs {
    /// The receiver, as `cantle submit --notify NAME` names it
    #[arg(value_name = "NAME")]
    name: String,
    /// https://… for JSON, slack:https://…, teams:https://… or mailto:ADDRESS; - reads it from stdin, so that it is in no list of
    /// processes
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// What it gets, with commas: start, idle, completed, failed, stopped [default: all but start]
    #[arg(long, value_name = "EVENT,…", value_delimiter = ',')]
    on: Vec<String>,
    /// Notices of all of your tasks [default: of those that name it]
    #[arg(long)]
    always: bool,
}

const COLUMNS: [Column<ReceiverView>; 7] = [
    Column { head: "NAME", wide: false, cell: |r| r.name.clone() },
    Column { head: "KIND", wide: false, cell: |r| r.kind.clone() },
    Column { head: "TO", wide: false, cell: |r| r.to.clone() },
    Column { head: "TASKS", wide: false, cell: tasks },
    Column { head: "STATE", wide: false, cell: ReceiverView::state },
    Column { head: "ON", wide: true, cell: |r| r.on.join(",") },
    Column { head: "LAST SENT", wide: true, cell: |r| r.sent.clone().unwrap_or_default() },
];

fn tasks(receiver: &ReceiverView) -> String {
    let text = match (receiver.of_server, receiver.always) {
        (true, _) => "server",
        (false, true) => "all",
        (false, false) => "named",
    };
    text.to_owned()
}

/// Lists, makes, tries or deletes receivers.
pub(crate) fn notify(context: &Context, command: NotifyCommand) -> CommandResult {
    let (server, printer) = (Connection::open(context)?, &context.printer);
    match command {
        NotifyCommand::List => {
            let found = server.call(&GetReceivers {})?.receivers;
            printer.items(&found, |r| r.name.clone(), &COLUMNS);
        }
        NotifyCommand::Set(NotifyArgs { name, mut address, on, always }) => {
            if address == "-" {
                address.clear();
                let read = std::io::stdin().take(LONGEST).read_to_string(&mut address);
                read.map_err(as_kind(ErrorKind::Usage))?;
                address.truncate(address.trim_end().len());
            }
            let NewReceiver { secret } =
                server.call(&SetReceiver { name: name.clone(), address, on, always })?;
            if let Some(secret) = secret {
                printer.data(&secret);
                printer.say(&format!("receiver {name}: set; the key of its signatures is not shown again"));
            } else {
                printer.say(&format!("receiver {name}: set"));
            }
        }
        NotifyCommand::Test { name } => {
            server.call(&TestReceiver { name: name.clone() })?;
            printer.say(&format!("receiver {name}: a notice has arrived"));
        }
        NotifyCommand::Delete { name } => {
            server.call(&DeleteReceiver { name: name.clone() })?;
            printer.say(&format!("receiver {name}: deleted"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
