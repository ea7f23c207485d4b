//! `cantle simulate`: runs the scheduler on scenarios and on traces.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use cantle_sim::openb::{self, Trace};
use cantle_sim::{ComeAndGo, Figures, Fill, Filled, ReplayPolicy, Waits, picture};
use clap::{Args, ValueEnum};

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::Format;

/// `cantle simulate`
#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Scenario files
    #[arg(value_name = "SCENARIO", required_unless_present = "trace", conflicts_with = "trace")]
    scenarios: Vec<PathBuf>,
    #[command(flatten)]
    replay: ReplayArgs,
}

/// Replay of a trace.
#[derive(Args, Debug)]
struct ReplayArgs {
    /// Replay a trace instead: fill the cluster with its tasks, in random order, until no more fit
    #[arg(long, value_enum, value_name = "FORMAT", requires_all = ["nodes", "pods"])]
    trace: Option<TraceFormat>,
    /// Node list of the trace
    #[arg(long, value_name = "FILE", requires = "trace")]
    nodes: Option<PathBuf>,
    /// Task list of the trace
    #[arg(long, value_name = "FILE", requires = "trace")]
    pods: Option<PathBuf>,
    /// Placement policy: worth, binpack or spread; or, for comparison, fgd, bestfit or random
    #[arg(long, value_name = "P", requires = "trace", default_value = "worth")]
    policy: ReplayPolicy,
    /// Seed of the random order of tasks, or of the random choice of nodes
    #[arg(long, value_name = "N", requires = "trace", default_value_t = 42)]
    seed: u64,
    /// GPUs requested in total, as a multiple of all GPUs
    #[arg(long, value_name = "X", requires = "trace", conflicts_with = "dynamic", default_value = "1.3",
        value_parser = inflation)]
    inflate: f64,
    /// Let tasks arrive in the order of --pods [default: random order]
    #[arg(long, requires = "trace", conflicts_with = "dynamic")]
    in_order: bool,
    /// Let tasks arrive and end at the trace's own times, and wait when there is no capacity
    #[arg(long, requires = "trace")]
    dynamic: bool,
    /// With --dynamic: choose random nodes until they have this number of GPUs [default: all nodes]
    #[arg(long, value_name = "N", requires = "dynamic", value_parser = clap::value_parser!(u32).range(1..))]
    cluster_gpus: Option<u32>,
    /// With --dynamic: number of times that the trace's tasks arrive, each time up to a week later
    #[arg(long, value_name = "N", requires = "dynamic", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    copies: u32,
    /// Write a chart as SVG
    #[arg(long, value_name = "FILE", requires = "trace")]
    svg: Option<PathBuf>,
    /// Policies to compare with in the chart, e.g. bestfit,fgd
    #[arg(long, value_name = "P", requires = "svg", value_delimiter = ',', alias = "beside")]
    compare_with: Vec<ReplayPolicy>,
}

/// Format of a trace.
#[derive(ValueEnum, Debug, Clone, Copy)]
enum TraceFormat {
    /// Alibaba's GPU trace 2023
    Openb,
}

/// More than ten times the cluster reveals nothing new and takes long.
fn inflation(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number <= 10.0);
    number.ok_or_else(|| "must be a number above 0, at most 10".to_owned())
}

/// Runs scenario files and prints what happens, or replays a trace and prints figures.
pub(crate) fn simulate(context: &Context, args: &SimulateArgs) -> CommandResult {
    let ReplayArgs { nodes: Some(nodes), pods: Some(pods), .. } = &args.replay else {
        return scenarios(context, args);
    };
    let trace = openb::load(&read(nodes)?, &read(pods)?).map_err(as_kind(ErrorKind::Usage))?;
    if args.replay.dynamic {
        come_and_go(context, &args.replay, &trace)
    } else {
        fill(context, &args.replay, &trace)
    }
}

