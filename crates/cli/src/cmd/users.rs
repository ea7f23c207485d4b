//! `cantle users | audit`: who may do what, and who did what.

use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::users::{
    AddKey, AddUser, AuditView, GetAudit, GetKeys, GetUsers, KeyView, NewKey, RemoveUser, RevokeKey,
    RoleView, SetRole, UserView,
};
use clap::{Args, Subcommand, ValueEnum};

use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::out::{Column, Format};

/// How often `audit --follow` asks for more.
const EVERY: Duration = Duration::from_secs(1);
/// How many records one question of `audit --follow` gets at most.
const AT_ONCE: u64 = 1000;

/// A set of rights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum RoleName {
    /// Everything, users and the audit too
    Admin,
    /// Everything with tasks, quotas and queues
    Manager,
    /// See what there is, and run tasks of one's own
    Member,
    /// See and read everything, change nothing
    Viewer,
    /// What the agent of one node does, and nothing else
    Agent,
}

impl RoleName {
    const fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Manager => "manager",
            Self::Member => "member",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
        }
    }
}

/// `cantle users …`
#[derive(Subcommand, Debug)]
pub(crate) enum UsersCommand {
    /// Make a user and print its first key, once
    Add(AddArgs),
    /// List users with their roles
    List,
    /// Revoke a user's keys and roles; its tasks stay
    Remove {
        /// The user
        #[arg(value_name = "USER")]
        user: String,
    },
    /// Give a role to a user, a group or everybody, or take it away
    Role(RoleArgs),
    /// List the roles of groups and of everybody
    Roles,
    /// Make, list, replace and revoke keys
    #[command(subcommand)]
    Key(KeyCommand),
}

/// `cantle users add`
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// The name: letters, digits and . - _ @
    #[arg(value_name = "NAME")]
    name: String,
    /// What the user may do
    #[arg(long, value_enum)]
    role: RoleName,
    /// Only in this project and those below it [default: in all projects]
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// The node of an agent
    #[arg(long, value_name = "NODE", required_if_eq("role", "agent"))]
    node: Option<String>,
    /// A group of the user
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
}

/// `cantle users role`
#[derive(Args, Debug)]
pub(crate) struct RoleArgs {
    /// A user, group:NAME, or everybody
    #[arg(value_name = "WHO")]
    who: String,
    /// The role
    #[arg(long, value_enum)]
    role: RoleName,
    /// Only in this project and those below it [default: in all projects]
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// Take the role away
    #[arg(long)]
    remove: bool,
}

