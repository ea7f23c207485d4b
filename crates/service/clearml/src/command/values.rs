//! Reads and writes the values of single parameters.

use std::collections::BTreeMap;
use std::str::FromStr;

use cantle_model::{AfterList, ArraySpec, Bytes, ComputeRequest, GpuRequest, Isolation, check_memory_limit};
use serde_json::Value;

use super::{ArrayElement, TaskRequestError};
use crate::tasks::Param;

/// The values of a section; one that was emptied counts as absent.
pub(super) fn text_of<'a>(section: &'a BTreeMap<String, Param>) -> impl Fn(&str) -> Option<&'a str> + Copy {
    move |name| section.get(name).map(|param| param.value.trim()).filter(|value| !value.is_empty())
}

pub(super) fn array<'a>(
    text: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<ArraySpec>, TaskRequestError> {
    let given = text("array");
    given.map(|text| text.parse().map_err(TaskRequestError::Array)).transpose()
}

pub(super) fn element<'a>(
    text: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<ArrayElement>, TaskRequestError> {
    let Some(array) = text("array_id") else { return Ok(None) };
    let index = parsed("array_index", text("array_index"), "the index of the task in its array", Some)?;
    Ok(index.map(|index| ArrayElement { array: array.to_owned(), index }))
}

/// A list with commas.
pub(super) fn names(text: Option<&str>) -> Vec<String> {
    text.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_owned()).collect()
}

pub(super) fn after<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Result<AfterList, TaskRequestError> {
    parsed(
        "after",
        text("after"),
        "ok:TASK, any:TASK or fail:TASK, several with commas between them",
        |list| list,
    )
}

pub(super) fn gpu_request<'a>(
    text: impl Fn(&str) -> Option<&'a str>,
) -> Result<Option<GpuRequest>, TaskRequestError> {
    let wrong = |name: &'static str| move |source| TaskRequestError::Gpu { name, source };
    let mut found = Vec::new();
    if let Some(value) = text("gpu") {
        found.push(GpuRequest::from_fraction(value).map_err(wrong("gpu"))?);
    }
    if let Some(value) = text("gpus") {
        found.push(GpuRequest::from_gpus(value).map_err(wrong("gpus"))?);
    }
    if let Some(value) = text("gpu_memory") {
        found.push(GpuRequest::from_memory(value).map_err(wrong("gpu_memory"))?);
    }
    if let Some(value) = text("mig_profile") {
        found.push(GpuRequest::MigProfile(value.to_owned()));
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(TaskRequestError::Several),
    }
}

pub(super) fn memory_limit<'a>(
    text: impl Fn(&str) -> Option<&'a str>,
    gpu: Option<&GpuRequest>,
    isolation: Isolation,
) -> Result<Option<Bytes>, TaskRequestError> {
    let legal = "a quantity such as 24Gi";
    let limit = parsed("gpu_memory_limit", text("gpu_memory_limit"), legal, Some)?;
    if let Some(limit) = limit {
        check_memory_limit(limit, gpu, isolation)?;
    }
    Ok(limit)
}

/// Its request for a GPU's compute time. The slice of a task that leaves it to its queue is not known yet.
pub(super) fn compute_request<'a>(
    text: impl Fn(&str) -> Option<&'a str>,
    gpu: Option<&GpuRequest>,
) -> Result<ComputeRequest, TaskRequestError> {
    let part = |name: &'static str, parameter| {
        text(name).map(|value| ComputeRequest::part(parameter, value)).transpose()
    };
    let compute = ComputeRequest {
        mode: text("compute").map(str::parse).transpose()?.unwrap_or_default(),
        request: part("compute_request", "parameter cantle/compute_request")?,
        limit: part("compute_limit", "parameter cantle/compute_limit")?,
    };
    compute.check(gpu.unwrap_or(&GpuRequest::Gpus(1)))?;
    Ok(compute)
}

pub(super) fn word<T>(
    name: &'static str,
    text: Option<&str>,
    legal: &'static str,
) -> Result<T, TaskRequestError>
where
    T: Default + serde::de::DeserializeOwned,
{
    let Some(text) = text else {
        return Ok(T::default());
    };
    serde_json::from_value(Value::from(text)).map_err(|_| TaskRequestError::Word {
        name,
        given: text.to_owned(),
        legal,
    })
}

/// A parameter that is written as its type is, or left out.
pub(super) fn parsed<T: FromStr, R: Default>(
    name: &'static str,
    text: Option<&str>,
    legal: &'static str,
    value: impl FnOnce(T) -> R,
) -> Result<R, TaskRequestError> {
    let Some(text) = text else { return Ok(R::default()) };
    let wrong = |_| TaskRequestError::Word { name, given: text.to_owned(), legal };
    text.parse().map(value).map_err(wrong)
}

pub(super) fn json_word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// Exact, in the unit that is shortest to read: `4Gi`, `512Mi`, else decimal `1.234567891G`.
pub(super) fn quantity(Bytes(bytes): Bytes) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    if bytes.is_multiple_of(GIB) {
        return format!("{}Gi", bytes / GIB);
    }
    if bytes.is_multiple_of(MIB) {
        return format!("{}Mi", bytes / MIB);
    }
    let decimal = format!("{}.{:09}", bytes / 1_000_000_000, bytes % 1_000_000_000);
    format!("{}G", decimal.trim_end_matches('0').trim_end_matches('.'))
}
