//! Flags of `cantle simulate`.

use std::path::PathBuf;

use cantle_sim::ReplayPolicy;
use clap::{Args, ValueEnum};

/// `cantle simulate`
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Scenario files
    #[arg(value_name = "SCENARIO", required_unless_present = "trace", conflicts_with = "trace")]
    pub(crate) scenarios: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) replay: ReplayArgs,
}

/// Replay of a trace.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    /// Replay a trace instead: fill the cluster with its tasks, in random order, until none fits
    #[arg(long, value_enum, value_name = "FORMAT", requires_all = ["nodes", "pods"])]
    pub(crate) trace: Option<TraceFormat>,
    /// Node list of the trace
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) nodes: Option<PathBuf>,
    /// Task list of the trace
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) pods: Option<PathBuf>,
    /// What decides: worth, binpack or spread; or, to compare, fgd, bestfit or random
    #[arg(long, value_name = "P", requires = "trace", default_value = "worth")]
    pub(crate) policy: ReplayPolicy,
    /// Seed of the random order, or of the nodes drawn
    #[arg(long, value_name = "N", requires = "trace", default_value_t = 42)]
    pub(crate) seed: u64,
    /// GPUs asked for in the end, in parts of all GPUs
    #[arg(long, value_name = "X", requires = "trace", conflicts_with = "dynamic", default_value = "1.3",
        value_parser = inflation)]
    pub(crate) inflate: f64,
    /// Let tasks come and go at the trace's own times, and wait where there is no room
    #[arg(long, requires = "trace")]
    pub(crate) dynamic: bool,
    /// With --dynamic: draw nodes until they have so many GPUs; default: all nodes
    #[arg(long, value_name = "N", requires = "dynamic", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cluster_gpus: Option<u32>,
    /// With --dynamic: let the trace's tasks come so many times over, each time up to a week later
    #[arg(long, value_name = "N", requires = "dynamic", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) copies: u32,
    /// Draw a picture of it
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) svg: Option<PathBuf>,
    /// Policies to draw beside it, e.g. bestfit,fgd
    #[arg(long, value_name = "P", requires = "svg", value_delimiter = ',')]
    pub(crate) beside: Vec<ReplayPolicy>,
}

/// Whose columns a trace has.
#[derive(ValueEnum, Debug, Clone, Copy)]
pub(crate) enum TraceFormat {
    /// Alibaba's GPU trace 2023
    Openb,
}

/// More than ten times the cluster says nothing new and takes long.
fn inflation(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= 10.0);
    number.ok_or_else(|| "must be a number above 0, at most 10".to_owned())
}
