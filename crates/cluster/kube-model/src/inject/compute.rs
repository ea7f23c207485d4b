//! Reads the share of compute time that a pod requests.

use std::collections::BTreeMap;

use cantle_model::{ComputeError, ComputeRequest, Milli};
use k8s_openapi::api::core::v1::Pod;

use super::Denial;
use crate::ObjectExt as _;
use crate::slice_name::{SliceName, UnkeepableShare};

const MODE: &str = "cantle.dev/compute";
const REQUEST: &str = "cantle.dev/compute-request";
const LIMIT: &str = "cantle.dev/compute-limit";
/// As labels they mean nothing.
pub const ANNOTATIONS: [&str; 3] = [MODE, REQUEST, LIMIT];

/// The annotations that ask for this share; none for the driver's division.
pub fn annotations(asked: ComputeRequest) -> BTreeMap<&'static str, String> {
    let mode = asked.is_enforced().then(|| asked.mode.to_string());
    let part = |part: Option<Milli>| part.map(|part| part.to_string());
    let all = [(MODE, mode), (REQUEST, part(asked.request)), (LIMIT, part(asked.limit))];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// The share that the pod's annotations ask for.
///
/// # Errors
/// Names the annotation that cannot be read, or that only NVIDIA's programs could do something about.
pub(super) fn stated(pod: &Pod) -> Result<ComputeRequest, Denial> {
    without_nvidias(pod)?;
    let given = |name: &str| pod.annotations().get(name);
    let part = |name: &'static str| {
        let read = given(name).map(|text| ComputeRequest::part(name, text));
        read.transpose().map_err(|why| denial(why.into()))
    };
    let mode =
        given(MODE).map(|word| word.parse()).transpose().map_err(|why: ComputeError| denial(why.into()))?;
    let asked =
        ComputeRequest { mode: mode.unwrap_or_default(), request: part(REQUEST)?, limit: part(LIMIT)? };
    if !asked.is_enforced() && (asked.request.is_some() || asked.limit.is_some()) {
        return Err(denial(ComputeError::Even.into()));
    }
    Ok(asked)
}

/// The slice with this share.
///
/// # Errors
/// If it cannot be kept there.
pub(super) fn of_slice(slice_name: SliceName, asked: ComputeRequest) -> Result<SliceName, Denial> {
    slice_name.with_compute(asked).map_err(denial)
}

/// NVIDIA's and KAI's (`nvidia.com/container.NAME.gpu-compute.mode`), of which `time-slicing` is what a pod has without any.
fn without_nvidias(pod: &Pod) -> Result<(), Denial> {
    let is_nvidias = |key: &str| key.starts_with("nvidia.com/container.") && key.contains(".gpu-compute.");
    let asks = |(key, value): &(&String, &String)| {
        is_nvidias(key) && !(key.ends_with(".mode") && value.as_str() == "time-slicing")
    };
    match pod.annotations().iter().find(asks) {
        Some((key, value)) => Err(Denial::NvidiasCompute { what: key.clone(), given: value.clone() }),
        None => Ok(()),
    }
}

fn denial(error: UnkeepableShare) -> Denial {
    let compute = |why: String| Denial::Compute(why);
    let error = match error {
        UnkeepableShare::Compute(error) => error,
        UnkeepableShare::OfAmount => {
            return compute(format!(
                "annotations {REQUEST} and {LIMIT} go with a fraction of a GPU; with an amount of memory the share is that memory's part: \
                 leave them out, or write gpu-fraction in place of gpu-memory"
            ));
        }
    };
    match error {
        ComputeError::Mode(given) => {
            Denial::malformed(&format!("annotation {MODE}"), &given, "even, fair or strict")
        }
        ComputeError::Part(name, given) => {
            let right = "a decimal above 0 and at most 1, such as 0.5";
            Denial::malformed(&format!("annotation {name}"), &given, right)
        }
        ComputeError::Even => compute(format!(
            "annotations {REQUEST} and {LIMIT} have no meaning without annotation {MODE}; add it with fair or strict"
        )),
        ComputeError::LimitBelow { limit, request } => compute(format!(
            "annotation {LIMIT} is {limit}, below the compute request, which is {request}; write at least {request}"
        )),
        ComputeError::StrictLimit { limit, request } => compute(format!(
            "annotation {MODE} \"strict\" means that the limit is the request ({request}), not {limit}; for another limit write fair"
        )),
        ComputeError::Mig(mode) => compute(format!(
            "annotation {MODE} is \"{mode}\", but a MIG instance has its own part of the hardware, which keeps its compute share; leave it out"
        )),
        ComputeError::SeveralGpus { mode, count } => compute(format!(
            "annotation {MODE} is \"{mode}\", but a share of compute time is kept on one GPU only, not on {count}; leave it out"
        )),
        error @ (ComputeError::AboveSlice { .. } | ComputeError::Unenforceable { .. }) => {
            compute(error.to_string())
        }
    }
}
