//! The command line: the flags of every command, and the commands. Each command's arguments are declared next to its code.

use std::sync::LazyLock;

use cantle_ledger::Layouts;
use clap::{Parser, Subcommand};

use crate::cmd::explain::ExplainArgs;
use crate::cmd::fleet::backup::{BackupArgs, RestoreArgs};
use crate::cmd::fleet::db::DbArgs;
use crate::cmd::fleet::pools::PoolsCommand;
use crate::cmd::fleet::queues::QueuesArgs;
use crate::cmd::fleet::server::ServerArgs;
use crate::cmd::kubernetes::check::CheckCommand;
use crate::cmd::kubernetes::cluster::ClusterArg;
use crate::cmd::kubernetes::controller::ControllerArgs;
use crate::cmd::machine::daemon::DaemonArgs;
use crate::cmd::machine::doctor::DoctorArgs;
use crate::cmd::machine::image::ImageSliceArgs;
use crate::cmd::machine::mig::MigCommand;
use crate::cmd::machine::run::{DockerRunArgs, RunArgs};
use crate::cmd::machine::sim::SimCommand;
use crate::cmd::machine::simulate::SimulateArgs;
use crate::cmd::machine::suspend::{ResizeArgs, ResumeArgs, SuspendArgs};
use crate::cmd::machine::top::TopArgs;
use crate::cmd::machine::up::UpArgs;
use crate::cmd::manual::{CompletionsArgs, ManArgs, ReferenceArgs};
use crate::cmd::people::advise::AdviseArgs;
use crate::cmd::people::budget::BudgetCommand;
use crate::cmd::people::credentials::CredentialsArgs;
use crate::cmd::people::login::LoginArgs;
use crate::cmd::people::notify::NotifyCommand;
use crate::cmd::people::quota::QuotaCommand;
use crate::cmd::people::secrets::SecretsCommand;
use crate::cmd::people::usage::UsageArgs;
use crate::cmd::people::users::{AuditArgs, UsersCommand};
use crate::cmd::tasks::exec::ExecArgs;
use crate::cmd::tasks::extend::ExtendArgs;
use crate::cmd::tasks::forward::ForwardArgs;
use crate::cmd::tasks::list::{EventsArgs, GpusArgs, TasksArgs};
use crate::cmd::tasks::move_task::MoveArgs;
use crate::cmd::tasks::notebook::NotebookArgs;
use crate::cmd::tasks::one::{LogsArgs, RequeueArgs, TasksArg, WhyArgs};
use crate::cmd::tasks::shell::{AttachArgs, ShellArgs};
use crate::cmd::tasks::submit::SubmitArgs;
use crate::cmd::tasks::wait::WaitArgs;
use crate::context::Global;

/// Says which build this is, and whose libraries go with it. $CANTLE_COMMIT is set where packages are built.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("CANTLE_COMMIT").unwrap_or("not recorded in this build");
    let Layouts { memory, compute } = Layouts::OWN;
    format!(
        "{}\ncommit: {commit}\naccounting layouts of its libraries: memory {memory}, compute {compute}",
        env!("CARGO_PKG_VERSION")
    )
});

