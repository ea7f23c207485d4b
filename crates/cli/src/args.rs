//! Every command, flag and environment variable of `cantle`, declared once.

use std::path::PathBuf;
use std::time::Duration;

use cantle_agent::Watch;
use cantle_model::{Bytes, ComputeMode, GpuList, Isolation, Milli};
use clap::{Args, Parser, Subcommand, ValueEnum};

use clap_complete::ArgValueCompleter;

use crate::complete;
use crate::containers::{EngineArgs, ImageArgs, SocketArgs};
use crate::out::Format;

mod amount;
mod daemon;
mod policy;
mod quota;
mod sim;
mod simulate;
mod values;

pub(crate) use amount::Amount;
pub(crate) use daemon::{DaemonArgs, SdkArgs};
pub(crate) use policy::PolicyArgs;
pub(crate) use quota::{Grant, QuotaArgs, QuotaCommand};
use quota::{bytes, cores};
pub(crate) use sim::{MachineArgs, SimCommand};
pub(crate) use simulate::{ReplayArgs, SimulateArgs};

/// cantle shares GPUs by the slice.
#[derive(Parser, Debug)]
#[command(
    name = "cantle",
    version,
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

/// Flags of every command.
#[derive(Args, Debug, Clone)]
pub(crate) struct Global {
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table, global = true)]
    pub(crate) output: Format,
    /// Leave out the header of tables
    #[arg(long, global = true)]
    pub(crate) no_headers: bool,
    /// Say less
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say more (-vv: everything)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Colours
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true)]
    pub(crate) color: Color,
    /// The server's address; default: the local one
    #[arg(long, value_name = "URL", env = "CANTLE_SERVER", global = true)]
    pub(crate) server: Option<String>,
    /// Where ClearML's servers are, another way to say it
    #[arg(long, value_name = "URL", env = "CLEARML_API_HOST", global = true, hide = true)]
    pub(crate) api_host: Option<String>,
    /// A clearml.conf with the server, its keys and settings of the agent; default: ~/clearml.conf if it is there
    #[arg(long, value_name = "FILE", env = "CLEARML_CONFIG_FILE", global = true)]
    pub(crate) config_file: Option<PathBuf>,
    /// Set for an agent that goes on in the background
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// Where cantle keeps its state; default: /var/lib/cantle for root, ~/.local/state/cantle otherwise
    #[arg(long, value_name = "DIR", env = "CANTLE_STATE_DIR", global = true)]
    pub(crate) state: Option<PathBuf>,
    /// Use simulated GPUs, e.g. 3xA100-40GB or 2xH100-80GB:mig,1xT4-16GB
    #[arg(long, value_name = "SPEC", env = "CANTLE_SIM_GPUS", global = true)]
    pub(crate) sim_gpus: Option<String>,
    /// Where the machine with simulated GPUs keeps its parts; default: `sim` in the state directory
    #[arg(long, value_name = "DIR", env = "CANTLE_SIM_DIR", global = true, hide = true)]
    pub(crate) sim_dir: Option<PathBuf>,
    /// Where cantle's libraries are; default: ../lib/cantle beside the program
    #[arg(long, value_name = "DIR", env = "CANTLE_LIB_DIR", global = true, hide = true)]
    pub(crate) lib_dir: Option<PathBuf>,
    /// Access key of the server; default: that of the local server
    #[arg(long, value_name = "KEY", env = "CLEARML_API_ACCESS_KEY", global = true, hide = true)]
    pub(crate) access_key: Option<String>,
    /// Secret key of the server
    #[arg(
        long,
        value_name = "KEY",
        env = "CLEARML_API_SECRET_KEY",
        global = true,
        hide = true,
        hide_env_values = true
    )]
    pub(crate) secret_key: Option<String>,
}