/// `cantle users key …`
#[derive(Subcommand, Debug)]
pub(crate) enum KeyCommand {
    /// Make another key and print it, once
    Add {
        /// The user [default: you]
        #[arg(value_name = "USER")]
        user: Option<String>,
        /// What the key is for
        #[arg(long, value_name = "TEXT", default_value = "")]
        label: String,
    },
    /// List keys with their last use
    List {
        /// The user [default: you]
        #[arg(value_name = "USER")]
        user: Option<String>,
    },
    /// Make a key that replaces another one, which is revoked at once
    Rotate {
        /// The access key to replace
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Revoke a key
    Revoke {
        /// The access key
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// `cantle audit`
#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    /// Only this user
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Only this action: an endpoint, or login
    #[arg(long, value_name = "ACTION")]
    action: Option<String>,
    /// Only about this task, queue, project or user
    #[arg(long, value_name = "WHAT")]
    about: Option<String>,
    /// Only what was refused
    #[arg(long)]
    refused: bool,
    /// Maximum number of records, the newest ones
    #[arg(long, value_name = "N", default_value_t = 200)]
    limit: u64,
    /// Go on with new records
    #[arg(short, long)]
    follow: bool,
}

const USER_COLUMNS: [Column<UserView>; 6] = [
    Column { head: "NAME", wide: false, cell: |u| u.name.clone() },
    Column { head: "ROLES", wide: false, cell: |u| roles(&u.roles) },
    Column { head: "NODE", wide: true, cell: |u| u.node.clone().unwrap_or_else(dash) },
    Column { head: "GROUPS", wide: true, cell: |u| u.groups.join(" ") },
    Column { head: "KEYS", wide: false, cell: |u| u.keys.to_string() },
    Column { head: "LAST USED", wide: false, cell: |u| u.last_used.clone().unwrap_or_else(dash) },
];

const ROLE_COLUMNS: [Column<RoleView>; 3] = [
    Column { head: "WHO", wide: false, cell: |r| r.who.clone() },
    Column { head: "ROLE", wide: false, cell: |r| r.role.clone() },
    Column { head: "PROJECT", wide: false, cell: |r| r.project.clone().unwrap_or_else(|| "all".to_owned()) },
];

const KEY_COLUMNS: [Column<KeyView>; 6] = [
    Column { head: "ACCESS KEY", wide: false, cell: |k| k.access_key.clone() },
    Column { head: "USER", wide: false, cell: |k| k.user.clone() },
    Column { head: "LABEL", wide: false, cell: |k| k.label.clone() },
    Column { head: "LAST USED", wide: false, cell: |k| k.last_used.clone().unwrap_or_else(dash) },
    Column { head: "FROM", wide: true, cell: |k| k.last_used_from.clone().unwrap_or_else(dash) },
    Column { head: "REVOKED", wide: false, cell: |k| k.revoked.clone().unwrap_or_else(dash) },
];

const NEW_COLUMNS: [Column<NewKey>; 3] = [
    Column { head: "USER", wide: false, cell: |k| k.user.clone() },
    Column { head: "ACCESS KEY", wide: false, cell: |k| k.access_key.clone() },
    Column { head: "SECRET KEY", wide: false, cell: |k| k.secret_key.clone() },
];

const AUDIT_COLUMNS: [Column<AuditView>; 7] = [
    Column { head: "TIME", wide: false, cell: |r| r.time.clone() },
    Column { head: "USER", wide: false, cell: |r| if r.user.is_empty() { dash() } else { r.user.clone() } },
    Column { head: "FROM", wide: false, cell: |r| r.from.clone() },
    Column { head: "ACTION", wide: false, cell: |r| r.action.clone() },
    Column { head: "ABOUT", wide: false, cell: |r| r.subject.clone() },
    Column { head: "OUTCOME", wide: false, cell: |r| r.outcome.clone() },
    Column { head: "BEFORE", wide: true, cell: |r| r.before.to_string() },
];

fn dash() -> String {
    "-".to_owned()
}

fn roles(roles: &[RoleView]) -> String {
    let one = |role: &RoleView| match &role.project {
        Some(project) => format!("{} of {project}", role.role),
        None => role.role.clone(),
    };
    roles.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Users, their roles and keys.
pub(crate) fn users(context: &Context, command: UsersCommand) -> CommandResult {
    let (server, printer) = (Connection::open(context)?, &context.printer);
    match command {
        UsersCommand::Add(AddArgs { name, role, project, node, group }) => {
            let request = AddUser { name, role: role.name().to_owned(), project, node, groups: group };
            print_key(context, server.call(&request)?);
        }
        UsersCommand::List => {
            printer.items(&server.call(&GetUsers {})?.users, |u| u.name.clone(), &USER_COLUMNS);
        }
        UsersCommand::Roles => {
            printer.items(&server.call(&GetUsers {})?.shared, |r| r.who.clone(), &ROLE_COLUMNS);
        }
        UsersCommand::Remove { user } => {
            server.call(&RemoveUser { user: user.clone() })?;
            printer.say(&format!("{user}: removed, with all keys and roles"));
        }
        UsersCommand::Role(RoleArgs { who, role, project, remove }) => {
            let role = role.name();
            let place = project.as_ref().map_or_else(String::new, |project| format!(" of {project}"));
            server.call(&SetRole { who: who.clone(), role: role.to_owned(), project, remove })?;
            let done = if remove { "no longer" } else { "now" };
            printer.say(&format!("{who}: {done} {role}{place}"));
        }
        UsersCommand::Key(command) => keys(context, &server, command)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn keys(context: &Context, server: &Connection, command: KeyCommand) -> Result<(), crate::error::CliError> {
    let printer = &context.printer;
    match command {
        KeyCommand::Add { user, label } => {
            print_key(context, server.call(&AddKey { user, label, instead_of: None })?);
        }
        KeyCommand::Rotate { key } => {
            let request = AddKey { user: None, label: format!("instead of {key}"), instead_of: Some(key) };
            print_key(context, server.call(&request)?);
        }
        KeyCommand::List { user } => {
            printer.items(&server.call(&GetKeys { user })?.keys, |k| k.access_key.clone(), &KEY_COLUMNS);
        }
        KeyCommand::Revoke { key } => {
            server.call(&RevokeKey { access_key: key.clone() })?;
            printer.say(&format!("{key}: revoked"));
        }
    }
    Ok(())
}

fn print_key(context: &Context, key: NewKey) {
    context.printer.items(&[key], |k| k.access_key.clone(), &NEW_COLUMNS);
    context
        .printer
        .say("the secret key is shown this once; the user writes both into clearml.conf (clearml-init)");
}

/// Records of the audit, oldest first; one JSON object a line with `--follow -o json`.
pub(crate) fn audit(context: &Context, args: AuditArgs) -> CommandResult {
    let (server, printer) = (Connection::open(context)?, &context.printer);
    let AuditArgs { user, action, about, refused, limit, follow } = args;
    let mut request = GetAudit { after: None, user, action, subject: about, refused, limit: Some(limit) };
    let name = |record: &AuditView| record.id.to_string();
    let mut found = server.call(&request)?.records;
    if !follow {
        printer.items(&found, name, &AUDIT_COLUMNS);
        return Ok(ExitCode::SUCCESS);
    }
    request.limit = Some(AT_ONCE);
    loop {
        if let Some(last) = found.last() {
            request.after = Some(last.id);
        }
        if printer.format == Format::Json {
            found.iter().for_each(|record| printer.json(record));
        } else if !found.is_empty() {
            printer.items(&found, name, &AUDIT_COLUMNS);
        }
        std::thread::sleep(EVERY);
        // Before the first record the newest ones are all there are.
        request.after = request.after.or(Some(0));
        found = server.call(&request)?.records;
    }
}