/// cantle shares GPUs by the slice.
#[derive(Parser, Debug)]
#[command(
    name = "cantle",
    version,
    long_version = LONG_VERSION.as_str(),
    about = "Shares GPUs by the slice, and holds every task to its slice",
    disable_help_subcommand = true,
    max_term_width = 110
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run one command now, on this machine, in a slice of a GPU; needs no server
    Run(RunArgs),
    /// Run a `docker run` command line with a slice of the GPU that it names (used by the module for ClearML's own agents)
    #[command(name = "docker-run")]
    DockerRun(DockerRunArgs),
    /// Start server and agent together, on this machine
    Up(Box<UpArgs>),
    /// Start the server: ClearML-compatible API and queues
    Server(Box<ServerArgs>),
    /// Start the agent: takes tasks from queues and gives each its slice of this machine's GPUs
    Daemon(Box<DaemonArgs>),
    /// Put a command into a queue; prints the task's id
    Submit(SubmitArgs),
    /// List tasks
    Tasks(TasksArgs),
    /// List GPUs and the slices on them
    Gpus(GpusArgs),
    /// List the slices of this machine, of all its users, with their processes; needs no server
    Ps,
    /// List queues, and set what a queue does with the tasks of a lost node
    Queues(QueuesArgs),
    /// List nodes
    Nodes,
    /// List projects with their quota, fair share and allocation
    Projects(ClusterArg),
    /// List, define and delete pools: named sets of GPUs
    #[command(subcommand)]
    Pools(PoolsCommand),
    /// Show and set the quotas of projects
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show and set budgets: GPU-hours that projects may use in a month
    #[command(subcommand)]
    Budget(BudgetCommand),
    /// Report who had which part of the GPUs for how long, what nobody had, and what it cost
    Usage(UsageArgs),
    /// List tasks that never used a part of their memory, and the share that would have been enough
    Advise(AdviseArgs),
    /// Have notices of your tasks sent, by webhook (JSON, Slack, Teams) or mail
    #[command(subcommand)]
    Notify(NotifyCommand),
    /// Keep tokens and passwords that your tasks need on the server, encrypted
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// List the scheduler's decisions and their reasons
    Events(EventsArgs),
    /// Show why a task, or a pod in a cluster, waits, or where it runs
    Why(WhyArgs),
    /// Print a task's output
    Logs(LogsArgs),
    /// Run a command in a running task: in its sandbox, its slice, and as its user
    Exec(ExecArgs),
    /// Get a slice with a terminal in it: from a queue, or without a server from this machine
    Shell(ShellArgs),
    /// Open a terminal in a running task, such as one of `cantle shell --keep`
    Attach(AttachArgs),
    /// Work in JupyterLab in a slice, at an address of this machine
    Notebook(NotebookArgs),
    /// Open ports of this machine that lead to programs in a running task, such as a notebook
    Forward(ForwardArgs),
    /// Stop tasks
    Stop(TasksArg),
    /// Put tasks back into their queue
    Requeue(RequeueArgs),
    /// Move a waiting task in its queue, to another queue, or out of it; a running one to another GPU of this machine
    Move(MoveArgs),
    /// Put the GPU memory of a task of this machine into host memory, and free its slice; the task goes on when it is resumed
    Suspend(SuspendArgs),
    /// Let a suspended task of this machine go on
    Resume(ResumeArgs),
    /// Change the size of the slice of a running task of this machine
    Resize(ResizeArgs),
    /// Let a task run longer, or less long
    Extend(ExtendArgs),
    /// Wait until tasks have ended
    Wait(WaitArgs),
    /// Show GPUs, slices and tasks live
    Top(TopArgs),
    /// Show MIG profiles, instances and planned changes
    #[command(subcommand)]
    Mig(MigCommand),
    /// Run cantle in a Kubernetes cluster
    Controller(ControllerArgs),
    /// Inside a task: show its limits and whether they are enforced
    Limits,
    /// Write the files that give a container image its own limit (used by images/build.sh)
    ImageSlice(ImageSliceArgs),
    /// Show the access and secret key of the local server
    Credentials(CredentialsArgs),
    /// Log in with the identity provider of the server
    Login(LoginArgs),
    /// Manage users, keys and roles
    #[command(subcommand)]
    Users(UsersCommand),
    /// List the audit log: logins, refusals, changes of rights and quotas, deletions
    Audit(AuditArgs),
    /// Write database, keys and artifacts of the local server into one file; the server may run
    Backup(BackupArgs),
    /// Inspect, check and copy the server's database
    Db(DbArgs),
    /// Create the state directory of a server from a backup
    Restore(RestoreArgs),
    /// Use a machine with simulated GPUs
    #[command(subcommand)]
    Sim(SimCommand),
    /// Run a scheduling scenario and print what happens
    Simulate(SimulateArgs),
    /// Explain a name or an exit code that cantle printed; without an argument, list all explanations
    Explain(ExplainArgs),
    /// Check this machine: driver, libraries, enforcement, server
    Doctor(DoctorArgs),
    /// Check a Kubernetes cluster
    #[command(subcommand)]
    Check(CheckCommand),
    /// Print the completions of a shell, e.g. source <(cantle completions bash)
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
    /// Print the reference of the command line: docs/reference/cli.md
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

impl Command {
    /// Whether it uses the GPUs of this machine.
    pub(crate) const fn uses_gpus(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::DockerRun(_)
                | Self::Up(_)
                | Self::Daemon(_)
                | Self::Controller(_)
                | Self::Mig(_)
                | Self::Doctor(_)
                | Self::Ps
                | Self::Suspend(_)
                | Self::Resume(_)
                | Self::Resize(_)
                | Self::Move(_)
                | Self::Shell(_)
                | Self::Notebook(_)
                | Self::Sim(SimCommand::Truth)
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::containers::carried;

    fn carried_text(line: &str) -> String {
        let words = carried(line.split(' ').map(Into::into).collect(), Cli::command);
        let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        text.replace("--container-word=", "@")
    }

    #[test]
    fn dockers_words_are_kept_apart_from_ours() {
        for (given, expected) in [
            ("cantle run --gpu 0.5 -- docker --image x", "cantle run --gpu 0.5 -- docker --image x"),
            ("cantle run --image img -- ls -l", "cantle run --image img -- ls -l"),
            ("cantle run --image img -e A=1 -- ls", "cantle run --image img @-e @A=1 -- ls"),
            ("cantle run --image=img --ipc=host -- ls", "cantle run --image=img @--ipc=host -- ls"),
            (
                "cantle run --image img -v /a:/b --gpu 1 -- ls",
                "cantle run --image img @-v @/a:/b --gpu 1 -- ls",
            ),
            ("cantle run --image", "cantle run --image"),
            ("cantle daemon --docker --queue q", "cantle daemon --docker --queue q"),
            (
                "cantle daemon --docker img -v /a:/b --ipc=host --queue q=0.5 --gpus 0,1",
                "cantle daemon --docker @img @-v @/a:/b @--ipc=host --queue q=0.5 --gpus 0,1",
            ),
            ("cantle up --queue q --podman img -it", "cantle up --queue q --podman @img @-it"),
            (
                "cantle submit --image img -e A=1 --queue q -- --docker",
                "cantle submit --image img @-e @A=1 --queue q -- --docker",
            ),
        ] {
            assert_eq!(carried_text(given), expected);
        }
    }

    #[test]
    fn the_command_line_is_declared_without_contradictions() {
        Cli::command().debug_assert();
    }
}
