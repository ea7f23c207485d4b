//! The allocations that the simulated driver itself has recorded, as JSON: the outside witness of every test.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::GRANULE_BYTES;
use crate::identity::gpu_uuid;
use crate::mig::mig_uuid;
use crate::state::{MAX_DOMAINS, ProcessState, Sim, SimGpu, Slot, StateGuard};
use crate::time::{EngineId, view};

/// The machine's memory, per GPU and process, after giving back what dead processes held.
pub fn truth_json(sim: &'static Sim) -> String {
    let state = sim.swept();
    let gpus: Vec<String> = (0..state.devices().len()).map(|index| gpu_json(&state, index)).collect();
    format!(r#"{{"gpus":[{}],"checkpoints":[{}]}}"#, gpus.join(","), checkpoints_json(&state))
}

/// The processes that are not running, and what they have in host memory.
fn checkpoints_json(state: &StateGuard) -> String {
    let stopped = state.processes().filter(|(_, process)| process.process_state != ProcessState::RUNNING);
    let entry = |(slot, process): (usize, &Slot)| {
        let (pid, word, bytes) =
            (state.pid_of(slot), process.process_state.word(), process.parked() * GRANULE_BYTES);
        format!(r#"{{"pid":{pid},"state":"{word}","parked_bytes":{bytes}}}"#)
    };
    stopped.map(entry).collect::<Vec<_>>().join(",")
}

fn gpu_json(state: &StateGuard, index: usize) -> String {
    let device = &state.devices()[index];
    let used: u64 = device.used_granules.iter().map(|&g| u64::from(g) * GRANULE_BYTES).sum();
    // Of all processes, those that have ended too.
    let engines = (0..MAX_DOMAINS).map(|domain| view(state.sim(), EngineId { device: index, domain }));
    let gpu_time_us = engines.map(|engine| engine.busy_ns).sum::<u64>() / 1000;
    format!(
        r#"{{"uuid":"{}","memory_bytes":{},"used_bytes":{used},"gpu_time_us":{gpu_time_us},"processes":[{}],"mig":[{}],"limits":[{}]}}"#,
        gpu_uuid(index, device.model()),
        device.model().memory_bytes(),
        processes_json(state, index, 0..MAX_DOMAINS),
        mig_json(state, index),
        limits_json(state, index),
    )
}

/// The memory limits of the control groups that still exist.
fn limits_json(state: &StateGuard, index: usize) -> String {
    let mut entries = Vec::new();
    for limit in state.limits_on(index).filter(|limit| limit.exists()) {
        let (path, (soft, hard)) = (limit.path().display(), limit.bytes());
        entries.push(format!(r#"{{"group":"{path}","soft_bytes":{soft},"hard_bytes":{hard}}}"#));
    }
    entries.join(",")
}

/// One entry per compute instance; a GPU instance without any has one too, without `uuid` and `ci`.
fn mig_json(state: &StateGuard, index: usize) -> String {
    let device = &state.devices()[index];
    let mut entries = Vec::new();
    for (gi, profile, instance) in device.instances() {
        let domain = SimGpu::domain_of(gi);
        let processes = processes_json(state, index, domain..domain + 1);
        let mut entry = |uuid: &str, ci: &str| {
            let (name, start, size) = (profile.name, instance.start, profile.size);
            entries.push(format!(
                r#"{{"profile":"{name}","start":{start},"size":{size},"uuid":{uuid},"gi":{gi},"ci":{ci},"processes":[{processes}]}}"#
            ));
        };
        let compute: Vec<usize> =
            device.compute_instances(gi).into_iter().flatten().map(|(ci, ..)| ci).collect();
        for &ci in &compute {
            entry(&format!("\"{}\"", mig_uuid(index, device, gi, ci)), &ci.to_string());
        }
        if compute.is_empty() {
            entry("null", "null");
        }
    }
    entries.join(",")
}

/// The processes that hold memory in any of `domains` of GPU `index`.
fn processes_json(state: &StateGuard, index: usize, domains: std::ops::Range<usize>) -> String {
    let mut out = String::new();
    let engines = domains.clone().map(|domain| view(state.sim(), EngineId { device: index, domain }));
    let mut gpu_ns: BTreeMap<usize, u64> = BTreeMap::new();
    for process in engines.flat_map(|engine| engine.processes) {
        *gpu_ns.entry(process.slot).or_default() += process.gpu_ns;
    }
    for (slot, process) in state.processes() {
        let held: u64 = process.held_granules[index][domains.clone()].iter().map(|&g| u64::from(g)).sum();
        let migrated = &process.migrated_granules[index][domains.clone()];
        let migrated_bytes = migrated.iter().map(|&g| u64::from(g)).sum::<u64>() * GRANULE_BYTES;
        if held > 0 || migrated_bytes > 0 {
            let separator = if out.is_empty() { "" } else { "," };
            let (pid, used_bytes) = (state.pid_of(slot), held * GRANULE_BYTES);
            let gpu_time_us = gpu_ns.get(&slot).unwrap_or(&0) / 1000;
            let _ = write!(
                out,
                r#"{separator}{{"pid":{pid},"used_bytes":{used_bytes},"migrated_bytes":{migrated_bytes},"gpu_time_us":{gpu_time_us}}}"#
            );
        }
    }
    out
}
