//! `cantle daemon --status | --stop`: the agents that run on this machine.

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

/// Stops agents as `kill PID` does: they stop their tasks and report it to the server.
pub(super) fn stop(context: &Context, config: &AgentConfig, workers: &[String]) -> CommandResult {
    let agents = cantle_node::agents(&config.installation)?;
    let mut chosen = Vec::new();
    for worker in workers {
        let agent = agents.iter().find(|agent| agent.worker == *worker).ok_or_else(|| {
            let others: Vec<&str> = agents.iter().map(|agent| agent.worker.as_str()).collect();
            let others = if others.is_empty() { "none does".to_owned() } else { others.join(", ") };
            CliError::new(ErrorKind::NotFound, format!("no agent {worker} runs here"))
                .with_hint(format!("agents of these GPUs that run here: {others}"))
        })?;
        chosen.push(agent);
    }
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