/// When to colour.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    /// On terminals, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run one command now, here, in a slice of a GPU; no server needed
    Run(RunArgs),
    /// Run a `docker run` command line with a slice of the GPU that it names (what the module for ClearML's own agents does)
    #[command(name = "docker-run")]
    DockerRun(DockerRunArgs),
    /// Start server and agent together, on this machine
    Up(UpArgs),
    /// Start the server: ClearML-compatible API and queues
    Server(ServerArgs),
    /// Start the agent: take tasks from queues and give each its slice of the GPUs here
    Daemon(Box<DaemonArgs>),
    /// Put a command into a queue; prints the task's id
    Submit(SubmitArgs),
    /// List tasks
    Tasks(TasksArgs),
    /// List GPUs and the slices on them
    Gpus,
    /// List queues
    Queues,
    /// List nodes
    Nodes,
    /// List projects with what they deserve, what is fair, and what they hold
    Projects,
    /// What projects are granted
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show what was decided, and why
    Events(EventsArgs),
    /// Say why a task waits, or where it runs
    Why(TaskArg),
    /// Print a task's output
    Logs(LogsArgs),
    /// Stop tasks
    Stop(TaskIds),
    /// Put tasks back into their queue
    Requeue(TaskIds),
    /// Move a waiting task in its queue, to another queue, or out of it
    Move(MoveArgs),
    /// Show GPUs, slices and tasks live
    Top(TopArgs),
    /// GPUs in MIG mode: what they offer, have, and would get
    #[command(subcommand)]
    Mig(crate::cmd::mig::MigCommand),
    /// cantle in a Kubernetes cluster
    Controller(crate::cmd::controller::ControllerArgs),
    /// Inside a task: show its limits and whether they are enforced
    Limits,
    /// Write the files that give a container image a limit of its own (what images/build.sh does)
    ImageSlice(crate::cmd::image::ImageSliceArgs),
    /// Show the access and secret key of the local server
    Credentials(CredentialsArgs),
    /// A machine with simulated GPUs
    #[command(subcommand)]
    Sim(SimCommand),
    /// Run a scheduling scenario and print what happens
    Simulate(SimulateArgs),
    /// Explain a word or an exit code that cantle printed; without one, list what there is
    Explain(ExplainArgs),
    /// Check this machine: driver, libraries, enforcement, server
    Doctor(crate::cmd::doctor::DoctorArgs),
    /// Check something else: a Kubernetes cluster
    #[command(subcommand)]
    Check(crate::cmd::check::CheckCommand),
    /// Print the completions of a shell, e.g. source <(cantle completions bash)
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
    /// Print the reference of the command line: docs/reference/cli.md
    #[command(hide = true)]
    Reference,
}

/// `cantle run`
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) amount: Amount,
    /// How compute time is divided among the tasks of a GPU: even, fair or strict
    #[arg(long, value_name = "MODE", value_parser = values::compute, default_value = "even")]
    pub(crate) compute: ComputeMode,
    /// What must keep the slice apart: any, mig or shared
    #[arg(long, value_name = "KIND", value_parser = values::isolation, default_value = "any")]
    pub(crate) isolation: Isolation,
    /// Wait so many seconds for room; default: give up at once
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) timeout: u64,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// `cantle docker-run`
#[derive(Args, Debug)]
pub(crate) struct DockerRunArgs {
    #[command(flatten)]
    pub(crate) amount: Amount,
    /// Wait so many seconds for room; default: give up at once
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) timeout: u64,
    /// The whole command line: docker run --gpus device=INDEX … IMAGE CMD
    #[arg(last = true, required = true, value_name = "DOCKER RUN …")]
    pub(crate) command: Vec<String>,
}

/// Where a server listens and keeps what it knows.
#[derive(Args, Debug)]
pub(crate) struct Listen {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8008")]
    pub(crate) listen: String,
    /// Database; default: in the state directory
    #[arg(long, value_name = "sqlite:PATH")]
    pub(crate) db: Option<String>,
    /// Ask nobody for credentials: on loopback only, for a machine with one user
    #[arg(long)]
    pub(crate) open: bool,
    /// Count past use of GPUs against projects when what is left over is shared out: after this time half of it is
    /// forgotten (30m, 12h, 7d); default: it does not count
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub(crate) usage_half_life: Option<Duration>,
}

/// `cantle server`
#[derive(Args, Debug)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    pub(crate) listen: Listen,
    /// Answer as ClearML's open-source server: neither what it lacks nor what cantle adds
    #[arg(long, hide = true)]
    pub(crate) open_source: bool,
}

/// Which queues and GPUs an agent serves, in the words of `clearml-agent daemon`.
#[derive(Args, Debug, Clone)]
pub(crate) struct Serve {
    /// Queues in order of priority, with --dynamic-gpus as NAME=SPEC: a=0.25 b=1 c=1-4 d=task
    #[arg(long, value_name = "NAME[=SPEC]", num_args = 1..)]
    pub(crate) queue: Vec<String>,
    /// GPUs of this machine: 0-2, 0,1 or all; or MIG instances as they are: 0:0,0:1 or MIG-…
    #[arg(long, value_name = "LIST", num_args = 1..)]
    pub(crate) gpus: Vec<String>,
    /// Put these GPUs into MIG mode and give out instances of them: 0,2=dynamic. Those in MIG mode are used so anyway
    #[arg(long, value_name = "LIST=dynamic", value_parser = crate::cmd::mig::gpu_list)]
    pub(crate) mig: Option<GpuList>,
    /// What becomes of MIG instances that others have made: busy leaves them alone, destroy destroys those not in use
    #[arg(long, value_enum, value_name = "HOW", default_value = "busy")]
    pub(crate) mig_adopt: crate::cmd::mig::MigAdopt,
    /// What a task gets that wants whole GPUs where some are in MIG mode
    #[arg(long, value_enum, value_name = "WHAT", default_value = "instance")]
    pub(crate) mig_whole_gpu: crate::cmd::mig::MigWholeGpu,
    /// Make the queues that do not exist
    #[arg(long)]
    pub(crate) create_queue: bool,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    /// What happens to a task that takes more than its slice: warn or kill
    #[arg(long, value_name = "POLICY", value_parser = values::watchdog, default_value = "kill")]
    pub(crate) watchdog: Watch,
    /// Seconds between two looks at the queues
    #[arg(long, value_name = "SECONDS", env = "CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", default_value_t = 0.5)]
    pub(crate) polling_interval: f64,
    /// Serve the agent's own metrics at http://ADDRESS/metrics, without credentials
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<String>,
    /// The worker's name; default: the host's
    #[arg(long, value_name = "NAME", env = "CLEARML_WORKER_NAME")]
    pub(crate) worker_name: Option<String>,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
}

