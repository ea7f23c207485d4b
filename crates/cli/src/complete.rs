//! What a shell offers when the user presses Tab: commands and flags, and names that only the server knows.

use std::ffi::OsStr;
use std::time::Duration;

use cantle_clearml::Request;
use cantle_clearml::cantle::{GetQueues, GetTasks, QueueView, TaskView};
use clap::{CommandFactory, Parser};
use clap_complete::{CompleteEnv, CompletionCandidate};

use crate::args::Cli;
use crate::cmd::{Context, explain};
use crate::connect::Server;

/// The variable by which a shell asks for completions, see [`CompleteEnv`].
pub(crate) const ASKED_BY: &str = "COMPLETE";

/// Nobody waits longer for a Tab.
const PATIENCE: Duration = Duration::from_secs(1);

/// As many tasks as fit a screen or two, newest first.
const TASKS: u64 = 100;

/// Answers and ends if it is a shell that asks; returns at once otherwise.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(ASKED_BY).complete();
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

/// The pages of `cantle explain`.
pub(crate) fn pages(typed: &OsStr) -> Vec<CompletionCandidate> {
    candidates(typed, explain::pages().map(|page| (page.name.to_owned(), page.title.to_owned())))
}

fn candidates(typed: &OsStr, named: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let fit = named.filter(|(name, _)| name.starts_with(&*typed));
    fit.map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into()))).collect()
}

/// The server that the environment and the state directory name; without one there is nothing to offer.
fn ask<R: Request>(request: &R) -> Option<R::Response> {
    let cli = Cli::try_parse_from(["cantle", "queues"]).ok()?;
    let context = Context::new(&cli.global).ok()?;
    Server::find(&context).ok()?.call_within(request, PATIENCE)
}
