//! `cantle quota`: amounts, and that there is none.

use cantle_model::{AmountError, Bytes, Milli};
use clap::{Args, Subcommand};

/// `cantle quota …`
#[derive(Subcommand, Debug)]
pub(crate) enum QuotaCommand {
    /// Show what projects are granted
    Show {
        /// Only this project
        #[arg(value_name = "PROJECT")]
        project: Option<String>,
    },
    /// Grant a project; what is not named stays as it was
    Set(QuotaArgs),
    /// Take a project's own quota away; it counts to the nearest project above with one
    Unset {
        /// The project
        #[arg(value_name = "PROJECT")]
        project: String,
    },
}

/// `cantle quota set`
#[derive(Args, Debug)]
pub(crate) struct QuotaArgs {
    /// The project; made if it is new. What a is granted holds for a/b and a/c together
    #[arg(value_name = "PROJECT")]
    pub(crate) project: String,
    #[command(flatten)]
    pub(crate) grant: Grant,
}

/// Parts of a quota.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct Grant {
    /// GPUs guaranteed, in steps of 0.001: lent while unused, taken back when needed
    #[arg(long, value_name = "F", value_parser = gpus)]
    pub(crate) gpu: Option<Milli>,
    /// Never more GPUs than this, or none for no limit
    #[arg(long, value_name = "F|none", value_parser = or_none(gpus))]
    pub(crate) limit: Option<OrNone<Milli>>,
    /// Part of what is left over, beside the weights of the other projects; 0: nothing
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// Higher ones get what is left over first
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// CPU cores guaranteed, or none for not counted
    #[arg(long, value_name = "CORES|none", value_parser = or_none(cores))]
    pub(crate) cpu: Option<OrNone<Milli>>,
    /// Never more CPU cores than this, or none for no limit
    #[arg(long, value_name = "CORES|none", value_parser = or_none(cores))]
    pub(crate) cpu_limit: Option<OrNone<Milli>>,
    /// Main memory guaranteed, e.g. 64Gi, or none for not counted
    #[arg(long, value_name = "M|none", value_parser = or_none(bytes))]
    pub(crate) memory: Option<OrNone<Bytes>>,
    /// Never more main memory than this, or none for no limit
    #[arg(long, value_name = "M|none", value_parser = or_none(bytes))]
    pub(crate) memory_limit: Option<OrNone<Bytes>>,
    /// Seconds that its tasks run at least before they may be stopped for others
    #[arg(long, value_name = "SECONDS")]
    pub(crate) min_run: Option<u32>,
}

/// An amount, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrNone<T> {
    Some(T),
    None,
}

impl<T> From<OrNone<T>> for Option<T> {
    fn from(given: OrNone<T>) -> Self {
        match given {
            OrNone::Some(amount) => Some(amount),
            OrNone::None => None,
        }
    }
}

fn or_none<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone + Send + Sync {
    move |text| if text == "none" { Ok(OrNone::None) } else { parse(text).map(OrNone::Some) }
}

fn gpus(text: &str) -> Result<Milli, String> {
    text.parse().map_err(|error: AmountError| error.to_string())
}

pub(super) fn cores(text: &str) -> Result<Milli, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number of CPU cores; write a decimal such as 0.5"))
}

pub(super) fn bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: AmountError| error.to_string())
}
