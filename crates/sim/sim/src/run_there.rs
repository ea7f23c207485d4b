//! Tasks that a scenario says to run at a place.

use cantle_sched::{Policy, Snapshot, Start, Waiting};

use crate::run::seconds;
use crate::{ScenarioPlace, SimError};

/// The start of `task` at `place`: the decision if it were the only one that waits, nothing else could be used, and no quota
/// applied.
pub(crate) fn start_there(
    state: &Snapshot,
    queue: usize,
    task: &Waiting,
    place: &ScenarioPlace,
    now_ms: i64,
) -> Result<Start, SimError> {
    let mut alone = state.clone();
    let mut node = state.nodes[place.node].clone();
    let name = node.name.clone();
    for (gpu, state) in node.gpus.iter_mut().enumerate() {
        state.usable &= place.gpus.is_empty() || place.gpus.contains(&gpu);
    }
    alone.nodes = vec![node];
    alone.running.retain(|running| running.node == name);
    alone.projects.clear();
    alone.queues = vec![state.queues[queue].clone()];
    let mut single = task.clone();
    (single.gang, single.project) = (None, None);
    alone.queues[0].waiting = vec![single];
    let refused = |reason: String| SimError::NoRoom {
        at: seconds(now_ms),
        task: task.task.to_string(),
        node: name.clone(),
        reason,
    };
    let plan = cantle_decide::decide(&alone, &Policy::default(), now_ms)
        .map_err(|broken| refused(broken.to_string()))?;
    let reason = plan.waits.first().map(|wait| wait.reason.to_string());
    plan.starts.into_iter().next().ok_or_else(|| refused(reason.unwrap_or_default()))
}
