//! `cantle.get_advice`: tasks that would have fitted into a smaller share, from the records of their runs.

use std::collections::BTreeMap;

use cantle_clearml::usage::{AdviceLine, Advised, GetAdvice};
use cantle_model::{GRANULE_BYTES, TaskStatus};
use cantle_store::RunRow;
use cantle_usage::{Period, Sample, advise};

use super::accounts::{Records, View, seconds};
use super::usage::{late, period, short};
use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::routes::Routes;
use crate::services::fleet::nodes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_advice);
}

/// Runs of one project and one name, the newest last.
async fn get_advice(call: Call, request: GetAdvice) -> Result<Advised, ApiError> {
    let period = period(&request.from, &request.to, call.now_us)?;
    let (list, view) =
        (call.app.lists.begin(call.who.user.as_str()).await.map_err(|_| late())?, View::read(&call).await?);
    let memory = nodes::all(&call).await?.into_iter().flat_map(|node| node.view().gpus);
    let memory: BTreeMap<String, u64> = memory.map(|gpu| (gpu.uuid, gpu.memory_bytes)).collect();
    let mut samples: BTreeMap<(Option<String>, String), Vec<Sample>> = BTreeMap::new();
    let first_us = call.app.first_usage.get(&call.app.store).await?.unwrap_or(period.to_us);
    let recorded = Period { from_us: period.from_us.max(first_us), ..period };
    for part in short(recorded) {
        let _part = list.part().await.map_err(|_| late())?;
        let records = Records::read(&call.store, part, call.now_us).await?;
        for run in records.runs.iter() {
            let held = records.held(run);
            // One that began earlier was in the part before.
            let is_new = part.from_us == recorded.from_us || held.from_us >= part.from_us;
            let (owner, project) =
                (run.owner.as_deref().unwrap_or_default(), run.project.as_deref().unwrap_or_default());
            if !is_new || view.hides(owner, project) {
                continue;
            }
            if let Some((name, sample)) = run.name.as_ref().zip(sample(run, held, &memory)) {
                samples.entry((run.project.clone(), name.clone())).or_default().push(sample);
            }
        }
    }
    let line = |((project, name), samples): (&(Option<String>, String), &Vec<Sample>)| {
        let advice = advise(samples)?;
        Some(AdviceLine {
            project: project.as_ref().map(|id| view.project(id)),
            name: name.clone(),
            milli: advice.milli,
            enough_milli: advice.enough_milli,
            peak_bytes: advice.peak_bytes,
            limit_bytes: advice.limit_bytes,
            runs: advice.runs as u64,
            spare_gpu_seconds: seconds(advice.spare),
        })
    };
    let mut lines: Vec<AdviceLine> = samples.iter().filter_map(line).collect();
    lines.sort_by(|a, b| b.spare_gpu_seconds.total_cmp(&a.spare_gpu_seconds));
    Ok(Advised { from: rfc3339(period.from_us), to: rfc3339(period.to_us), lines })
}

/// The information of a run about the size that its task needs: nothing if it was given up, had several GPUs or a MIG
/// instance, changed its slices, or got a share for its compute time that is greater than its part of the memory.
fn sample(run: &RunRow, held: Period, memory: &BTreeMap<String, u64>) -> Option<Sample> {
    let [slice] = run.slices.as_slice() else { return None };
    let gpu_bytes = *memory.get(&slice.gpu.0)?;
    let (limit, milli) = (slice.memory_limit_bytes, slice.milli.0);
    let of_memory = u128::from(limit + GRANULE_BYTES) * 1000 >= u128::from(gpu_bytes) * u128::from(milli);
    let counts = slice.mig.is_none()
        && of_memory
        && run.changes.is_empty()
        && run.outcome.is_some_and(TaskStatus::is_final);
    let peak_bytes = run.measured.peak_bytes.filter(|_| counts)?.min(limit);
    Some(Sample { gpu_bytes, milli, peak_bytes, held_us: held.us() })
}
