//! `cantle simulate`: the scheduler on scenarios, and on a trace.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use cantle_sim::openb::{self, Trace};
use cantle_sim::{ComeAndGo, Figures, Fill, Filled, ReplayPolicy, Waits, picture};

use super::Context;
use crate::args::{ReplayArgs, SimulateArgs};
use crate::error::{CliError, Kind, Outcome, as_kind};
use crate::out::Format;

/// Runs scenario files and prints what happens, or replays a trace and prints figures.
pub(crate) fn simulate(context: &Context, args: &SimulateArgs) -> Outcome {
    let ReplayArgs { nodes: Some(nodes), pods: Some(pods), .. } = &args.replay else {
        return scenarios(context, args);
    };
    let trace = openb::load(&read(nodes)?, &read(pods)?).map_err(as_kind(Kind::Usage))?;
    if args.replay.dynamic {
        come_and_go(context, &args.replay, &trace)
    } else {
        fill(context, &args.replay, &trace)
    }
}

fn scenarios(context: &Context, args: &SimulateArgs) -> Outcome {
    let mut items = Vec::new();
    for path in &args.scenarios {
        let output = cantle_sim::run_scenario(&read(path)?)
            .map_err(|e| CliError::new(Kind::Usage, format!("{}: {e}", path.display())))?;
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

fn fill(context: &Context, args: &ReplayArgs, trace: &Trace) -> Outcome {
    let mut filled = vec![fill_with(args, trace, args.policy)];
    let figures = filled[0].figures.clone();
    if let Some(path) = &args.svg {
        filled.extend(args.beside.iter().map(|policy| fill_with(args, trace, *policy)));
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
    let fill = Fill::new(trace, policy, args.seed, args.inflate);
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

fn come_and_go(context: &Context, args: &ReplayArgs, trace: &Trace) -> Outcome {
    let mut waits = vec![waits_with(args, trace, args.policy)?];
    if let Some(path) = &args.svg {
        for policy in &args.beside {
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
        CliError::new(Kind::Usage, text)
    })?;
    Ok(replay.run())
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|e| CliError::new(Kind::NotFound, format!("{}: {e}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text)
        .map_err(|e| CliError::new(Kind::Failed, format!("cannot write {}: {e}", path.display())))
}
