//! The text format of scenarios. One statement a line; `#` starts a comment.

use cantle_model::{Bytes, ComputeMode, ComputeRequest, GpuRequest, Milli, QueueSpec, TaskId};
use cantle_sched::{Gang, Order, Placement, Project, Queue, Waiting};

use crate::parse_node::{host_option, node};
use crate::{Expectation, Expected, Scenario, ScenarioAction, ScenarioEvent, ScenarioPlace, SimError};

/// Reads a scenario.
///
/// # Errors
/// Names the first line that cannot be read and what would be right.
pub fn parse(text: &str) -> Result<Scenario, SimError> {
    let mut scenario = Scenario::default();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        statement(&mut scenario, at + 1, &words).map_err(|what| SimError::Syntax { line: at + 1, what })?;
    }
    scenario.events.sort_by_key(|event| event.at_ms);
    Ok(scenario)
}

fn statement(scenario: &mut Scenario, line: usize, words: &[&str]) -> Result<(), String> {
    match words {
        [] => {}
        ["node", name, gpus, options @ ..] => scenario.nodes.push(node(name, gpus, options)?),
        ["queue", spec] => {
            let spec = QueueSpec::parse(spec).map_err(|error| error.to_string())?;
            scenario.queues.push(Queue::new(spec, Vec::new()));
        }
        ["project", name, options @ ..] => scenario.projects.push(project(name, options)?),
        ["policy", options @ ..] => policy(scenario, options)?,
        ["at", time, rest @ ..] => {
            let at_ms = time_ms(time)?;
            for action in actions(scenario, at_ms, rest)? {
                scenario.events.push(ScenarioEvent { at_ms, action });
            }
        }
        ["expect", time, task, rest @ ..] => {
            let expected = expected(rest)?;
            let (at_ms, task) = (time_ms(time)?, (*task).to_owned());
            scenario.expectations.push(Expectation { line, at_ms, task, expected });
        }
        [first, ..] => {
            return Err(format!("\"{first}\" is not a statement: node, queue, project, policy, at, expect"));
        }
    }
    Ok(())
}

