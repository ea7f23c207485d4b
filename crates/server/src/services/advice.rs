//! `cantle.get_advice`: tasks that would have fitted into a smaller share, from the records of their runs.

use std::collections::BTreeMap;

use cantle_clearml::usage::{AdviceLine, Advised, GetAdvice};
use cantle_model::{GRANULE_BYTES, TaskStatus};
use cantle_store::RunRow;
use cantle_usage::{Period, Sample, advise};

use super::accounts::{Records, name_in, seconds};
use super::nodes;
use super::usage::period;
use crate::app::Call;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::routes::Routes;

pub(super) fn add(routes: &mut Routes) {
    routes.typed(get_advice);
}

/// Runs of one project and one name, the newest last.
async fn get_advice(call: Call, request: GetAdvice) -> Result<Advised, ApiError> {
    let period = period(&request.from, &request.to, call.now_us)?;
    let records = Records::read(&call, period).await?;
    let memory = nodes::all(&call).await?.into_iter().flat_map(|node| node.view().gpus);
    let memory: BTreeMap<String, u64> = memory.map(|gpu| (gpu.uuid, gpu.memory_bytes)).collect();
    let mut samples: BTreeMap<(Option<&str>, &str), Vec<Sample>> = BTreeMap::new();
    for (_, run) in records.runs.iter().enumerate().filter(|(index, _)| !records.hidden.contains(index)) {
        if let Some((name, sample)) = run.name.as_deref().zip(sample(run, records.held(run), &memory)) {
            samples.entry((run.project.as_deref(), name)).or_default().push(sample);
        }
    }
    let line = |((project, name), samples): (&(Option<&str>, &str), &Vec<Sample>)| {
        let advice = advise(samples)?;
        Some(AdviceLine {
            project: project.map(|id| name_in(&records.projects, id)),
            name: (*name).to_owned(),
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

/// What a run tells about the size that its task needs: nothing if it was given up, had several GPUs or a MIG instance, changed its slices,
/// or got a share for its compute time that is greater than its part of the memory.
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
