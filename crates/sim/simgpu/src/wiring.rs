//! How the GPUs of a simulated machine are connected: by NVLink, and over PCIe.

use crate::models::{MODELS, Model};

/// The connections of all GPUs of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Wiring {
    /// By model: GPUs of one model that have their NVLinks on the board are connected as in a DGX machine of that model. All others are at
    /// different sockets.
    #[default]
    OfModel,
    /// All NVLinks lead to switches (DGX A100, DGX H100).
    NvSwitch,
    /// Eight GPUs in a hybrid cube mesh (DGX-1 with V100).
    CubeMesh,
    /// Two GPUs at each PCIe switch.
    Pcie,
    /// The same, with an NVLink bridge over both GPUs of a switch.
    Bridge,
    /// The driver does not report it.
    Unknown,
}

/// Each wiring that a spec can name, and its name.
const NAMES: [(&str, Wiring); 5] = [
    ("nvswitch", Wiring::NvSwitch),
    ("cube-mesh", Wiring::CubeMesh),
    ("pcie", Wiring::Pcie),
    ("nvlink-bridge", Wiring::Bridge),
    ("unknown", Wiring::Unknown),
];

/// The other end of an NVLink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEnd {
    /// A switch.
    Switch,
    /// The GPU with this index.
    Gpu(usize),
    /// Nothing is connected.
    Nothing,
}

/// The way between two GPUs over PCIe, as `nvmlGpuTopologyLevel_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancestor {
    /// The same GPU.
    Internal = 0,
    /// One PCIe switch.
    Single = 10,
    /// Host bridges of one socket.
    Node = 40,
    /// The link between two sockets.
    System = 50,
}

/// NVLinks between two GPUs of a hybrid cube mesh, as `nvidia-smi topo -m` prints them on a DGX-1 with V100.
const MESH: [[usize; 8]; 8] = [
    [0, 1, 1, 2, 2, 0, 0, 0],
    [1, 0, 2, 1, 0, 2, 0, 0],
    [1, 2, 0, 2, 0, 0, 1, 0],
    [2, 1, 2, 0, 0, 0, 0, 1],
    [2, 0, 0, 0, 0, 1, 1, 2],
    [0, 2, 0, 0, 1, 0, 2, 1],
    [0, 0, 1, 0, 1, 2, 0, 2],
    [0, 0, 0, 1, 2, 1, 2, 0],
];

/// NVLinks of a model, and what they lead to unless a spec says otherwise.
fn nvlinks(model: &Model) -> (usize, Wiring) {
    match (model.key, model.capability) {
        ("V100-16GB" | "V100-32GB", _) => (6, Wiring::CubeMesh),
        ("A30-24GB" | "A40-48GB" | "RTX3090-24GB", _) => (4, Wiring::Bridge),
        ("H100-94GB" | "H100-80GB-PCIe", _) => (12, Wiring::Bridge),
        ("GH200-96GB" | "GH200-144GB", _) => (0, Wiring::OfModel),
        (_, (8, 0)) => (12, Wiring::NvSwitch),
        (_, (9 | 10, _)) => (18, Wiring::NvSwitch),
        _ => (0, Wiring::OfModel),
    }
}

impl Wiring {
    /// The wiring with this name in a spec.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, wiring)| *wiring)
    }

    /// Its name in a spec; `None` for the one that needs no name.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(_, wiring)| *wiring == self).map(|(name, _)| *name)
    }

    /// All names, for messages.
    pub fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    /// As the state has it. A number that no wiring has counts as [`Wiring::OfModel`].
    pub fn from_state(number: u32) -> Self {
        NAMES.iter().map(|(_, wiring)| *wiring).find(|wiring| *wiring as u32 == number).unwrap_or_default()
    }

    /// Does it need NVLinks that this model lacks?
    pub fn lacks_links_of(self, model: usize) -> bool {
        let needs = matches!(self, Self::NvSwitch | Self::CubeMesh | Self::Bridge);
        needs && nvlinks(&MODELS[model]).0 == 0
    }
}

/// The GPUs of a machine as one of them sees them.
#[derive(Debug, Clone)]
pub struct Wired {
    wiring: Wiring,
    /// Models by index of the GPU, as positions in [`MODELS`].
    models: Vec<usize>,
}

impl Wired {
    /// The GPUs of these models with this wiring.
    pub fn new(wiring: Wiring, models: Vec<usize>) -> Self {
        Self { wiring, models }
    }

    /// The wiring of two GPUs.
    fn between(&self, one: usize, other: usize) -> Wiring {
        let (one, other) = (self.models[one], self.models[other]);
        match self.wiring {
            Wiring::OfModel if one == other => match nvlinks(&MODELS[one]).1 {
                // A bridge is bought separately.
                Wiring::Bridge => Wiring::OfModel,
                wiring => wiring,
            },
            wiring => wiring,
        }
    }

