//! Events of which administrators are notified: nodes that are away, GPUs that have failed, quotas that are used up.
//! Beginning and end are events; what began is kept in the database, so that a start of the server repeats nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::cantle::ReportNode;
use cantle_model::Resource;
use cantle_store::{EventRow, NodeRow, StoreError};
use tokio::time::Instant;

use crate::app::App;
use crate::clock::now_us;
use crate::services::fleet::nodes::is_recent;

const EVERY: Duration = Duration::from_secs(5);
/// A node that was away for so long does not come back: it is forgotten.
const GONE_US: i64 = 7 * 24 * 3600 * 1_000_000;
/// A quota counts as used up for so long after it was: tasks end and start.
const QUOTA_LASTS: Duration = Duration::from_secs(600);

const GPU: &str = "gpu-lost ";
const NODE: &str = "agent-away ";
const QUOTA: &str = "quota-reached ";

/// The name that a receiver must list to get an event of this kind; `None`: it is none of ours.
pub(super) fn wanted_by(kind: &str) -> Option<&'static str> {
    match kind {
        "gpu-lost" | "gpu-back" => Some("gpu-lost"),
        "agent-away" | "agent-back" => Some("agent-away"),
        "quota-reached" | "quota-free" | "budget-near" | "budget-reached" => Some("quota-reached"),
        _ => None,
    }
}

/// Looks while this server leads, without end. Without receivers in the configuration there is no notice to send.
pub(crate) async fn watch(app: Arc<App>) {
    if app.notify.own.is_empty() {
        return;
    }
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut since, mut quotas) = (None, BTreeMap::new());
    loop {
        ticks.tick().await;
        if !app.leads() {
            since = None;
            continue;
        }
        if since.get_or_insert_with(Instant::now).elapsed() < app.notify.grace {
            continue;
        }
        if let Err(error) = look(&app, &mut quotas).await {
            tracing::error!("nodes, GPUs and quotas cannot be watched: {error}");
        }
    }
}

async fn look(app: &App, quotas: &mut BTreeMap<String, (Instant, String)>) -> Result<(), StoreError> {
    let now_us = now_us();
    let nodes = app.store.nodes().await?;
    let mut texts = of_nodes(&nodes, now_us);
    for (name, text) in used_up(app).await? {
        quotas.insert(name, (Instant::now(), text));
    }
    quotas.retain(|_, (at, _)| at.elapsed() < QUOTA_LASTS);
    texts.extend(quotas.iter().map(|(name, (_, text))| (name.clone(), (None, text.clone()))));
    let names: BTreeSet<String> = texts.keys().cloned().collect();
    let begun = |name: &str| {
        let (node, message) = texts.get(name).cloned().unwrap_or_default();
        let kind = name.split(' ').next().unwrap_or_default().to_owned();
        EventRow { kind, node, message, ..EventRow::default() }
    };
    app.store.note_conditions(&names, now_us, begun, over).await
}

/// The event of the end of a condition.
fn over(name: &str) -> EventRow {
    let (kind, node, message) = if let Some(node) = name.strip_prefix(NODE) {
        ("agent-back", Some(node), format!("the agent of {node} reports again, or its node is forgotten"))
    } else if let Some(gpu) = name.strip_prefix(GPU) {
        let node = gpu.rsplit_once(' ').map(|(node, _)| node);
        ("gpu-back", node, format!("GPU {gpu} takes tasks again, or is gone"))
    } else {
        let project = name.strip_prefix(QUOTA).unwrap_or(name);
        ("quota-free", None, format!("project {project} uses less than its quota of GPUs again"))
    };
    let (kind, node) = (kind.to_owned(), node.map(str::to_owned));
    EventRow { kind, node, message, ..EventRow::default() }
}

/// Conditions of nodes: name, and node and text of the event.
fn of_nodes(nodes: &[NodeRow], now_us: i64) -> BTreeMap<String, (Option<String>, String)> {
    let mut found = BTreeMap::new();
    for row in nodes.iter().filter(|row| row.last_seen_us > now_us - GONE_US) {
        let node = &row.node;
        if !is_recent(row, now_us) {
            let silent_s = (now_us - row.last_seen_us) / 1_000_000;
            let text = format!("the agent of {node} has not reported for {silent_s} s");
            found.insert(format!("{NODE}{node}"), (Some(node.clone()), text));
        }
        let gpus = serde_json::from_str::<ReportNode>(&row.report).map(|report| report.gpus);
        for gpu in gpus.unwrap_or_default() {
            if let Some(fault) = &gpu.fault {
                let text = format!("GPU {} of {node} ({}) has failed: {fault}", gpu.index, gpu.model);
                found.insert(format!("{GPU}{node} {}", gpu.uuid), (Some(node.clone()), text));
            }
        }
    }
    found
}

/// Projects whose tasks hold as many GPUs as their limit, or where they have none, their quota: name of the condition, and text.
async fn used_up(app: &App) -> Result<Vec<(String, String)>, StoreError> {
    let projects = app.store.projects().await?;
    let with_quota = |row: &cantle_store::ProjectRow| {
        let gpu = &row.quota.as_ref()?.gpu;
        Some((row.name.clone(), gpu.limit.or(gpu.deserved).filter(|most| *most > 0)?))
    };
    let quotas: Vec<(String, u64)> = projects.iter().filter_map(with_quota).collect();
    if quotas.is_empty() {
        return Ok(Vec::new());
    }
    let names: BTreeMap<&str, &str> =
        projects.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
    let held = app.store.held_since().await?;
    let is_in = |project: &str, tree: &str| {
        project.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let reached = |(tree, most): (String, u64)| {
        let own =
            held.iter().filter(|one| names.get(one.project.as_str()).is_some_and(|name| is_in(name, &tree)));
        let sum: u64 = own.map(|one| one.milli).sum();
        let text = || {
            let (sum, most) = (Resource::Gpu.number(sum), Resource::Gpu.text(most));
            format!("project {tree} holds {sum} of its quota of {most}")
        };
        (sum >= most).then(|| (format!("{QUOTA}{tree}"), text()))
    };
    Ok(quotas.into_iter().filter_map(reached).collect())
}
