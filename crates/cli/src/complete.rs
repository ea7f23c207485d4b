//! Completions for a shell when the user presses Tab: commands, flags, and names from the server.

use std::ffi::OsStr;
use std::time::Duration;

use cantle_clearml::Request;
use cantle_clearml::cantle::{GetQueues, GetTasks, QueueView, TaskView};
use clap::Parser;
use clap_complete::{CompleteEnv, CompletionCandidate};

use crate::connect::Connection;
use crate::context::{Context, Global};

/// The variable by which a shell asks for completions, see [`CompleteEnv`].
pub(crate) const ASKED_BY: &str = "COMPLETE";

/// A user who presses Tab does not wait longer.
const WITHIN: Duration = Duration::from_secs(1);

/// As many tasks as fit a screen or two, newest first.
const TASKS: u64 = 100;

/// The flags of every command, as far as the environment gives them.
#[derive(Parser)]
struct FromEnvironment {
    #[command(flatten)]
    global: Global,
}

/// Answers and ends if it is a shell that asks; returns at once otherwise.
pub(crate) fn answer_shell(command_line: fn() -> clap::Command) {
    CompleteEnv::with_factory(command_line).var(ASKED_BY).complete();
}

/// The server's queues, with how many tasks wait.
pub(crate) fn queues(typed: &OsStr) -> Vec<CompletionCandidate> {
    let queues = ask(&GetQueues {}).map_or_else(Vec::new, |answer| answer.queues);
    let describe = |q: &QueueView| (q.name.clone(), format!("{} waiting, {} running", q.waiting, q.running));
    candidates(typed, queues.iter().map(describe))
}

/// The server's newest tasks, with name and state.
pub(crate) fn tasks(typed: &OsStr) -> Vec<CompletionCandidate> {
    let request = GetTasks { limit: Some(TASKS), ..GetTasks::default() };
    let tasks = ask(&request).map_or_else(Vec::new, |answer| answer.tasks);
    let describe = |t: &TaskView| (t.id.clone(), format!("{}, {}", t.name, t.state));
    candidates(typed, tasks.iter().map(describe))
}

/// Those of these names, each with a description, that begin with what is typed.
pub(crate) fn candidates(
    typed: &OsStr,
    named: impl Iterator<Item = (String, String)>,
) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let fit = named.filter(|(name, _)| name.starts_with(&*typed));
    fit.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}

/// The server that the environment and the state directory name; without one there is nothing to offer.
fn ask<R: Request>(request: &R) -> Option<R::Response> {
    let flags = FromEnvironment::try_parse_from(["cantle"]).ok()?;
    let context = Context::new(&flags.global).ok()?;
    Connection::open(&context).ok()?.call_within(request, WITHIN)
}
