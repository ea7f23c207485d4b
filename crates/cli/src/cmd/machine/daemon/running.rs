//! `cantle daemon --status | --stop | --release-gpus`: the agents that run on this machine.

use std::process::ExitCode;
use std::time::Duration;

use cantle_agent::AgentConfig;
use cantle_model::GpuUuid;
use cantle_node::GpuClaim;
use tokio::time::{Instant, sleep};

use crate::context::{CommandResult, Context, runtime};
use crate::error::{CliError, ErrorKind};
use crate::out::Column;

/// Longer than an agent takes to stop its tasks and to report it.
const STOP_WITHIN: Duration = Duration::from_secs(40);

/// Longer than an agent without tasks takes to unregister from its server.
const RELEASE_WITHIN: Duration = Duration::from_secs(15);

const AGENT_COLUMNS: [Column<GpuClaim>; 3] = [
    Column { head: "WORKER", wide: false, cell: |agent| agent.worker.clone() },
    Column { head: "PID", wide: false, cell: |agent| agent.holder.pid.to_string() },
    Column { head: "GPUS", wide: false, cell: devices },
];

/// Its GPUs, or its MIG instances of a GPU that it has only a part of.
fn devices(agent: &GpuClaim) -> String {
    let of =
        |gpu: &GpuUuid| agent.instances.get(gpu).map_or_else(|| gpu.0.clone(), |devices| devices.join(","));
    agent.gpus.iter().map(of).collect::<Vec<_>>().join(",")
}

pub(super) fn status(context: &Context, config: &AgentConfig) -> CommandResult {
    let agents = cantle_node::agents(&config.installation)?;
    context.printer.items(&agents, |agent| agent.worker.clone(), &AGENT_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// The agents with these worker ids.
fn named<'a>(agents: &'a [GpuClaim], workers: &[String]) -> Result<Vec<&'a GpuClaim>, CliError> {
    let one = |worker: &String| {
        agents.iter().find(|agent| agent.worker == *worker).ok_or_else(|| {
            let others: Vec<&str> = agents.iter().map(|agent| agent.worker.as_str()).collect();
            let others = if others.is_empty() { "none does".to_owned() } else { others.join(", ") };
            CliError::new(ErrorKind::NotFound, format!("no agent {worker} runs here"))
                .with_hint(format!("agents of these GPUs that run here: {others}"))
        })
    };
    workers.iter().map(one).collect()
}

/// Has agents close the driver for a while. While it is closed, the agents have released their claims on the GPUs.
pub(super) fn release(context: &Context, config: &AgentConfig, workers: &[String]) -> CommandResult {
    let agents = cantle_node::agents(&config.installation)?;
    let all = agents.iter().filter(|agent| !agent.gpus.is_empty());
    let chosen = if workers.is_empty() { all.collect() } else { named(&agents, workers)? };
    if chosen.is_empty() {
        return Err(CliError::new(ErrorKind::NotFound, "no agent with GPUs runs here"));
    }
    chosen.iter().for_each(|agent| agent.ask_for_release());
    runtime()?.block_on(async {
        for agent in chosen {
            let until = Instant::now() + RELEASE_WITHIN;
            while cantle_node::agents(&config.installation)?.iter().any(|other| other.worker == agent.worker)
            {
                if Instant::now() >= until {
                    let text = format!("agent {} keeps the driver open", agent.worker);
                    let hint = "it has tasks, or is still reporting one; stop or wait for them: cantle tasks";
                    return Err(CliError::new(ErrorKind::Conflict, text).with_hint(hint));
                }
                sleep(Duration::from_millis(50)).await;
            }
            let (worker, pid) = (&agent.worker, agent.holder.pid);
            context.printer.data(&format!(
                "agent {worker} has closed the driver for two minutes; kill -USR1 {pid} has it opened at once"
            ));
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Stops agents as `kill PID` does: they stop their tasks and report it to the server.
pub(super) fn stop(context: &Context, config: &AgentConfig, workers: &[String]) -> CommandResult {
    let agents = cantle_node::agents(&config.installation)?;
    let chosen = named(&agents, workers)?;
    chosen.iter().for_each(|agent| agent.stop());
    runtime()?.block_on(async {
        let until = Instant::now() + STOP_WITHIN;
        for agent in chosen {
            while agent.is_alive() {
                if Instant::now() >= until {
                    let (worker, pid) = (&agent.worker, agent.holder.pid);
                    let text =
                        format!("agent {worker} (pid {pid}) received the signal to stop and still runs");
                    return Err(CliError::new(ErrorKind::Failed, text).with_hint("see its log"));
                }
                sleep(Duration::from_millis(50)).await;
            }
            context.printer.data(&format!("agent {} is stopped", agent.worker));
        }
        Ok(ExitCode::SUCCESS)
    })
}
