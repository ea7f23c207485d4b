//! Values of flags other than text and numbers.

use std::time::Duration;

use cantle_model::{
    AmountError, Bytes, ComputeError, ComputeMode, ComputeRequest, GpuList, GpuRequest, Isolation, Milli,
    RequestError,
};
use cantle_node::Watch;

pub(crate) fn fraction(text: &str) -> Result<GpuRequest, RequestError> {
    GpuRequest::from_fraction(text)
}

/// `--gpus` of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Gpus {
    /// A number of whole ones.
    Count(GpuRequest),
    /// Existing MIG instances.
    Instances(GpuList),
}

pub(crate) fn gpus(text: &str) -> Result<Gpus, String> {
    if text.contains(':') || text.starts_with("MIG-") {
        return GpuList::parse(&[text.to_owned()]).map(Gpus::Instances).map_err(|error| error.to_string());
    }
    GpuRequest::from_gpus(text).map(Gpus::Count).map_err(|error| error.to_string())
}

pub(crate) fn memory(text: &str) -> Result<GpuRequest, RequestError> {
    GpuRequest::from_memory(text)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "clap wants a Result; which profiles exist only the driver knows"
)]
pub(crate) fn profile(text: &str) -> Result<GpuRequest, RequestError> {
    Ok(GpuRequest::MigProfile(text.to_owned()))
}

pub(crate) fn compute(text: &str) -> Result<ComputeMode, ComputeError> {
    text.parse()
}

pub(crate) fn compute_request(text: &str) -> Result<Milli, ComputeError> {
    ComputeRequest::part("--compute-request", text)
}

pub(crate) fn compute_limit(text: &str) -> Result<Milli, ComputeError> {
    ComputeRequest::part("--compute-limit", text)
}

pub(crate) fn watchdog(text: &str) -> Result<Watch, String> {
    match text {
        "warn" => Ok(Watch::Warn),
        "kill" => Ok(Watch::Kill),
        _ => Err(format!("--watchdog {text}: write warn or kill")),
    }
}

/// A whole number and a unit, as `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3600), ('d', 24 * 3600)];
    let seconds = units.iter().find_map(|(unit, seconds)| {
        let number: u32 = text.strip_suffix(*unit)?.parse().ok().filter(|number| *number > 0)?;
        Some(u64::from(number) * seconds)
    });
    let wrong =
        || format!("\"{text}\" is not a length of time; write a whole number with s, m, h or d, such as 7d");
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// A length of time, or `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept(pub(crate) Option<Duration>);

/// As [`duration`], or `forever`.
pub(crate) fn kept(text: &str) -> Result<Kept, String> {
    if text == "forever" { Ok(Kept(None)) } else { duration(text).map(|time| Kept(Some(time))) }
}

/// CPU cores.
pub(crate) fn cores(text: &str) -> Result<Milli, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a number of CPU cores; write a decimal such as 0.5"))
}

/// The processors of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskCpu {
    /// A number of cores, which counts against quotas.
    Cores(Milli),
    /// The part of its node's processors and memory that it has of the node's GPUs.
    Auto,
}

pub(crate) fn task_cpu(text: &str) -> Result<TaskCpu, String> {
    match (text, text.parse()) {
        ("auto", _) => Ok(TaskCpu::Auto),
        (_, Ok(Milli(0)) | Err(_)) => {
            Err(format!("\"{text}\" is not a number of CPU cores; write a decimal such as 0.5, or auto"))
        }
        (_, Ok(cores)) => Ok(TaskCpu::Cores(cores)),
    }
}

pub(crate) fn bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: AmountError| error.to_string())
}

/// As [`bytes`], and `512m` and `4g`, which docker's own option of the same name has for binary units.
pub(crate) fn main_memory(text: &str) -> Result<Bytes, String> {
    let dockers = [("m", "Mi"), ("g", "Gi")]
        .iter()
        .find_map(|(short, unit)| format!("{}{unit}", text.strip_suffix(short)?).parse().ok());
    dockers.map_or_else(|| bytes(text), Ok)
}

pub(crate) fn isolation(text: &str) -> Result<Isolation, String> {
    match text {
        "any" => Ok(Isolation::Any),
        "mig" => Ok(Isolation::Mig),
        "shared" => Ok(Isolation::Shared),
        _ => Err(format!("\"{text}\" is not an isolation; write any, mig or shared")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_memory_in_the_units_of_kubernetes_and_docker() {
        for (text, bytes) in
            [("512m", 512 << 20), ("1.5g", 1536 << 20), ("4Gi", 4 << 30), ("4G", 4_000_000_000)]
        {
            assert_eq!(main_memory(text), Ok(Bytes(bytes)), "{text}");
        }
        assert!(main_memory("xm").unwrap_err().contains("\"xm\" is not an amount"));
    }

    #[test]
    fn lengths_of_time() {
        assert_eq!(kept("forever"), Ok(Kept(None)));
        assert_eq!(kept("7d"), Ok(Kept(Some(Duration::from_secs(7 * 86_400)))));
        assert!(kept("never").is_err());
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for wrong in ["", "7", "0h", "-1h", "1.5h", "7w", "d"] {
            assert!(duration(wrong).is_err_and(|error| error.contains("such as 7d")), "{wrong}");
        }
    }
}
