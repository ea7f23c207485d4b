//! How the GPUs of a node are connected: NVLink, and the way between two GPUs over PCIe.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::GpuUuid;

/// The way between two GPUs over PCIe, the shortest first. The words are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PciePath {
    /// A switch on one board.
    Psb,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, without a host bridge.
    Pxb,
    /// A host bridge of a processor.
    Phb,
    /// Several host bridges of one NUMA node.
    Node,
    /// The link between two NUMA nodes.
    Sys,
}

impl PciePath {
    /// All of them, the shortest first.
    const ALL: [Self; 6] = [Self::Psb, Self::Pix, Self::Pxb, Self::Phb, Self::Node, Self::Sys];

    /// The path for NVML's `nvmlGpuTopologyLevel_t` (0, 10, … 50); `None` for an unknown number.
    #[must_use]
    pub fn from_nvml(level: u32) -> Option<Self> {
        let at = usize::try_from(level / 10).ok().filter(|_| level.is_multiple_of(10))?;
        Self::ALL.get(at).copied()
    }

    /// In one word, as `nvidia-smi topo -m` prints it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Psb => "PSB",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
        }
    }
}

/// The connection of two GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct GpuLink {
    /// Active NVLinks between them; all links of a GPU if both lead to an NVSwitch.
    pub nvlinks: u32,
    /// The way over PCIe; `None` if the driver does not report it.
    pub path: Option<PciePath>,
}

/// The least rank of a connection with NVLink.
const NVLINK: u32 = 8;

impl GpuLink {
    /// How good the connection is: a higher number is better, 0 is unknown. NVLinks count first. With NVLink, the PCIe path counts only
    /// by its NUMA node, because the data of the GPUs does not take it.
    #[must_use]
    pub fn rank(self) -> u32 {
        let same_numa_node = self.path.is_some_and(|path| path < PciePath::Sys);
        match (self.nvlinks, self.path) {
            (0, None) => 0,
            (0, Some(path)) => PciePath::Sys as u32 + 1 - path as u32,
            (links, _) => NVLINK + 2 * links + u32::from(same_numa_node),
        }
    }
}

/// As `nvidia-smi topo -m` prints it: `NV12`, `PIX`; `?` if unknown.
impl fmt::Display for GpuLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.nvlinks, self.path) {
            (0, path) => f.pad(path.map_or("?", PciePath::word)),
            (links, _) => f.pad(&format!("NV{links}")),
        }
    }
}

/// With both parts, as reports carry it: `NV12 SYS`, `PIX`, `?`.
impl From<GpuLink> for String {
    fn from(link: GpuLink) -> Self {
        match link.path {
            Some(path) if link.nvlinks > 0 => format!("{link} {}", path.word()),
            _ => link.to_string(),
        }
    }
}

/// Words of later versions are ignored: a report must stay readable.
impl From<String> for GpuLink {
    fn from(text: String) -> Self {
        let words = || text.split_whitespace();
        let nvlinks = words().find_map(|word| u32::from_str(word.strip_prefix("NV")?).ok());
        let path = words().find_map(|word| PciePath::ALL.into_iter().find(|path| path.word() == word));
        Self { nvlinks: nvlinks.unwrap_or(0), path }
    }
}

/// The connections of all GPUs of a node, each with each. It does not change while the driver is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    gpus: Vec<GpuUuid>,
    /// Of the first GPU with all after it, then of the second, and so on.
    links: Vec<GpuLink>,
}

impl Topology {
    /// The topology of these GPUs. `link` gives the connection of two positions, the lower one first.
    #[must_use]
    pub fn new(gpus: Vec<GpuUuid>, mut link: impl FnMut(usize, usize) -> GpuLink) -> Self {
        let pairs = (0..gpus.len()).flat_map(|one| (one + 1..gpus.len()).map(move |other| (one, other)));
        let links = pairs.map(|(one, other)| link(one, other)).collect();
        Self { gpus, links }
    }

    /// From the parts of a report; unknown if `links` do not belong to that many GPUs.
    #[must_use]
    pub fn from_report(gpus: Vec<GpuUuid>, links: Vec<GpuLink>) -> Self {
        let is_whole = gpus.len() * gpus.len().saturating_sub(1) / 2 == links.len();
        if is_whole { Self { gpus, links } } else { Self::default() }
    }

    /// The connections of each GPU with those after it, in order; empty if nothing is known.
    #[must_use]
    pub fn links(&self) -> &[GpuLink] {
        if self.is_known() { &self.links } else { &[] }
    }

    /// The connections of these GPUs only, in this order.
    #[must_use]
    pub fn among(&self, gpus: Vec<GpuUuid>) -> Self {
        let links = gpus.clone();
        Self::new(gpus, |one, other| self.link(&links[one], &links[other]))
    }

    /// The GPUs that are joined with others by connections for which `joins` is true, in one step or several: for each of them, the position
    /// of the first GPU of its group.
    #[must_use]
    pub fn groups(&self, joins: impl Fn(GpuLink) -> bool) -> Vec<(GpuUuid, usize)> {
        let mut first: Vec<usize> = (0..self.gpus.len()).collect();
        for one in 0..self.gpus.len() {
            for other in one + 1..self.gpus.len() {
                if joins(self.link(&self.gpus[one], &self.gpus[other])) {
                    let (low, high) = (first[one].min(first[other]), first[one].max(first[other]));
                    first.iter_mut().filter(|of| **of == high).for_each(|of| *of = low);
                }
            }
        }
        let is_joined = |at: &usize| first.iter().filter(|of| **of == *at).count() > 1;
        self.gpus.iter().cloned().zip(first.iter().copied()).filter(|(_, at)| is_joined(at)).collect()
    }

