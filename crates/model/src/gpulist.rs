//! The daemon's `--gpus`: which GPUs of the node it may use.

use crate::Gpu;

/// `all`, `0-2`, `0,1`, `0, 1`, `0-1,3`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuList {
    /// Every GPU of the node.
    #[default]
    All,
    /// These indices, in ascending order, each once.
    Indices(Vec<u32>),
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
        let mut indices = Vec::new();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
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
        if indices.is_empty() {
            return Err(GpuListError::Empty);
        }
        Ok(Self::Indices(indices))
    }

    /// The GPUs of `node` that are meant.
    ///
    /// # Errors
    /// Names the index that the node does not have.
    pub fn select(&self, node: &[Gpu]) -> Result<Vec<Gpu>, GpuListError> {
        let Self::Indices(indices) = self else {
            return Ok(node.to_vec());
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
    #[error("--gpus {0}: \"{1}\" is not a GPU index or range; write for example 0-2, 0,1 or all")]
    Syntax(String, String),
    /// Nothing given.
    #[error("--gpus: no GPU given; write for example 0-2, 0,1 or all")]
    Empty,
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
    }

    #[test]
    fn refusals() {
        assert_eq!(parse(&["2-0"]), Err(GpuListError::Syntax("2-0".into(), "2-0".into())));
        assert_eq!(parse(&["x"]), Err(GpuListError::Syntax("x".into(), "x".into())));
        assert_eq!(parse(&[""]), Err(GpuListError::Empty));
        assert_eq!(GpuList::Indices(vec![7]).select(&[]), Err(GpuListError::Absent(7, 0)));
    }
}
