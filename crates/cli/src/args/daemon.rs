//! `cantle daemon`: the whole command line of `clearml-agent daemon`, so that a unit file needs only another program.

use clap::Args;

use super::Serve;

/// `cantle daemon`
#[derive(Args, Debug)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    pub(crate) serve: Serve,
    /// Cut GPUs into slices, as each queue's SPEC says
    #[arg(long)]
    pub(crate) dynamic_gpus: bool,
    /// Stay in the foreground (the default)
    #[arg(long, conflicts_with = "detached")]
    pub(crate) foreground: bool,
    /// Go on in the background; prints where the log is
    #[arg(short, long)]
    pub(crate) detached: bool,
    /// Stop agents of this machine: those with these worker ids, or the one that the same words started
    #[arg(long, value_name = "WORKER", num_args = 0.., conflicts_with_all = ["detached", "status"])]
    pub(crate) stop: Option<Vec<String>>,
    /// List the agents that run on this machine
    #[arg(long, conflicts_with = "detached")]
    pub(crate) status: bool,
    /// Take tasks at these hours only, e.g. "17-20 TUE" "0-8,20-24 SUN,MON-FRI"
    #[arg(long, value_name = "HOURS DAYS", num_args = 1.., conflicts_with = "downtime")]
    pub(crate) uptime: Vec<String>,
    /// Take no tasks at these hours
    #[arg(long, value_name = "HOURS DAYS", num_args = 1..)]
    pub(crate) downtime: Vec<String>,
    /// Give tasks no GPU: one at a time runs, and sees none
    #[arg(long, env = "CLEARML_CPU_ONLY", value_parser = clap::builder::FalseyValueParser::new())]
    pub(crate) cpu_only: bool,
    /// Give tasks no GPU, and run several at a time: at most N; any number without N
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "-1", allow_negative_numbers = true)]
    pub(crate) services_mode: Option<i64>,
    /// Names the GPUs where --gpus does not
    #[arg(long, hide = true, env = "NVIDIA_VISIBLE_DEVICES")]
    pub(crate) visible_devices: Option<String>,
    /// What to run for a task that is a plain command before it is stopped
    #[arg(long, hide = true, value_name = "CMD", env = "CLEARML_AGENT_ABORT_CALLBACK_CMD")]
    pub(crate) abort_callback_cmd: Option<String>,
    /// So many seconds the task is left alone for it
    #[arg(
        long,
        hide = true,
        value_name = "SECONDS",
        env = "CLEARML_AGENT_ABORT_CALLBACK_TIMEOUT",
        default_value_t = 180
    )]
    pub(crate) abort_callback_timeout: u32,
    /// The worker id; default: made of name and GPUs as ClearML's agent makes it
    #[arg(long, value_name = "ID", env = "CLEARML_WORKER_ID")]
    pub(crate) worker_id: Option<String>,
    /// Words that status reports carry
    #[arg(long, value_name = "TAG", num_args = 1..)]
    pub(crate) child_report_tags: Vec<String>,
    #[command(flatten)]
    pub(crate) sdk: SdkArgs,
    #[command(flatten)]
    pub(crate) foreign: ForeignArgs,
}

/// How ClearML's own agent, inside the slice, sets up and runs code of the SDK.
#[derive(Args, Debug)]
pub(crate) struct SdkArgs {
    /// User for git repositories of tasks
    #[arg(long, value_name = "USER", env = "CLEARML_AGENT_GIT_USER")]
    pub(crate) git_user: Option<String>,
    /// Password or token for git repositories of tasks
    #[arg(long, value_name = "TOKEN", env = "CLEARML_AGENT_GIT_PASS", hide_env_values = true)]
    pub(crate) git_pass: Option<String>,
    /// Tasks install nothing: everything is there already
    #[arg(long)]
    pub(crate) standalone_mode: bool,
    /// Compile tasks' Python code with optimisation; twice for more
    #[arg(short = 'O', action = clap::ArgAction::Count)]
    pub(crate) optimization: u8,
    /// The log level of tasks' SDK
    #[arg(long, value_name = "LEVEL", ignore_case = true,
          value_parser = ["DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"])]
    pub(crate) log_level: Option<String>,
}

/// Options of ClearML's agent that have no meaning here: see [`ForeignArgs::needless`] and [`ForeignArgs::refused`].
#[derive(Args, Debug)]
pub(crate) struct ForeignArgs {
    #[arg(long, hide = true)]
    force_current_version: bool,
    #[arg(long, hide = true)]
    check_bootstrap: bool,
    #[arg(long, hide = true)]
    use_owner_token: bool,
    #[arg(long, hide = true, value_name = "REGEX", env = "CLEARML_AGENT_DOCKER_ARGS_FILTERS")]
    docker_args_filters: Option<String>,
}

impl ForeignArgs {
    /// Given and without effect; each with the reason.
    pub(crate) fn needless(&self) -> impl Iterator<Item = &'static str> {
        let known = [
            (
                self.force_current_version,
                "--force-current-version: no effect; tasks use the clearml-agent of their image or environment",
            ),
            (self.check_bootstrap, "--check-bootstrap: no effect; cantle brings no bootstrap package"),
            (
                self.filters_options(),
                "CLEARML_AGENT_DOCKER_ARGS_FILTERS: no effect; which options a task may bring is fixed",
            ),
        ];
        known.into_iter().filter_map(|(given, why)| given.then_some(why))
    }

    fn filters_options(&self) -> bool {
        self.docker_args_filters.as_ref().is_some_and(|filters| !filters.is_empty())
    }

    /// Given, and something that this agent does not do.
    pub(crate) fn refused(&self) -> Option<&'static str> {
        self.use_owner_token.then_some(
            "--use-owner-token: only ClearML's paid server lends the tokens of tasks' owners; leave it out",
        )
    }
}
