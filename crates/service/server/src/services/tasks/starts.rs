//! `cantle.get_starts`: estimates when waiting tasks start, from time limits, and from former runs where there is no limit.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::starts::{GetStarts, StartView, StartViews};
use cantle_model::{GpuMode, TaskStatus, TimeLimit};
use cantle_sched::{HeldUntil, StartEstimate, StartGpu, StartNode, StartsLater, estimate_starts};
use cantle_store::{TaskFilter, TaskRow};

use super::explain::Board;
use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::routes::Routes;
use crate::services::fleet::nodes::Node;
use crate::services::people::quotas::request;
use crate::services::people::shares;

/// The most tasks of a queue, and of all queues, that get an estimate: those behind them wait for long.
const OF_QUEUE: usize = 100;
const IN_ALL: usize = 1000;
/// Former runs that an expected run time follows from: the newest ones of the queue.
const NEWEST: i64 = 50;
const LEAST: usize = 3;
const SINCE_US: i64 = 30 * 24 * 3600 * 1_000_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_starts);
}

async fn get_starts(call: Call, _request: GetStarts) -> Result<StartViews, ApiError> {
    let board = Board::read(&call).await?;
    let heads = heads(&call, &board.nodes).await?;
    if heads.is_empty() {
        return Ok(StartViews::default());
    }
    let filter = TaskFilter { ids: heads.clone(), ..TaskFilter::default() };
    let found = call.app.store.tasks(&filter).await?;
    let mut waiting: BTreeMap<&str, &TaskRow> =
        found.iter().map(|row| (row.index.id.as_str(), row)).collect();
    let running =
        TaskFilter { statuses: vec![TaskStatus::InProgress], without_doc: true, ..TaskFilter::default() };
    let running = call.app.store.tasks(&running).await?;
    let queues: BTreeSet<&str> =
        found.iter().chain(&running).filter_map(|row| row.index.queue.as_deref()).collect();
    let mut former = FormerRuns::default();
    for queue in queues {
        former.0.insert(
            queue.to_owned(),
            call.app.store.run_times_ms(queue, call.now_us - SINCE_US, NEWEST).await?,
        );
    }
    let now_ms = call.now_us / 1000;
    let nodes =
        board.nodes.iter().filter(|node| node.alive).map(|node| room(node, &running, &former, now_ms));
    let ordered: Vec<&TaskRow> = heads.iter().filter_map(|id| waiting.remove(id.as_str())).collect();
    let (held_back, open): (Vec<&TaskRow>, Vec<&TaskRow>) =
        ordered.into_iter().partition(|row| board.waits_for_a_quota(row));
    let later: Vec<StartsLater> = open.iter().map(|row| later(row, &board, &former)).collect();
    let estimates = estimate_starts(nodes.collect(), &later, now_ms);
    let quotas = if board.has_quotas() { "; quotas are not counted" } else { "" };
    let seen = call.active_seen().await?;
    let is_seen = |row: &&TaskRow| seen.as_ref().is_none_or(|seen| seen.contains(&row.index.id));
    let estimated =
        open.into_iter().filter(is_seen).map(|row| view(row, estimates.get(&row.index.id), quotas));
    let of_quota = held_back.into_iter().filter(is_seen).map(|row| StartView {
        task: row.index.id.clone(),
        start: None,
        basis: "unknown: it waits for a quota or a budget".to_owned(),
    });
    Ok(StartViews { starts: estimated.chain(of_quota).collect() })
}

/// The tasks at the heads of the queues, in the order in which nodes serve the queues.
async fn heads(call: &Call, nodes: &[Node]) -> Result<Vec<String>, ApiError> {
    let mut queues = call.store.queues().await?;
    queues.sort_by_cached_key(|queue| {
        let places = nodes
            .iter()
            .filter_map(|node| node.report.queues.iter().position(|served| served.name == queue.name));
        (places.min().unwrap_or(usize::MAX), queue.name.clone())
    });
    let heads = queues.into_iter().flat_map(|queue| queue.entries.into_iter().take(OF_QUEUE));
    Ok(heads.map(|(task, _)| task).take(IN_ALL).collect())
}

