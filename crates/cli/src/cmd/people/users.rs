//! `cantle users | audit`: users with their roles, and the record of their actions.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use cantle_clearml::Request;
use cantle_clearml::users::{
    AddKey, AddUser, AuditView, ForgetUser, ForgottenUser, GetAudit, GetKeys, GetUsers, KeyView, NewKey,
    RemoveUser, RevokeKey, Role, RoleView, SetRole, SetUser, UserView,
};
use cantle_model::{Milli, TimeLimit, UserLimits};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::quota::{OrNone, gpus, or_none, time_limit};
use super::sessions::{SessionCommand, sessions};
use crate::connect::Connection;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};
use crate::out::{Column, Format, ago};

/// Poll interval of `audit --follow`.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of records in one poll of `audit --follow`.
const AT_ONCE: u64 = 1000;

/// The roles with what they are for.
fn roles_named() -> impl TypedValueParser<Value = Role> {
    let names = Role::ALL.map(|role| PossibleValue::new(role.name()).help(role.about()));
    PossibleValuesParser::new(names).try_map(|name| Role::parse(&name).ok_or("no such role"))
}

/// `cantle users …`
#[derive(Subcommand, Debug)]
pub(crate) enum UsersCommand {
    /// Create a user and print its first key, once
    Add(AddArgs),
    /// List users with their roles
    List,
    /// Revoke a user's keys and roles; its tasks stay
    Remove {
        /// The user
        #[arg(value_name = "USER")]
        user: String,
    },
    /// Remove a user's name from the runs that have ended; no sum of a report changes
    Forget {
        /// The user, also a removed one
        #[arg(value_name = "USER")]
        user: String,
    },
    /// Set the limits of a user; omitted values do not change
    Set(SetArgs),
    /// Give a role to a user, a group or everybody, or remove it
    Role(RoleArgs),
    /// List the roles of groups and of everybody
    Roles,
    /// Create, list, replace and revoke keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// List and end logins: of browsers, and of cantle login
    #[command(subcommand)]
    Session(SessionCommand),
}

/// `cantle users add`
#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// The name: letters, digits and . - _ @
    #[arg(value_name = "NAME")]
    name: String,
    /// What the user may do
    #[arg(long, value_parser = roles_named())]
    role: Role,
    /// Only in this project and those below it [default: in all projects]
    #[arg(long, value_name = "P")]
    project: Option<String>,
    /// The node of an agent
    #[arg(long, value_name = "NODE", required_if_eq("role", "agent"))]
    node: Option<String>,
    /// The Kubernetes user whose tokens are the user's, such as system:serviceaccount:cantle-system:cantle-queues
    #[arg(long, value_name = "NAME")]
    kubernetes: Option<String>,
    /// A group of the user
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
}

/// `cantle users set`
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The user
    #[arg(value_name = "USER")]
    user: String,
    #[command(flatten)]
    limits: LimitArgs,
}

/// The limits, each optional.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitArgs {
    /// Maximum number of GPUs that its running tasks hold, in steps of 0.001, or none for no limit
    #[arg(long, value_name = "F|none", value_parser = or_none(gpus))]
    gpus: Option<OrNone<Milli>>,
    /// Maximum number of tasks that it has in queues, or none for no limit
    #[arg(long, value_name = "N|none", value_parser = or_none(number::<u64>))]
    queued: Option<OrNone<u64>>,
    /// Highest priority of its tasks, or none for no limit
    #[arg(long, value_name = "N|none", value_parser = or_none(number::<u32>))]
    priority: Option<OrNone<u32>>,
    /// The longest time that one of its tasks may run (2h, 1d12h), or none; a task that asks for no time has this
    #[arg(long, value_name = "TIME|none", value_parser = or_none(time_limit))]
    max_time: Option<OrNone<TimeLimit>>,
}

impl LimitArgs {
    fn apply(self, limits: &mut UserLimits) {
        if let Some(gpus) = self.gpus {
            limits.gpu_milli = Option::from(gpus).map(|Milli(milli)| milli.into());
        }
        if let Some(queued) = self.queued {
            limits.queued = queued.into();
        }
        if let Some(priority) = self.priority {
            limits.priority = priority.into();
        }
        if let Some(time) = self.max_time {
            limits.time_s = time.into();
        }
    }
}

