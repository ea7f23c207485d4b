//! Records in which state each GPU was, and what a node gave to no task of the server, for the accounts: a time begins when a report of
//! its node differs from the last one, and when a node has become silent.

use std::collections::BTreeMap;

use cantle_clearml::cantle::ReportNode;
use cantle_model::{GpuUuid, Milli, Slice, pools_of};
use cantle_store::{DirectRun, GpuTimeRow, NodeRow, Store, StoreError};
use cantle_usage::GpuPresence;

use crate::services::fleet::nodes::is_recent;

/// Length of an owner's name in characters.
const OWNER_MAX: usize = 128;
const STATES: [(GpuPresence, &str); 3] =
    [(GpuPresence::Here, "here"), (GpuPresence::Faulty, "faulty"), (GpuPresence::Away, "away")];

/// The state of a time; one that another version wrote counts as away.
pub(crate) fn state(row: &GpuTimeRow) -> GpuPresence {
    STATES.iter().find(|(_, word)| *word == row.state).map_or(GpuPresence::Away, |(state, _)| *state)
}

fn word(state: GpuPresence) -> String {
    STATES.iter().find(|(known, _)| *known == state).map_or("", |(_, word)| *word).to_owned()
}

/// A node reports its GPUs. They are in the pools that are defined now. Costs no write if nothing changed.
pub(crate) async fn reported(store: &Store, report: &ReportNode, now_us: i64) -> Result<(), StoreError> {
    let lasting = store.lasting_gpu_times(Some(&report.node)).await?;
    let all_pools = store.pools().await?;
    let mut gone: BTreeMap<&str, &GpuTimeRow> = lasting.iter().map(|row| (row.gpu.as_str(), row)).collect();
    let mut new = Vec::new();
    for gpu in &report.gpus {
        let now = if gpu.fault.is_some() { GpuPresence::Faulty } else { GpuPresence::Here };
        let pools = pools_of(&all_pools, &report.node, &gpu.model).join(",");
        let differs = |row: &GpuTimeRow| state(row) != now || row.pools != pools;
        if gone.remove(gpu.uuid.as_str()).is_none_or(differs) {
            let (gpu, model) = (gpu.uuid.clone(), gpu.model.clone());
            let node = report.node.clone();
            new.push(GpuTimeRow { gpu, from_us: now_us, to_us: None, node, model, pools, state: word(now) });
        }
    }
    new.extend(gone.into_values().filter(|row| state(row) != GpuPresence::Away).map(|row| away(row, now_us)));
    if !new.is_empty() {
        store.begin_gpu_times(&new).await?;
    }
    store.set_direct_runs(&report.node, &direct_runs(report), now_us).await
}

/// Of a run of no task. A node says which of its own users it is, and never which of the server's.
fn owner(of_node: &str) -> String {
    let is_of_node = ["unix:", "namespace:"].iter().any(|kind| of_node.starts_with(kind));
    if is_of_node { of_node.chars().take(OWNER_MAX).collect() } else { String::new() }
}

/// The slices of no task, those of one lease together.
fn direct_runs(report: &ReportNode) -> Vec<DirectRun> {
    let mut runs: BTreeMap<&str, DirectRun> = BTreeMap::new();
    for gpu in &report.gpus {
        for slice in &gpu.slices {
            let Some(direct) = &slice.direct else { continue };
            let run = runs.entry(&slice.lease).or_insert_with(|| DirectRun {
                lease: slice.lease.clone(),
                name: direct.name.clone(),
                owner: owner(&direct.owner),
                since_us: direct.since_ms.map(|ms| ms.saturating_mul(1000)),
                slices: Vec::new(),
            });
            run.slices.push(Slice {
                gpu: GpuUuid(gpu.uuid.clone()),
                milli: Milli(slice.milli),
                memory_limit_bytes: slice.memory_limit_bytes,
                mig: slice.mig.clone(),
            });
        }
    }
    runs.into_values().collect()
}

/// The GPUs of nodes that do not report any more are away since their last report.
pub(crate) async fn silent(store: &Store, now_us: i64) -> Result<(), StoreError> {
    let nodes = store.nodes().await?;
    let nodes: BTreeMap<&str, &NodeRow> = nodes.iter().map(|node| (node.node.as_str(), node)).collect();
    let lost = |row: &GpuTimeRow| match nodes.get(row.node.as_str()) {
        Some(node) => (!is_recent(node, now_us)).then(|| away(row, node.last_seen_us)),
        None => Some(away(row, now_us)),
    };
    let lasting = store.lasting_gpu_times(None).await?;
    let new: Vec<GpuTimeRow> =
        lasting.iter().filter(|row| state(row) != GpuPresence::Away).filter_map(lost).collect();
    if new.is_empty() {
        return Ok(());
    }
    store.begin_gpu_times(&new).await?;
    // Nobody knows how long they last.
    let gone: BTreeMap<&str, i64> = new.iter().map(|row| (row.node.as_str(), row.from_us)).collect();
    for (node, from_us) in gone {
        store.end_direct_runs(node, from_us).await?;
    }
    Ok(())
}

fn away(row: &GpuTimeRow, from_us: i64) -> GpuTimeRow {
    GpuTimeRow { from_us, to_us: None, state: word(GpuPresence::Away), ..row.clone() }
}