/// `project NAME [quota=GPUS] [limit=GPUS] [weight=N] [priority=N] [parent=NAME] [cpu=CORES] [cpu-limit=CORES] [memory=AMOUNT]
/// [memory-limit=AMOUNT] [used=PERCENT] [min-run=S]`; `cpu` and `memory` are quotas.
fn project(name: &str, options: &[&str]) -> Result<Project, String> {
    let mut project = Project::new(name, 0);
    for option in options {
        let (key, value) = option.split_once('=').ok_or_else(|| format!("\"{option}\": write KEY=VALUE"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("\"{option}\": not a whole number"));
        let milli =
            || value.parse::<Milli>().map(|milli| u64::from(milli.0)).map_err(|error| error.to_string());
        let bytes = || value.parse::<Bytes>().map(|bytes| bytes.0).map_err(|error| error.to_string());
        match key {
            "quota" => project.quotas[0].deserved = if value == "all" { None } else { Some(milli()?) },
            "limit" => project.quotas[0].limit = Some(milli()?),
            "weight" => project.quotas[0].weight = number()?,
            "cpu" => project.quotas[1].deserved = Some(milli()?),
            "cpu-limit" => project.quotas[1].limit = Some(milli()?),
            "memory" => project.quotas[2].deserved = Some(bytes()?),
            "memory-limit" => project.quotas[2].limit = Some(bytes()?),
            "priority" => {
                project.priority = value.parse().map_err(|_| format!("\"{option}\": not a number"))?
            }
            "parent" => project.parent = Some(value.to_owned()),
            "used" => project.usage_ppm = number()? * 10_000,
            "min-run" => project.min_run_ms = time_ms(value)?,
            _ => return Err(format!("\"{key}\" is not an option of project")),
        }
    }
    Ok(project)
}

fn policy(scenario: &mut Scenario, options: &[&str]) -> Result<(), String> {
    let policy = &mut scenario.policy;
    for option in options {
        match option.split_once('=').unwrap_or((option, "")) {
            ("order", "strict") => policy.order = Order::Strict,
            ("order", "fair") => policy.order = Order::Fair,
            ("order", "share") => policy.order = Order::Share,
            ("placement", "worth") => policy.placement = Placement::Worth,
            ("placement", "binpack") => policy.placement = Placement::Binpack,
            ("placement", "spread") => policy.placement = Placement::Spread,
            ("backfill", "") => policy.backfill = true,
            ("reclaim", "") => policy.reclaim = true,
            ("consolidate", "") => policy.consolidate = true,
            ("kai-compat", "") => policy.kai_compat = true,
            ("usage-weight", percent) => {
                policy.usage_weight_percent =
                    percent.parse().map_err(|_| format!("\"{option}\": write usage-weight=PERCENT"))?;
            }
            ("grace", seconds) => scenario.grace_ms = time_ms(seconds)?,
            _ => {
                return Err(format!(
                    "\"{option}\" is not a policy: order=strict|fair|share, placement=worth|binpack|spread, \
                     backfill, reclaim, consolidate, kai-compat, usage-weight=PERCENT, grace=S"
                ));
            }
        }
    }
    Ok(())
}

fn actions(scenario: &Scenario, at_ms: i64, words: &[&str]) -> Result<Vec<ScenarioAction>, String> {
    match words {
        ["submit", task, queue, options @ ..] => submit(scenario, at_ms, task, queue, options),
        ["end", tasks @ ..] if !tasks.is_empty() => {
            Ok(tasks.iter().map(|task| ScenarioAction::End((*task).to_owned())).collect())
        }
        ["foreign", gpu, amount] => {
            let (node, gpu) = gpu_at(scenario, gpu)?;
            let bytes = amount.parse::<Bytes>().map_err(|error| error.to_string())?.0;
            Ok(vec![ScenarioAction::Foreign { node, gpu, bytes }])
        }
        [word @ ("lose" | "repair"), gpu] => {
            let (node, gpu) = gpu_at(scenario, gpu)?;
            Ok(vec![ScenarioAction::Usable { node, gpu, usable: *word == "repair" }])
        }
        _ => Err(
            "an event is: submit TASK QUEUE [OPTION…], end TASK…, foreign NODE:GPU AMOUNT, lose NODE:GPU \
                  or repair NODE:GPU"
                .to_owned(),
        ),
    }
}

/// `submit TASK QUEUE [on=NODE[:GPU,…]] [gpu=F|gpus=N|gpu-memory=M|mig=PROFILE] [compute=F] [devices=N] [model=NAME] [cpu=CORES] [memory=AMOUNT] [project=NAME]
/// [priority=N] [preemptible=no] [gang=NAME [gang-size=N]] [runs=S] [max=S] [count=N]`; a gang has `count` tasks if its size is not given. With `on`, the
/// tasks run there from then on, whatever the scheduler would have decided.
fn submit(
    scenario: &Scenario,
    at_ms: i64,
    task: &str,
    queue: &str,
    options: &[&str],
) -> Result<Vec<ScenarioAction>, String> {
    let position = scenario.queues.iter().position(|known| known.spec.name == queue);
    let queue = position.ok_or_else(|| format!("there is no queue {queue}; write: queue {queue}=SPEC"))?;
    let mut waiting = Waiting::new(TaskId::from(task), at_ms);
    let (mut runs_ms, mut count, mut gang_size, mut on) = (None, None, None, None);
    for option in options {
        let (key, value) = option.split_once('=').ok_or_else(|| format!("\"{option}\": write KEY=VALUE"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("\"{option}\": not a whole number"));
        match key {
            "gpu" => waiting.request = Some(request(GpuRequest::from_fraction(value))?),
            "gpus" => waiting.request = Some(request(GpuRequest::from_gpus(value))?),
            "gpu-memory" => waiting.request = Some(request(GpuRequest::from_memory(value))?),
            "mig" => waiting.request = Some(GpuRequest::MigProfile(value.to_owned())),
            "on" => on = Some(place(scenario, value)?),
            "compute" => {
                let part = ComputeRequest::part("compute", value).map_err(|error| error.to_string())?;
                waiting.compute =
                    ComputeRequest { mode: ComputeMode::Fair, request: Some(part), limit: None };
            }
            "devices" => waiting.devices = number()?,
            "model" => waiting.models.push(value.to_owned()),
            "cpu" | "memory" => host_option(&mut waiting.host, option)?,
            "project" => waiting.project = Some(value.to_owned()),
            "priority" => {
                waiting.priority = value.parse().map_err(|_| format!("\"{option}\": not a number"))?
            }
            "preemptible" => waiting.preemptible = value != "no",
            "gang" => waiting.gang = Some(Gang { name: value.to_owned(), size: 0 }),
            "runs" => runs_ms = Some(time_ms(value)?),
            "max" => waiting.max_run_ms = Some(time_ms(value)?),
            "count" => count = Some(number()?),
            "gang-size" => gang_size = Some(number()?),
            _ => return Err(format!("\"{key}\" is not an option of submit")),
        }
    }
    if let Some(gang) = &mut waiting.gang {
        gang.size = gang_size.or(count).unwrap_or(1);
    }
    let named = |name: String| {
        let mut task = waiting.clone();
        task.task = TaskId(name);
        ScenarioAction::Submit { queue, task: Box::new(task), runs_ms, on: on.clone() }
    };
    Ok(match count {
        None => vec![named(task.to_owned())],
        Some(count) => (1..=count).map(|n| named(format!("{task}{n}"))).collect(),
    })
}

fn request(parsed: Result<GpuRequest, cantle_model::RequestError>) -> Result<GpuRequest, String> {
    parsed.map_err(|error| error.to_string())
}

/// `NODE` or `NODE:INDEX,INDEX`.
fn place(scenario: &Scenario, text: &str) -> Result<ScenarioPlace, String> {
    let (name, gpus) = text.split_once(':').unwrap_or((text, ""));
    let node = scenario.nodes.iter().position(|node| node.name == name);
    let node =
        node.ok_or_else(|| format!("\"{text}\": there is no node {name}; write NODE or NODE:INDEX,…"))?;
    let gpus = gpus.split(',').filter(|index| !index.is_empty());
    let gpus = gpus.map(|index| gpu_at(scenario, &format!("{name}:{index}")).map(|(_, gpu)| gpu));
    Ok(ScenarioPlace { node, gpus: gpus.collect::<Result<_, _>>()? })
}

/// `NODE:INDEX`.
fn gpu_at(scenario: &Scenario, text: &str) -> Result<(usize, usize), String> {
    let bad = || format!("\"{text}\" is not a GPU of this scenario; write NODE:INDEX");
    let (name, gpu) = text.split_once(':').ok_or_else(bad)?;
    let node = scenario.nodes.iter().position(|node| node.name == name).ok_or_else(bad)?;
    let gpu: usize = gpu.parse().map_err(|_| bad())?;
    if gpu < scenario.nodes[node].gpus.len() { Ok((node, gpu)) } else { Err(bad()) }
}

fn expected(words: &[&str]) -> Result<Expected, String> {
    match words {
        ["runs"] => Ok(Expected::Runs),
        ["on", place] => Ok(Expected::On((*place).to_owned())),
        ["waits", reason @ ..] => Ok(Expected::Waits(reason.join(" "))),
        ["ended"] => Ok(Expected::Ended),
        _ => Err("an expectation is: runs, on NODE:GPU,GPU, waits [PART OF THE REASON] or ended".to_owned()),
    }
}

/// Seconds with at most three decimals.
fn time_ms(text: &str) -> Result<i64, String> {
    let milli: Milli = text.parse().map_err(|_| format!("\"{text}\" is not a time in seconds"))?;
    Ok(i64::from(milli.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_line_and_the_remedy() {
        for (text, says) in [
            (
                "\nnod a 1xT4-16GB",
                "line 2: \"nod\" is not a statement: node, queue, project, policy, at, expect",
            ),
            ("node a 1xT4", "line 1: \"T4\": a GPU model ends in its memory, for example A100-40GB"),
            ("node a yxT4-16GB", "line 1: \"yxT4-16GB\": write COUNTxMODEL-<n>GB"),
            ("at 0 submit t q", "line 1: there is no queue q; write: queue q=SPEC"),
            (
                "queue q=1.25",
                "line 1: --queue q=1.25: above one GPU only whole numbers are possible; nearest are 1 and 2",
            ),
            ("at x end t", "line 1: \"x\" is not a time in seconds"),
            (
                "node a 1xT4-16GB\nat 0 lose a:1",
                "line 2: \"a:1\" is not a GPU of this scenario; write NODE:INDEX",
            ),
            (
                "node a 1xT4-16GB mig",
                "line 1: \"T4-16GB\": no MIG profiles of it are known; known are A100-40GB, A100-80GB, \
                 A30-24GB, B200-180GB, GB200-186GB, GH200-144GB-HBM3e, GH200-96GB (H100-96), \
                 H100-80GB-SXM5/HBM3, H100-94GB-NVL/SXM5-94, H200-141GB (SXM5 0x2335, NVL 0x233B), \
                 RTX-PRO-6000-Blackwell-96GB",
            ),
            ("node a 1xA100-40GB mig=1g", "line 1: \"1g\": A100-40GB has no such MIG profile"),
            ("node a 1xA100-40GB mig=3x3g.20gb", "line 1: \"3x3g.20gb\" has no place on one A100-40GB"),
            (
                "queue q=1\nat 0 submit t q on=b:0",
                "line 2: \"b:0\": there is no node b; write NODE or NODE:INDEX,…",
            ),
            (
                "node a 2xT4-16GB topology=ring",
                "line 1: \"ring\" is not a topology: pcie, nvlink-bridge, cube-mesh, nvswitch",
            ),
            (
                "node a 2xT4-16GB disk=1",
                "line 1: \"disk=1\" is not an option here: cpu=CORES, memory=AMOUNT, of a node also mig and topology=NAME",
            ),
            ("queue q=1\nat 0 submit t q color=red", "line 2: \"color\" is not an option of submit"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), says);
        }
    }
}