fn counted_runs(number: u64) -> String {
    if number == 1 { "1 run".to_owned() } else { format!("{number} runs") }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "a whole number that is not negative, or none".to_owned())
}

/// `cantle users role`
#[derive(Args, Debug)]
pub(crate) struct RoleArgs {
    /// A user, group:NAME, or everybody
    #[arg(value_name = "WHO")]
    who: String,
    /// The role
    #[arg(long, value_parser = roles_named())]
    role: Role,
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
    /// Create another key and print it, once
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
    /// Create a key that replaces another one, which is revoked at once
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
    /// Print new records as they appear
    #[arg(short, long)]
    follow: bool,
}

const USER_COLUMNS: [Column<UserView>; 7] = [
    Column { head: "NAME", wide: false, cell: |u| u.name.clone() },
    Column { head: "ROLES", wide: false, cell: |u| roles(&u.roles) },
    Column { head: "NODE", wide: true, cell: |u| u.node.clone().unwrap_or_else(dash) },
    Column { head: "GROUPS", wide: true, cell: |u| u.groups.join(" ") },
    Column { head: "LIMITS", wide: false, cell: |u| u.limits.to_string() },
    Column { head: "KEYS", wide: false, cell: |u| u.keys.to_string() },
    Column { head: "LAST USED", wide: false, cell: |u| ago(u.last_used.as_deref()) },
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
    Column { head: "LAST USED", wide: false, cell: |k| ago(k.last_used.as_deref()) },
    Column { head: "FROM", wide: true, cell: |k| k.last_used_from.clone().unwrap_or_else(dash) },
    Column { head: "REVOKED", wide: false, cell: |k| ago(k.revoked.as_deref()) },
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
        UsersCommand::Add(AddArgs { name, role, project, node, kubernetes, group }) => {
            let role = role.name().to_owned();
            let request = AddUser { name, role, project: project.clone(), node, kubernetes, groups: group };
            print_key(context, in_project(&server, &request, project.as_deref())?);
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
        UsersCommand::Forget { user } => {
            let ForgottenUser { runs, lasting } = server.call(&ForgetUser { user: user.clone() })?;
            printer.say(&format!("{user}: {} have no user any more", counted_runs(runs)));
            if lasting > 0 {
                printer.say(&format!("{} last; repeat this when they have ended", counted_runs(lasting)));
            }
        }
        UsersCommand::Set(SetArgs { user, limits: given }) => {
            let found = server.call(&GetUsers {})?.users.into_iter().find(|u| u.name == user || u.id == user);
            let missing = || {
                let text = format!("there is no user {user}");
                CliError::new(ErrorKind::NotFound, text).with_hint("cantle users list lists them")
            };
            let mut limits = found.ok_or_else(missing)?.limits;
            given.apply(&mut limits);
            server.call(&SetUser { user: user.clone(), limits })?;
            let none = if limits.is_empty() { "no limits".to_owned() } else { format!("at most {limits}") };
            printer.say(&format!("{user}: {none}"));
        }
        UsersCommand::Role(RoleArgs { who, role, project, remove }) => {
            let role = role.name();
            let place = project.as_ref().map_or_else(String::new, |project| format!(" of {project}"));
            let request =
                SetRole { who: who.clone(), role: role.to_owned(), project: project.clone(), remove };
            in_project(&server, &request, project.as_deref())?;
            let done = if remove { "no longer" } else { "now" };
            printer.say(&format!("{who}: {done} {role}{place}"));
        }
        UsersCommand::Key(command) => keys(context, &server, command)?,
        UsersCommand::Session(command) => sessions(context, &server, command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A call about a role, perhaps in one project.
fn in_project<R: Request>(
    server: &Connection,
    request: &R,
    project: Option<&str>,
) -> Result<R::Response, CliError> {
    project.map_or_else(|| server.call(request), |name| server.about_project(name, request))
}

fn keys(context: &Context, server: &Connection, command: KeyCommand) -> Result<(), CliError> {
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
