//! The invariants after each step, and at the end. The numbers are those of docs/ARCHITECTURE.md.

use std::collections::BTreeMap;

use cantle_model::TaskStatus;

use crate::World;
use crate::agent::GPU_BYTES;

pub(crate) fn after_each_step(world: &World) -> Result<(), String> {
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    for agent in &world.agents {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for (id, (task, _)) in &agent.processes {
            // 10: a lease is on disk before its slice exists.
            let Some(record) = agent.disk.get(id) else {
                return Err(format!("{} runs without a lease on disk of {}", task.0, agent.name));
            };
            for slice in &record.lease.slices {
                *held.entry(slice.gpu.0.as_str()).or_default() += slice.memory_limit_bytes;
            }
            *runs.entry(&task.0).or_default() += 1;
        }
        // 2: never over.
        if let Some((gpu, bytes)) = held.into_iter().find(|(_, bytes)| *bytes > GPU_BYTES) {
            return Err(format!("{bytes} bytes of {gpu} are given out"));
        }
        let mut leased: BTreeMap<&str, u64> = BTreeMap::new();
        for slice in agent.disk.values().flat_map(|record| &record.lease.slices) {
            *leased.entry(slice.gpu.0.as_str()).or_default() += slice.memory_limit_bytes;
        }
        if let Some((gpu, bytes)) = leased.into_iter().find(|(_, bytes)| *bytes > GPU_BYTES) {
            return Err(format!("{bytes} bytes of {gpu} are leased"));
        }
    }
    // 10: no double run, at once or one after the other.
    for (task, now) in &runs {
        let before = world.ended.get(*task).map_or(0, Vec::len);
        if now + before > 1 {
            return Err(format!("{task} runs twice: {now} now, {before} before"));
        }
    }
    Ok(())
}

/// Do all agents only ask for work now?
pub(crate) fn is_quiet(world: &World) -> bool {
    let idle = |agent: &crate::agent::Agent| agent.up && agent.jobs.is_empty() && agent.asking.is_none();
    world.submitted.len() == crate::TASKS
        && world.agents.iter().all(idle)
        && world.server.is_up()
        && world.server.waiting().is_empty()
        && !world.submitted.iter().any(|task| is_taken(world, task))
}

/// Taken out of its queue by an agent that is gone: the server gives it back.
fn is_taken(world: &World, task: &str) -> bool {
    world.server.task(task).0 == TaskStatus::Queued
}

pub(crate) fn at_the_end(world: &World) -> Result<(), String> {
    for task in &world.submitted {
        let (status, _, lease, code) = world.server.task(task);
        let runs = world.ended.get(task).map_or(&[][..], Vec::as_slice);
        // 10: no forgotten task.
        if !status.is_final() {
            return Err(format!(
                "{task} is forgotten: {status}, held by {lease:?}, its runs ended with {runs:?}"
            ));
        }
        let [ran] = runs else {
            return Err(format!("{task} is {status} and has run {} times", runs.len()));
        };
        let expected = if *ran == 0 { TaskStatus::Completed } else { TaskStatus::Failed };
        if status != expected || code != Some(*ran) {
            return Err(format!("{task} ended with {ran} and is {status}, exit code {code:?}"));
        }
    }
    // 10: no orphan slice.
    match world.agents.iter().find(|agent| !agent.disk.is_empty()) {
        Some(agent) => Err(format!("{} keeps {} leases", agent.name, agent.disk.len())),
        None => Ok(()),
    }
}

/// For the message about a world that does not come to rest.
pub(crate) fn what_is_left(world: &World) -> String {
    let jobs = |agent: &crate::agent::Agent| {
        let jobs = agent.jobs.values().filter(|(_, state)| !state.is_running());
        let jobs: Vec<_> = jobs.map(|(lease, state)| format!("{} {state:?}", lease.task.0)).collect();
        format!("{}: {jobs:?}", agent.name)
    };
    let agents: Vec<_> = world.agents.iter().map(jobs).collect();
    format!("{agents:?}, waiting {:?}", world.server.waiting())
}