/// `cantle up`
#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) server: Listen,
    #[command(flatten)]
    pub(crate) serve: Serve,
}

/// `cantle submit`
#[derive(Args, Debug)]
pub(crate) struct SubmitArgs {
    /// The queue
    #[arg(long, value_name = "Q", default_value = "default", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: String,
    #[command(flatten)]
    pub(crate) amount: Amount,
    /// What must keep the slice apart: any, mig or shared
    #[arg(long, value_name = "KIND", value_parser = values::isolation, default_value = "any")]
    pub(crate) isolation: Isolation,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
    /// What to call the task; default: the command
    #[arg(long, value_name = "N")]
    pub(crate) name: Option<String>,
    /// The project it is counted to
    #[arg(long, value_name = "P", default_value = "default")]
    pub(crate) project: String,
    /// CPU that it is counted with, in cores (counted for quotas, not enforced)
    #[arg(long, value_name = "CORES", value_parser = cores, default_value = "0")]
    pub(crate) cpu: Milli,
    /// Main memory that it is counted with, e.g. 16Gi (counted for quotas, not enforced)
    #[arg(long, value_name = "M", value_parser = bytes)]
    pub(crate) memory: Option<Bytes>,
    /// Higher ones go first within a project and may stop lower ones
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(crate) priority: i32,
    /// Never stop it for others; it must then fit its project's quota
    #[arg(long)]
    pub(crate) non_preemptible: bool,
    /// Wait for its end; exit with its exit code
    #[arg(long, conflicts_with = "follow")]
    pub(crate) wait: bool,
    /// Print its output until its end; exit with its exit code
    #[arg(long)]
    pub(crate) follow: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// `cantle tasks`
#[derive(Args, Debug)]
pub(crate) struct TasksArgs {
    /// Only tasks of this queue
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) queue: Option<String>,
    /// Only tasks of this project
    #[arg(long, value_name = "P")]
    pub(crate) project: Option<String>,
    /// Only tasks in this state (queued, in_progress, completed, …)
    #[arg(long, value_name = "STATE")]
    pub(crate) status: Vec<String>,
    /// Only these tasks
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) tasks: Vec<String>,
    /// At most so many, newest first
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: u32,
}

/// `cantle explain`
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The word, e.g. allocation-refused, or an exit code
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(complete::pages))]
    pub(crate) name: Option<String>,
}

/// One task.
#[derive(Args, Debug)]
pub(crate) struct TaskArg {
    /// The task's id
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) task: String,
}

/// Some tasks.
#[derive(Args, Debug)]
pub(crate) struct TaskIds {
    /// The tasks' ids
    #[arg(value_name = "TASK", required = true, add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) tasks: Vec<String>,
}

/// `cantle credentials`
#[derive(Args, Debug)]
pub(crate) struct CredentialsArgs {
    /// The pair that may look at everything and change nothing
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// `cantle move`
#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// The task's id
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) task: String,
    #[command(flatten)]
    pub(crate) to: Place,
}

/// Where a waiting task shall go.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Place {
    /// To the front of its queue
    #[arg(long)]
    pub(crate) front: bool,
    /// To the back of its queue
    #[arg(long)]
    pub(crate) back: bool,
    /// To this place of its queue; 1 is the front
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) position: Option<u64>,
    /// To the back of another queue
    #[arg(long, value_name = "Q", add = ArgValueCompleter::new(complete::queues))]
    pub(crate) to: Option<String>,
    /// Out of its queue; it becomes a draft again
    #[arg(long)]
    pub(crate) out: bool,
}

/// `cantle top`
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Print once and end, for scripts
    #[arg(long)]
    pub(crate) once: bool,
    /// Draw with ASCII characters only
    #[arg(long)]
    pub(crate) ascii: bool,
    /// Only GPUs, tasks and queues with this in their name
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Which GPUs come first
    #[arg(long, value_enum, value_name = "ORDER", default_value_t = crate::cmd::top::Sort::Node)]
    pub(crate) sort: crate::cmd::top::Sort,
}

/// `cantle logs`
#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Go on until the task ends
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// The task's id
    #[arg(value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) task: String,
}

/// `cantle events`
#[derive(Args, Debug)]
pub(crate) struct EventsArgs {
    /// Only of this task
    #[arg(long, value_name = "TASK", add = ArgValueCompleter::new(complete::tasks))]
    pub(crate) task: Option<String>,
    /// At most so many, the newest
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) limit: u32,
}

impl Command {
    /// Whether it looks at the GPUs of this machine.
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
                | Self::Sim(SimCommand::Truth)
        )
    }
}

/// `cantle completions`
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL")]
    pub(crate) shell: String,
}

/// `cantle man`
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The directory, made if it is not there
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}
