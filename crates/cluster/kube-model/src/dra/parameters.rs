//! The parameters of a claim that the driver reads and the scheduler ignores: a share of compute time, and the memory that
//! comes with it. Claims of the injector's templates have them, and claims that users write can have them.

use cantle_model::{ComputeMode, ComputeRequest, Fraction, GpuRequest, Milli};
use k8s_openapi::api::resource::v1::{DeviceAllocationConfiguration, DeviceAllocationResult};
use serde::{Deserialize, Serialize};

use crate::SliceName;
use crate::names::DRIVER;

/// Parameters of our driver, as `opaque` configuration of a claim has them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ComputeParameters {
    /// The mode.
    compute: ComputeMode,
    /// The part when others compete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compute_request: Option<String>,
    /// The part that is never exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compute_limit: Option<String>,
    /// The part of the GPU's memory, if it is less than what the scheduler counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fraction: Option<String>,
}

impl ComputeParameters {
    pub(crate) fn of(slice: &SliceName, compute: ComputeRequest) -> Self {
        let fraction = match slice.request([]) {
            GpuRequest::Fraction(part) => Some(part.to_string()),
            GpuRequest::Gpus(_) | GpuRequest::Memory(_) | GpuRequest::MigProfile(_) => None,
        };
        Self {
            compute: compute.mode,
            compute_request: compute.request.map(|part| part.to_string()),
            compute_limit: compute.limit.map(|part| part.to_string()),
            fraction,
        }
    }

    /// Those of one request, if the claim has any for it.
    pub(super) fn of_request(
        allocated: &DeviceAllocationResult,
        request: &str,
    ) -> Result<Option<Self>, String> {
        // An alternative of a request is called `REQUEST/ALTERNATIVE`.
        let main = request.split('/').next().unwrap_or(request);
        let is_for = |config: &&DeviceAllocationConfiguration| match config.requests.as_deref() {
            None | Some([]) => true,
            Some(requests) => requests.iter().any(|name| name == request || name == main),
        };
        let all =
            allocated.config.iter().flatten().filter(is_for).filter_map(|config| config.opaque.as_ref());
        let mut ours = all.filter(|opaque| opaque.driver == DRIVER);
        let Some(first) = ours.next() else { return Ok(None) };
        if ours.next().is_some() {
            return Err(format!("request {request} has several configurations for {DRIVER}; keep one"));
        }
        let read = serde_json::from_value(first.parameters.0.clone());
        read.map(Some).map_err(|why| {
            format!(
                "configuration of request {request} for {DRIVER}: {why}; it has compute (even, fair or strict), computeRequest, \
                 computeLimit and fraction"
            )
        })
    }

    /// The request for memory and for compute that a slice has of which the scheduler counts `counted`.
    pub(super) fn requests(&self, counted: GpuRequest) -> Result<(GpuRequest, ComputeRequest), String> {
        let part = |what, text: &Option<String>| -> Result<Option<Milli>, String> {
            text.as_ref()
                .map(|text| ComputeRequest::part(what, text))
                .transpose()
                .map_err(|why| why.to_string())
        };
        let compute = ComputeRequest {
            mode: self.compute,
            request: part("computeRequest", &self.compute_request)?,
            limit: part("computeLimit", &self.compute_limit)?,
        };
        let slice = match &self.fraction {
            None => counted,
            Some(text) => fraction(text).map(GpuRequest::Fraction).ok_or_else(|| {
                format!("fraction is \"{text}\"; write a decimal above 0 and below 1, such as 0.5")
            })?,
        };
        compute.check(&slice).map_err(|why| why.to_string())?;
        Ok((slice, compute))
    }
}

/// With at most four places, as everywhere.
fn fraction(text: &str) -> Option<Fraction> {
    let (whole, places) = text.split_once('.')?;
    let digits = !places.is_empty() && places.len() <= 4 && places.bytes().all(|byte| byte.is_ascii_digit());
    let parts: u32 = format!("{places:0<4}").parse().ok().filter(|_| digits && whole == "0")?;
    Some(Fraction::from_ten_thousandths(parts)).filter(|part| part.is_part())
}
