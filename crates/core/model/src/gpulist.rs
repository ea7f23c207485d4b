//! `--gpus`: which GPUs of the node may be used.

use std::fmt;

use crate::Gpu;

/// `all`, `0-2`, `0,1`, `0, 1`, `0-1,3`; or MIG instances that are there: `0:0,0:1`, `MIG-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuList {
    /// Every GPU of the node.
    #[default]
    All,
    /// These indices, in ascending order, each once.
    Indices(Vec<u32>),
    /// These MIG instances as they are, in ascending order, each once.
    Instances(Vec<MigName>),
}

/// The name of a MIG instance for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MigName {
    /// `0:1`: index of the GPU, and number of the MIG device on it, both as `nvidia-smi -L` counts them.
    Number {
        /// Index of the GPU.
        gpu: u32,
        /// Number of the device.
        device: u32,
    },
    /// `MIG-…`, its permanent name.
    Uuid(String),
}

impl fmt::Display for MigName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { gpu, device } => write!(f, "{gpu}:{device}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl MigName {
    /// `None` if it is not the name of an instance, but perhaps of a GPU.
    fn parse(word: &str) -> Option<Self> {
        if word.starts_with("MIG-") {
            return Some(Self::Uuid(word.to_owned()));
        }
        let (gpu, device) = word.split_once(':')?;
        Some(Self::Number { gpu: gpu.parse().ok()?, device: device.parse().ok()? })
    }
}

impl GpuList {
    /// Parses the words after `--gpus`; ClearML's documentation writes `--gpus 0, 1`, so there may be several.
    ///
    /// # Errors
    /// Names the part that is not an index or a range.
    pub fn parse(words: &[String]) -> Result<Self, GpuListError> {
        let text = words.join(" ");
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let (mut indices, mut instances) = (Vec::new(), Vec::new());
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            if let Some(instance) = MigName::parse(part) {
                instances.push(instance);
                continue;
            }
            let bad = || GpuListError::Syntax(text.clone(), part.to_owned());
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) =
                (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
            if last < first || last > 255 {
                return Err(bad());
            }
            indices.extend(first..=last);
        }
        indices.sort_unstable();
        indices.dedup();
        instances.sort_unstable();
        instances.dedup();
        match (indices.is_empty(), instances.is_empty()) {
            (false, true) => Ok(Self::Indices(indices)),
            (true, false) => Ok(Self::Instances(instances)),
            (true, true) => Err(GpuListError::Empty),
            (false, false) => Err(GpuListError::Mixed(text)),
        }
    }

    /// The GPUs of `node` that are meant.
    ///
    /// # Errors
    /// Names the index that the node does not have, or the instance that is no GPU.
    pub fn select(&self, node: &[Gpu]) -> Result<Vec<Gpu>, GpuListError> {
        let indices = match self {
            Self::All => return Ok(node.to_vec()),
            Self::Indices(indices) => indices,
            Self::Instances(names) => {
                return Err(names
                    .first()
                    .map_or(GpuListError::Empty, |name| GpuListError::Instance(name.clone())));
            }
        };
        let find = |index: u32| {
            let found = node.iter().find(|gpu| gpu.index == index).cloned();
            found.ok_or(GpuListError::Absent(index, node.len()))
        };
        indices.iter().map(|&index| find(index)).collect()
    }
}

/// Why `--gpus` is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuListError {
    /// Not an index or a range.
    #[error(
        "--gpus {0}: \"{1}\" is not a GPU index or range; write for example 0-2, 0,1 or all, or 0:1 for a MIG instance"
    )]
    Syntax(String, String),
    /// Nothing given.
    #[error("--gpus: no GPU given; write for example 0-2, 0,1 or all")]
    Empty,
    /// GPUs and parts of GPUs.
    #[error("--gpus {0}: mixes GPUs and MIG instances; start one agent for each kind")]
    Mixed(String),
    /// A part of a GPU where a GPU is meant.
    #[error("{0} is a MIG instance, and this is done to whole GPUs; give the index of its GPU")]
    Instance(MigName),
    /// No such GPU here.
    #[error("--gpus: there is no GPU {0} on this machine; it has {1} (0 to {last})", last = .1.saturating_sub(1))]
    Absent(u32, usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<GpuList, GpuListError> {
        GpuList::parse(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn documented_forms() {
        assert_eq!(parse(&["0-2"]), Ok(GpuList::Indices(vec![0, 1, 2])));
        assert_eq!(parse(&["0,", "1"]), Ok(GpuList::Indices(vec![0, 1])));
        assert_eq!(parse(&["0, 1"]), Ok(GpuList::Indices(vec![0, 1])));
        assert_eq!(parse(&["1,0,0-1"]), Ok(GpuList::Indices(vec![0, 1])));
        assert_eq!(parse(&["all"]), Ok(GpuList::All));
        let number = |gpu, device| MigName::Number { gpu, device };
        assert_eq!(parse(&["0:1,0:0"]), Ok(GpuList::Instances(vec![number(0, 0), number(0, 1)])));
        let uuid = MigName::Uuid("MIG-5c89852c-d268-c3f3-1b07-005d5ae1dc3f".to_owned());
        assert_eq!(parse(&[&uuid.to_string(), "1:0"]), Ok(GpuList::Instances(vec![number(1, 0), uuid])));
    }

    #[test]
    fn refusals() {
        assert_eq!(parse(&["2-0"]), Err(GpuListError::Syntax("2-0".into(), "2-0".into())));
        assert_eq!(parse(&["x"]), Err(GpuListError::Syntax("x".into(), "x".into())));
        assert_eq!(parse(&["0:x"]), Err(GpuListError::Syntax("0:x".into(), "0:x".into())));
        assert_eq!(parse(&["0:0,1"]), Err(GpuListError::Mixed("0:0,1".into())));
        let instance = parse(&["0:0"]).unwrap();
        assert!(instance.select(&[]).unwrap_err().to_string().starts_with("0:0 is a MIG instance"));
        assert_eq!(parse(&[""]), Err(GpuListError::Empty));
        assert_eq!(GpuList::Indices(vec![7]).select(&[]), Err(GpuListError::Absent(7, 0)));
    }
}
