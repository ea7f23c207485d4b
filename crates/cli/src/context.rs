//! The context of every command: the flags that all commands share, and what follows from them. Nothing here depends on
//! a command.

use std::path::PathBuf;
use std::process::ExitCode;

use cantle_clearml::ClientTls;
use clap::{Args, ValueEnum};

use crate::directories::Directories;
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::{self, Format, Printer};

/// How a command ends: well, with a task's exit code, or with an error.
pub(crate) type CommandResult = Result<ExitCode, CliError>;

/// Flags of every command. Those that are rarely written are in the long help only.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Output format
    #[arg(short, long, value_enum, default_value_t = Format::Table, global = true)]
    pub(crate) output: Format,
    /// Omit the header of tables
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_headers: bool,
    /// Print less
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more, with the causes of an error (-vv: everything)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// When to use colors
    #[arg(long, value_enum, default_value_t = Color::Auto, global = true, hide_short_help = true)]
    pub(crate) color: Color,
    /// Address of the server [default: the local one]
    #[arg(long, value_name = "URL", env = "CANTLE_SERVER", global = true)]
    pub(crate) server: Option<String>,
    /// Address of the server, under ClearML's name
    #[arg(long, value_name = "URL", env = "CLEARML_API_HOST", global = true, hide = true)]
    pub(crate) api_host: Option<String>,
    /// Certificates of the authorities that cantle trusts for the server, in PEM [default: those of the system, or SSL_CERT_FILE]
    #[arg(long, value_name = "FILE", env = "CANTLE_CA_FILE", global = true, hide_short_help = true)]
    pub(crate) ca: Option<PathBuf>,
    /// Certificate to show to a server that asks agents for one, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "CANTLE_CLIENT_CERT",
        global = true,
        requires = "client_key",
        hide_short_help = true
    )]
    client_cert: Option<PathBuf>,
    /// The key of --client-cert
    #[arg(
        long,
        value_name = "FILE",
        env = "CANTLE_CLIENT_KEY",
        global = true,
        requires = "client_cert",
        hide_short_help = true
    )]
    client_key: Option<PathBuf>,
    /// File with access_key and secret_key, readable by its owner only [default: cantle-keys of systemd's credentials]
    #[arg(long, value_name = "FILE", env = "CANTLE_KEYS_FILE", global = true, hide_short_help = true)]
    pub(crate) keys: Option<PathBuf>,
    /// A clearml.conf with the server, its keys and the agent's settings [default: ~/clearml.conf if it exists]
    #[arg(long, value_name = "FILE", env = "CLEARML_CONFIG_FILE", global = true, hide_short_help = true)]
    pub(crate) config_file: Option<PathBuf>,
    /// Take options from this TOML file: a table for each command, keys as its long options. It comes before the command
    #[arg(long = "config", value_name = "FILE", env = crate::config::VARIABLE, hide_short_help = true)]
    options_file: Option<PathBuf>,
    /// Set for an agent that runs in the background
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// State directory [default: /var/lib/cantle for root, ~/.local/state/cantle otherwise]
    #[arg(long, value_name = "DIR", env = "CANTLE_STATE_DIR", global = true, hide_short_help = true)]
    pub(crate) state: Option<PathBuf>,
    /// Use simulated GPUs, e.g. 3xA100-40GB or 2xH100-80GB:mig,1xT4-16GB
    #[arg(long, value_name = "SPEC", env = "CANTLE_SIM_GPUS", global = true, hide_short_help = true)]
    pub(crate) sim_gpus: Option<String>,
    /// Directory of the machine with simulated GPUs [default: `sim` in the state directory]
    #[arg(long, value_name = "DIR", env = "CANTLE_SIM_DIR", global = true, hide = true)]
    pub(crate) sim_dir: Option<PathBuf>,
    /// Directory of cantle's libraries [default: ../lib/cantle relative to the program's directory]
    #[arg(long, value_name = "DIR", env = "CANTLE_LIB_DIR", global = true, hide = true)]
    pub(crate) lib_dir: Option<PathBuf>,
    /// File with a token in place of keys, read for each call: of Kubernetes, where the server takes its tokens
    #[arg(long, value_name = "FILE", env = "CANTLE_TOKEN_FILE", global = true, hide_short_help = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// A token in place of keys: tasks have one
    #[arg(
        long,
        value_name = "TOKEN",
        env = "CLEARML_AUTH_TOKEN",
        global = true,
        hide = true,
        hide_env_values = true
    )]
    pub(crate) auth_token: Option<String>,
    /// systemd's directory of credentials
    #[arg(long, value_name = "DIR", env = "CREDENTIALS_DIRECTORY", global = true, hide = true)]
    pub(crate) credentials_directory: Option<PathBuf>,
    /// Access key of the server [default: that of the local server]
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

/// When to use colors.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    /// On terminals, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    /// `NO_COLOR` is a convention of its own, see no-color.org.
    pub(crate) fn is_wanted(self) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => out::on_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        }
    }
}

impl Global {
    /// The directories that these flags name, with the usual ones for the rest.
    pub(crate) fn directories(&self) -> Result<Directories, CliError> {
        Directories::new(self.state.as_deref(), self.sim_dir.as_deref(), self.lib_dir.as_deref())
    }

    /// The servers to trust, and the certificate to present to them.
    pub(crate) fn tls(&self) -> ClientTls {
        ClientTls { ca: self.ca.clone(), identity: self.client_cert.clone().zip(self.client_key.clone()) }
    }

    /// The files by which this program proves who it is: those of its options, and all that systemd has given it.
    pub(crate) fn secrets(&self) -> Vec<PathBuf> {
        let given = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        [&self.keys, &self.token_file, &self.client_key].into_iter().flatten().cloned().chain(given).collect()
    }

    /// Whether an error is printed with its causes.
    pub(crate) const fn is_verbose(&self) -> bool {
        self.verbose > 0
    }
}

/// The context of every command.
pub(crate) struct Context {
    pub(crate) printer: Printer,
    pub(crate) dirs: Directories,
    pub(crate) global: Global,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Result<Self, CliError> {
        let printer = Printer {
            format: global.output,
            headers: !global.no_headers,
            quiet: global.quiet,
            color: global.color.is_wanted(),
        };
        Ok(Self { printer, dirs: global.directories()?, global: global.clone() })
    }
}

/// A runtime as [`runtime`] makes it, for an agent. Its first thread for blocking work starts with it and stays: later, when the agent
/// has to report that a task cannot start, the machine may have no room for one more thread.
pub(crate) fn agent_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    /// Those that are there stay, so there are not many.
    const THREADS: usize = 64;
    const FOR_EVER: std::time::Duration = std::time::Duration::from_hours(24 * 365);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().thread_keep_alive(FOR_EVER).max_blocking_threads(THREADS);
    let runtime = builder.build().map_err(as_kind(ErrorKind::Failed))?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// A single-threaded runtime: a client waits for one answer at a time, and an idle agent should cost little.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(as_kind(ErrorKind::Failed))
}