    fn socket(&self, gpu: usize) -> usize {
        gpu / self.models.len().div_ceil(2).max(4)
    }

    /// The way between two GPUs over PCIe; `None` if the driver does not report it.
    pub fn ancestor(&self, one: usize, other: usize) -> Option<Ancestor> {
        Some(match self.between(one, other) {
            Wiring::Unknown => return None,
            _ if one == other => Ancestor::Internal,
            Wiring::OfModel => Ancestor::System,
            Wiring::CubeMesh | Wiring::Pcie | Wiring::Bridge if one / 2 == other / 2 => Ancestor::Single,
            _ if self.socket(one) == self.socket(other) => Ancestor::Node,
            _ => Ancestor::System,
        })
    }

    /// The other end of each NVLink of a GPU, by number of the link; empty if the driver reports none.
    pub fn links(&self, gpu: usize) -> Vec<LinkEnd> {
        let of_model = nvlinks(&MODELS[self.models[gpu]]).0;
        let exists = |other: usize| other < self.models.len() && self.between(gpu, other) != Wiring::OfModel;
        let end = |other: usize| if exists(other) { LinkEnd::Gpu(other) } else { LinkEnd::Nothing };
        match self.between(gpu, gpu) {
            Wiring::Unknown | Wiring::Pcie => Vec::new(),
            Wiring::OfModel => vec![LinkEnd::Nothing; of_model],
            Wiring::NvSwitch => vec![LinkEnd::Switch; of_model],
            Wiring::Bridge => vec![end(gpu ^ 1); of_model.min(12)],
            Wiring::CubeMesh => {
                let first = gpu - gpu % MESH.len();
                let peers = MESH[gpu % MESH.len()].iter().enumerate();
                peers.flat_map(|(at, links)| std::iter::repeat_n(end(first + at), *links)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::find;

    fn wired(wiring: Wiring, key: &str, count: usize) -> Wired {
        Wired::new(wiring, vec![find(key).unwrap(); count])
    }

    fn nvlinks_between(wired: &Wired, one: usize, other: usize) -> usize {
        wired.links(one).iter().filter(|end| **end == LinkEnd::Gpu(other)).count()
    }

    #[test]
    fn both_ends_have_the_same_links() {
        for wired in [
            wired(Wiring::OfModel, "V100-16GB", 8),
            wired(Wiring::CubeMesh, "A100-40GB", 5),
            wired(Wiring::Bridge, "A40-48GB", 7),
        ] {
            let count = wired.models.len();
            for (one, other) in (0..count).flat_map(|one| (0..count).map(move |other| (one, other))) {
                assert_eq!(nvlinks_between(&wired, one, other), nvlinks_between(&wired, other, one));
                assert_eq!(wired.ancestor(one, other), wired.ancestor(other, one));
            }
        }
    }

    #[test]
    fn a_mesh_uses_six_links_of_each_gpu() {
        let mesh = wired(Wiring::OfModel, "V100-32GB", 8);
        for gpu in 0..8 {
            assert_eq!(mesh.links(gpu).len(), 6);
            assert!(!mesh.links(gpu).contains(&LinkEnd::Nothing));
        }
        // Of the missing half, the links are there and lead nowhere.
        let half = wired(Wiring::OfModel, "V100-32GB", 4);
        assert_eq!(half.links(0).iter().filter(|end| **end == LinkEnd::Nothing).count(), 2);
    }

    #[test]
    fn models_have_the_wiring_of_their_machines() {
        let h100 = wired(Wiring::OfModel, "H100-80GB", 8);
        assert_eq!(h100.links(3), [LinkEnd::Switch; 18]);
        assert_eq!(
            (h100.ancestor(0, 3), h100.ancestor(3, 4)),
            (Some(Ancestor::Node), Some(Ancestor::System))
        );
        let t4 = wired(Wiring::OfModel, "T4-16GB", 4);
        assert_eq!((t4.links(0), t4.ancestor(0, 1)), (Vec::new(), Some(Ancestor::System)));
        let a40 = wired(Wiring::OfModel, "A40-48GB", 2);
        assert_eq!(a40.links(0), [LinkEnd::Nothing; 4], "without a bridge");
        let mixed = Wired::new(Wiring::OfModel, vec![find("A100-40GB").unwrap(), find("T4-16GB").unwrap()]);
        assert_eq!(mixed.ancestor(0, 1), Some(Ancestor::System));
    }

    #[test]
    fn names_and_numbers_of_the_state_lead_back() {
        for (name, wiring) in NAMES {
            assert_eq!(Wiring::named(name), Some(wiring));
            assert_eq!(wiring.name(), Some(name));
            assert_eq!(Wiring::from_state(wiring as u32), wiring);
        }
        assert_eq!(Wiring::from_state(99), Wiring::OfModel);
        assert_eq!((Wiring::OfModel as u32, Wiring::OfModel.name()), (0, None));
    }
}