fn view(row: &TaskRow, estimate: Option<&StartEstimate>, quotas: &str) -> StartView {
    let (start, basis) = match estimate {
        Some(StartEstimate::At { start_ms, by_history: false }) => {
            (Some(*start_ms), format!("time limits of the tasks before it, so at the latest{quotas}"))
        }
        Some(StartEstimate::At { start_ms, by_history: true }) => {
            (Some(*start_ms), format!("former runs of the queues{quotas}"))
        }
        Some(StartEstimate::Now) => {
            (None, "unknown: there is room for it now, so it waits for something else".to_owned())
        }
        Some(StartEstimate::Unknown(why)) => (None, format!("unknown: {why}")),
        None => (None, "unknown".to_owned()),
    };
    StartView { task: row.index.id.clone(), start: start.map(|ms| rfc3339(ms * 1000)), basis }
}

/// The run times of the newest former runs of each queue, in milliseconds, the shortest first.
#[derive(Default)]
struct FormerRuns(BTreeMap<String, Vec<i64>>);

impl FormerRuns {
    /// The run time that half of those that ran longer than this had.
    fn median_ms(&self, queue: Option<&str>, longer_than_ms: i64) -> Option<i64> {
        let all = self.0.get(queue?)?;
        if all.len() < LEAST {
            return None;
        }
        let longer = all.get(all.partition_point(|ms| *ms <= longer_than_ms)..)?;
        longer.get(longer.len() / 2).copied()
    }
}

fn limit_ms(row: &TaskRow) -> Option<i64> {
    row.time.map(TimeLimit::ms)
}

fn later(row: &TaskRow, board: &Board, former: &FormerRuns) -> StartsLater {
    let queue = row.index.queue.as_deref();
    let name = queue.and_then(|id| board.queue_name(id)).unwrap_or_default();
    let own = request(row).gpu;
    let by_limit = limit_ms(row);
    StartsLater {
        task: row.index.id.clone(),
        queue: name.to_owned(),
        request: shares::spec(&board.nodes, name).want.request_for(own.as_ref()),
        runs_ms: by_limit.or_else(|| former.median_ms(queue, 0)),
        by_history: by_limit.is_none(),
    }
}

/// The GPUs of a node, and how long each slice is expected to be in use.
fn room(node: &Node, running: &[TaskRow], former: &FormerRuns, now_ms: i64) -> StartNode {
    let held = |milli: u32, task: &str| {
        let row = running.iter().find(|row| row.index.id == task);
        let since_ms = row.and_then(|row| row.index.started_us).map(|us| us / 1000);
        let limit = row.and_then(limit_ms).zip(since_ms).map(|(limit_ms, since_ms)| since_ms + limit_ms);
        let history = || {
            let since_ms = since_ms?;
            let queue = row?.index.queue.as_deref();
            former.median_ms(queue, now_ms - since_ms).map(|ms| since_ms + ms)
        };
        HeldUntil {
            milli,
            from_ms: since_ms.unwrap_or(0).min(now_ms),
            until_ms: limit.or_else(history).map(|until_ms| until_ms.max(now_ms + 1)),
            by_history: limit.is_none(),
        }
    };
    let shared = node.report.gpus.iter().filter(|gpu| gpu.mode != GpuMode::Mig);
    StartNode {
        queues: node.report.queues.iter().map(|queue| queue.name.clone()).collect(),
        gpus: shared
            .map(|gpu| StartGpu {
                memory_bytes: gpu.memory_bytes,
                held: gpu.slices.iter().map(|slice| held(slice.milli, &slice.task)).collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_longer_than_most_is_compared_with_longer_ones() {
        let former = FormerRuns(BTreeMap::from([
            ("q".to_owned(), vec![10, 20, 30, 40, 50]),
            ("few".to_owned(), vec![10, 20]),
        ]));
        assert_eq!(former.median_ms(Some("q"), 0), Some(30));
        assert_eq!(former.median_ms(Some("q"), 30), Some(50));
        assert_eq!(former.median_ms(Some("q"), 50), None, "none was as long");
        assert_eq!(former.median_ms(Some("few"), 0), None);
        assert_eq!(former.median_ms(None, 0), None);
    }
}