fn scenarios(context: &Context, args: &SimulateArgs) -> CommandResult {
    let mut items = Vec::new();
    for path in &args.scenarios {
        let output = cantle_sim::run_scenario(&read(path)?)
            .map_err(|e| CliError::wrap(ErrorKind::Usage, path.display(), e))?;
        if context.printer.format == Format::Json {
            let lines: Vec<&str> = output.lines().collect();
            items.push(serde_json::json!({"scenario": path, "lines": lines}));
        } else {
            context.printer.raw(&output);
        }
    }
    if context.printer.format == Format::Json {
        context.printer.json(&serde_json::json!({"version": 1, "items": items}));
    }
    Ok(ExitCode::SUCCESS)
}

fn fill(context: &Context, args: &ReplayArgs, trace: &Trace) -> CommandResult {
    let mut filled = vec![fill_with(args, trace, args.policy)];
    let figures = filled[0].figures.clone();
    if let Some(path) = &args.svg {
        filled.extend(args.compare_with.iter().map(|policy| fill_with(args, trace, *policy)));
        write(path, &picture::allocation(&filled))?;
    }
    if context.printer.format == Format::Json {
        context.printer.json(&figures);
    } else {
        context.printer.data(&in_words(&figures));
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "the replay knows no clock; its speed is measured here")]
fn fill_with(args: &ReplayArgs, trace: &Trace, policy: ReplayPolicy) -> Filled {
    let prepare = if args.in_order { Fill::in_order } else { Fill::new };
    let fill = prepare(trace, policy, args.seed, args.inflate);
    let start = Instant::now();
    fill.run().timed(start.elapsed().as_secs_f64())
}

fn in_words(figures: &Figures) -> String {
    let percent = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} %"));
    format!(
        "{}, seed {}: {} of all GPUs allocated when 100 % were asked for, {} at 130 %; {} decisions, {:.0} per second",
        figures.policy,
        figures.seed,
        percent(figures.allocation_percent_at_100),
        percent(figures.allocation_percent_at_130),
        figures.decisions,
        figures.decisions_per_second.unwrap_or(0.0)
    )
}

fn come_and_go(context: &Context, args: &ReplayArgs, trace: &Trace) -> CommandResult {
    let mut waits = vec![waits_with(args, trace, args.policy)?];
    if let Some(path) = &args.svg {
        for policy in &args.compare_with {
            waits.push(waits_with(args, trace, *policy)?);
        }
        write(path, &picture::waiting(&waits))?;
    }
    let Waits { policy, seed, gpus, tasks, mean_wait_s, mean_wait_by_gpus_s: by_gpus_s, p99_wait_s, .. } =
        &waits[0];
    let Waits { gpu_hours_asked, gpu_hours_used, .. } = &waits[0];
    if context.printer.format == Format::Json {
        context.printer.json(&waits[0]);
    } else {
        context.printer.data(&format!(
            "{policy}, seed {seed}: {tasks} tasks on {gpus} GPUs waited {mean_wait_s:.0} s on average ({by_gpus_s:.0} s \
             counted by GPUs), one in a hundred longer than {p99_wait_s} s; {gpu_hours_asked:.0} GPU-hours asked for, {gpu_hours_used:.0} used"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn waits_with(args: &ReplayArgs, trace: &Trace, policy: ReplayPolicy) -> Result<Waits, CliError> {
    let gpus = args.cluster_gpus.map_or(usize::MAX, |gpus| gpus as usize);
    let replay = ComeAndGo::new(trace, policy, args.seed, gpus, args.copies as usize);
    let replay = replay.ok_or_else(|| {
        let text =
            "--dynamic: each task needs a number in the columns creation_time and deletion_time of --pods";
        CliError::new(ErrorKind::Usage, text)
    })?;
    Ok(replay.run())
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|e| CliError::wrap(ErrorKind::NotFound, path.display(), e))
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text)
        .map_err(|e| CliError::wrap(ErrorKind::Failed, format!("cannot write {}", path.display()), e))
}