    /// Is any connection known?
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.links.iter().any(|link| link.rank() > 0)
    }

    /// The connection of two different GPUs; an unknown one if a GPU is not in it.
    #[must_use]
    pub fn link(&self, one: &GpuUuid, other: &GpuUuid) -> GpuLink {
        let at = |gpu: &GpuUuid| self.gpus.iter().position(|known| known == gpu);
        let (Some(one), Some(other)) = (at(one), at(other)) else { return GpuLink::default() };
        let (low, high) = (one.min(other), one.max(other));
        // The rows before `low` have one entry less each.
        let row = low * self.gpus.len() - low * (low + 1) / 2;
        let at = (row + high).checked_sub(low + 1).filter(|_| low < high);
        at.and_then(|at| self.links.get(at)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuids(count: usize) -> Vec<GpuUuid> {
        (0..count).map(|at| GpuUuid(format!("GPU-{at}"))).collect()
    }

    fn link(nvlinks: u32, path: PciePath) -> GpuLink {
        GpuLink { nvlinks, path: Some(path) }
    }

    #[test]
    fn each_two_gpus_have_their_own_connection() {
        let gpus = uuids(5);
        let number = |one: usize, other: usize| u32::try_from(10 * one + other).unwrap();
        let topology = Topology::new(gpus.clone(), |one, other| link(number(one, other), PciePath::Sys));
        for one in 0..5 {
            for other in one + 1..5 {
                let expected = link(number(one, other), PciePath::Sys);
                assert_eq!(topology.link(&gpus[one], &gpus[other]), expected);
                assert_eq!(topology.link(&gpus[other], &gpus[one]), expected);
            }
        }
        assert_eq!(topology.link(&gpus[0], &gpus[0]), GpuLink::default());
        assert_eq!(topology.link(&gpus[0], &GpuUuid::from("GPU-9")), GpuLink::default());
        let some = topology.among(vec![gpus[4].clone(), gpus[1].clone(), GpuUuid::from("GPU-9")]);
        assert_eq!(some.links(), [link(14, PciePath::Sys), GpuLink::default(), GpuLink::default()]);
        let links = topology.links().to_vec();
        assert_eq!(Topology::from_report(gpus.clone(), links.clone()), topology);
        assert_eq!(Topology::from_report(uuids(4), links), Topology::default(), "another number of GPUs");
        assert!(!Topology::new(gpus, |_, _| GpuLink::default()).is_known());
    }

    #[test]
    fn groups_are_joined_over_other_gpus() {
        let of = |pairs: &[(usize, usize)]| {
            let topology = Topology::new(uuids(6), |one, other| {
                link(u32::from(pairs.contains(&(one, other))), PciePath::Sys)
            });
            let groups = topology.groups(|link| link.nvlinks > 0);
            groups.into_iter().map(|(gpu, first)| format!("{}:{first}", gpu.0)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(&[(0, 1), (2, 3)]), "GPU-0:0 GPU-1:0 GPU-2:2 GPU-3:2");
        assert_eq!(of(&[(3, 4), (1, 2), (1, 4)]), "GPU-1:1 GPU-2:1 GPU-3:1 GPU-4:1");
        assert_eq!(of(&[]), "");
    }

    #[test]
    fn better_connections_rank_higher() {
        let better = [
            link(12, PciePath::Node),
            link(12, PciePath::Sys),
            link(2, PciePath::Sys),
            link(1, PciePath::Pix),
            link(1, PciePath::Sys),
            link(0, PciePath::Psb),
            link(0, PciePath::Pix),
            link(0, PciePath::Pxb),
            link(0, PciePath::Phb),
            link(0, PciePath::Node),
            link(0, PciePath::Sys),
            GpuLink::default(),
        ];
        assert!(better.is_sorted_by(|one, other| one.rank() > other.rank()), "{better:?}");
        assert_eq!(link(4, PciePath::Pix).rank(), link(4, PciePath::Node).rank());
    }

    #[test]
    fn reports_carry_both_parts_and_stay_readable() {
        for (one, text) in [
            (link(12, PciePath::Sys), "\"NV12 SYS\""),
            (GpuLink { nvlinks: 4, path: None }, "\"NV4\""),
            (link(0, PciePath::Pix), "\"PIX\""),
            (GpuLink::default(), "\"?\""),
        ] {
            assert_eq!(serde_json::to_string(&one).unwrap(), text);
            assert_eq!(serde_json::from_str::<GpuLink>(text).unwrap(), one);
        }
        assert_eq!(serde_json::from_str::<GpuLink>("\"NV2 C2C NODE\"").unwrap(), link(2, PciePath::Node));
        assert_eq!(link(12, PciePath::Sys).to_string(), "NV12");
    }

    #[test]
    fn levels_are_those_of_nvml() {
        assert_eq!(PciePath::from_nvml(0), Some(PciePath::Psb));
        assert_eq!(PciePath::from_nvml(10), Some(PciePath::Pix));
        assert_eq!(PciePath::from_nvml(50), Some(PciePath::Sys));
        assert_eq!([5, 60, u32::MAX].map(PciePath::from_nvml), [None; 3]);
    }
}
