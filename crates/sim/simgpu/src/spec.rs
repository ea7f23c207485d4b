//! `3xA100-40GB,1xT4-16GB,2xH100-80GB:mig,1xA10-24GB:reserved,1xL4-24GB:hmm,topology=pcie`: parses the list of GPUs of a
//! simulated machine.

use crate::models::{self, MODELS};
use crate::wiring::Wiring;

/// The largest machine that can be simulated.
pub const MAX_DEVICES: usize = 16;

/// The GPUs of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineSpec {
    /// The GPUs, by index.
    pub devices: Vec<SpecDevice>,
    /// Their connections.
    pub wiring: Wiring,
}

/// One GPU of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecDevice {
    /// Index into [`MODELS`].
    pub model: usize,
    /// MIG mode is on at first start.
    pub mig: bool,
    /// The driver keeps a part of the memory for itself, as real ones do ([`Model::reserved_mib`](models::Model::reserved_mib), [`models::UNATTRIBUTED_MIB`]).
    pub reserved: bool,
    /// It reads the host's pageable memory by itself, as with NVIDIA's open kernel modules from 535 on (HMM).
    pub hmm: bool,
}

/// Why a spec was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's text says it")]
pub enum SpecError {
    #[error("the list of simulated GPUs is empty; expected e.g. 3xA100-40GB")]
    Empty,
    #[error("bad count in `{0}`; expected COUNTxMODEL with COUNT from 1 to 16, e.g. 3xA100-40GB")]
    Count(String),
    #[error("unknown simulated GPU model `{0}`; known: {known}", known = known_models())]
    Model(String),
    #[error("`{0}` has no MIG; models with MIG: {with_mig}", with_mig = mig_models())]
    NoMig(&'static str),
    #[error("unknown suffix `:{0}`; suffixes are `:mig`, `:reserved` and `:hmm`")]
    Suffix(String),
    #[error("unknown topology `{0}`; known: {known}", known = Wiring::names())]
    Topology(String),
    #[error("`{0}` has no NVLink, which topology `{1}` needs")]
    NoNvlink(&'static str, &'static str),
    #[error("{0} simulated GPUs asked for; at most 16 are possible")]
    TooMany(usize),
}

fn known_models() -> String {
    MODELS.iter().map(|m| m.key).collect::<Vec<_>>().join(", ")
}

fn mig_models() -> String {
    MODELS.iter().filter(|m| m.mig.is_some()).map(|m| m.key).collect::<Vec<_>>().join(", ")
}

/// Parses a spec.
pub fn parse(spec: &str) -> Result<MachineSpec, SpecError> {
    let (mut devices, mut wiring) = (Vec::new(), Wiring::default());
    for item in spec.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        if let Some(name) = item.strip_prefix("topology=") {
            wiring = Wiring::named(name).ok_or_else(|| SpecError::Topology(name.to_owned()))?;
            continue;
        }
        let (count, device) = parse_item(item)?;
        if devices.len() + count > MAX_DEVICES {
            return Err(SpecError::TooMany(devices.len() + count));
        }
        devices.extend(std::iter::repeat_n(device, count));
    }
    if devices.is_empty() {
        return Err(SpecError::Empty);
    }
    match devices.iter().find(|device| wiring.lacks_links_of(device.model)) {
        Some(device) => Err(SpecError::NoNvlink(MODELS[device.model].key, wiring.name().unwrap_or_default())),
        None => Ok(MachineSpec { devices, wiring }),
    }
}

fn parse_item(item: &str) -> Result<(usize, SpecDevice), SpecError> {
    // `3xA100-40GB`; a bare `A100-40GB` is one. Model names start with a letter, so digits before an `x` are a count.
    let (count, rest) = match item.split_once(['x', 'X']) {
        Some((digits, rest)) if item.starts_with(|c: char| c.is_ascii_digit()) => {
            let count = digits.parse::<usize>().ok().filter(|n| (1..=MAX_DEVICES).contains(n));
            (count.ok_or_else(|| SpecError::Count(item.to_owned()))?, rest)
        }
        _ => (1, item),
    };
    let (key, suffix) = rest.split_once(':').map_or((rest, None), |(key, suffix)| (key, Some(suffix)));
    let (mig, reserved, hmm) = match suffix {
        None => (false, false, false),
        Some("mig") => (true, false, false),
        Some("reserved") => (false, true, false),
        Some("hmm") => (false, false, true),
        Some(suffix) => return Err(SpecError::Suffix(suffix.to_owned())),
    };
    let model = models::find(key).ok_or_else(|| SpecError::Model(key.to_owned()))?;
    if mig && MODELS[model].mig.is_none() {
        return Err(SpecError::NoMig(MODELS[model].key));
    }
    Ok((count, SpecDevice { model, mig, reserved, hmm }))
}

/// The spec in its shortest usual form; parsing it gives the same machine.
pub fn format(spec: &MachineSpec) -> String {
    let item = |group: &[SpecDevice]| {
        let suffix = match group[0] {
            SpecDevice { mig: true, .. } => ":mig",
            SpecDevice { reserved: true, .. } => ":reserved",
            SpecDevice { hmm: true, .. } => ":hmm",
            _ => "",
        };
        format!("{}x{}{suffix}", group.len(), MODELS[group[0].model].key)
    };
    let wiring = spec.wiring.name().map(|name| format!("topology={name}"));
    spec.devices.chunk_by(|a, b| a == b).map(item).chain(wiring).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_counts_models_and_mig() {
        let spec = parse("2xa100-40gb, T4-16GB,1xH100-80GB:mig,1xA10-24GB:reserved,L4-24GB:hmm").unwrap();
        assert_eq!(format(&spec), "2xA100-40GB,1xT4-16GB,1xH100-80GB:mig,1xA10-24GB:reserved,1xL4-24GB:hmm");
        assert_eq!(parse(&format(&spec)).unwrap(), spec);
    }

    #[test]
    fn parses_the_topology() {
        let spec = parse("topology=nvlink-bridge,8xA40-48GB").unwrap();
        assert_eq!((spec.devices.len(), spec.wiring), (8, Wiring::Bridge));
        assert_eq!(format(&spec), "8xA40-48GB,topology=nvlink-bridge");
        assert_eq!(parse(&format(&spec)).unwrap(), spec);
    }

    #[test]
    fn refuses_with_a_line_that_names_the_fault() {
        for (spec, part) in [
            ("", "empty"),
            ("0xT4-16GB", "bad count in `0xT4-16GB`"),
            ("17xT4-16GB", "bad count"),
            ("9xT4-16GB,8xT4-16GB", "17 simulated GPUs"),
            ("3xA100", "unknown simulated GPU model `A100`; known: V100-16GB"),
            ("1xT4-16GB:mig", "`T4-16GB` has no MIG"),
            ("1xA100-40GB:MIG", "unknown suffix `:MIG`"),
            ("topology=pcie", "empty"),
            ("2xT4-16GB,topology=ring", "unknown topology `ring`; known: nvswitch, cube-mesh, pcie"),
            ("1xA40-48GB,1xT4-16GB,topology=nvlink-bridge", "`T4-16GB` has no NVLink"),
        ] {
            let message = parse(spec).unwrap_err().to_string();
            assert!(message.contains(part), "{spec:?}: {message}");
            assert!(!message.contains('\n'));
        }
    }
}
