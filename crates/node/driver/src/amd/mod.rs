//! GPUs of AMD, by what the kernel's driver (`amdgpu`, with its compute interface kfd) shows in files. No library of AMD's is loaded.
//!
//! There is no filter for these GPUs: the kernel's controller of device memory enforces the limits of tasks, and a task finds the device
//! nodes of its own GPUs only. No card of AMD has seen this code; it ran on trees of plain files.

mod card;
mod clients;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cantle_mig::Table;
use cantle_model::{DirectAccess, Gpu, GpuUuid, LimitBackend, Slice};

use crate::dmem::Dmem;
use crate::{
    Activation, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, GroupMemory, Libraries,
    LimitSupport, Load, Location, LostGpu, Memory, Mig, NativeLimit, ProcessMemory, Result, Versions, Xid,
};
use card::Card;

/// Every program needs it in addition to the node of its GPU.
const KFD: &str = "dev/kfd";
/// The nodes of GPUs.
const NODES: &str = "dev/dri";

/// The GPUs of AMD on this machine.
pub(crate) struct AmdDriver {
    /// The directory that has `dev`, `proc` and `sys`.
    root: PathBuf,
    cards: Vec<Card>,
    lost: Vec<LostGpu>,
}

impl AmdDriver {
    /// `None` on a machine without such GPUs.
    pub(crate) fn open(root: &Path) -> Option<Self> {
        let (mut cards, mut lost) = (Vec::new(), Vec::new());
        for (index, node) in card::compute_nodes(root).into_iter().enumerate() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            match Card::read(root, index, &node) {
                Ok(card) => cards.push(card),
                Err(why) => lost.push(LostGpu { index, why }),
            }
        }
        (!cards.is_empty() || !lost.is_empty()).then(|| Self { root: root.to_owned(), cards, lost })
    }

    fn card(&self, gpu: &GpuUuid) -> Result<&Card> {
        let found = self.cards.iter().find(|card| card.gpu.uuid == *gpu);
        found.ok_or_else(|| DriverError::NoSuchGpu(gpu.clone()))
    }

    fn node(&self, card: &Card) -> PathBuf {
        self.root.join(NODES).join(card.render_node())
    }

    /// The region of the GPU's memory in the kernel's controller.
    fn dmem(&self, gpu: &GpuUuid, group: &Path) -> std::result::Result<Dmem, String> {
        let card = self.card(gpu).map_err(|error| error.to_string())?;
        if self.cards.iter().filter(|other| other.pci == card.pci).count() > 1 {
            return Err(format!(
                "{} is partitioned, and the kernel counts the memory of all partitions together",
                card.pci
            ));
        }
        Dmem::of(&card.pci, group)
    }

    fn region(&self, gpu: &GpuUuid, group: &Path) -> Result<Dmem> {
        self.dmem(gpu, group).map_err(|why| DriverError::KernelFile { file: group.to_owned(), why })
    }
}

fn unsupported<T>(gpu: &GpuUuid, what: &'static str) -> Result<T> {
    Err(DriverError::Unsupported { gpu: gpu.clone(), what })
}

impl Driver for AmdDriver {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        Ok(self.cards.iter().map(|card| card.gpu.clone()).collect())
    }

    fn lost_gpus(&self) -> Vec<LostGpu> {
        self.lost.clone()
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        self.card(gpu)?.memory()
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        self.card(gpu)?.load()
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        Ok(clients::processes(&self.root.join("proc"), &self.card(gpu)?.pci))
    }

    fn busy_processes(&self, gpu: &GpuUuid, _since_us: u64) -> Result<Vec<u32>> {
        unsupported(gpu, "a list of busy processes")
    }

    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        self.card(gpu).map(|_| Vec::new())
    }

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        let card = self.card(gpu)?;
        Ok(Location { pci_bus_id: card.pci.clone(), minor: card.render_minor })
    }

    fn versions(&self) -> Versions {
        let release = |file: &str| fs::read_to_string(self.root.join(file)).ok();
        let own = release("sys/module/amdgpu/version").map(|text| format!("amdgpu {}", text.trim()));
        let kernels =
            || release("proc/sys/kernel/osrelease").map(|text| format!("amdgpu of Linux {}", text.trim()));
        let driver = own.or_else(kernels).unwrap_or_else(|| "amdgpu".to_owned());
        Versions { driver, cuda: String::new(), nvml: String::new() }
    }

    /// Nothing is charged for a context: the kernel counts all that a process has, and refuses at the limit.
    fn context_memory(&self, gpu: &GpuUuid, _device: &str) -> Result<ContextMemory> {
        self.card(gpu).map(|_| ContextMemory::default())
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        let mut devices = vec![self.root.join(KFD)];
        for slice in slices {
            devices.push(self.node(self.card(&slice.gpu)?));
        }
        Ok(ContainerParts { devices, files: Vec::new() })
    }

    fn native_limit(&self) -> &dyn NativeLimit {
        self
    }

    fn libraries(&self) -> Result<Libraries> {
        Ok(Libraries::default())
    }

    fn compute_units(&self, gpu: &GpuUuid) -> Result<u32> {
        Ok(self.card(gpu)?.compute_units)
    }

    fn direct_access(&self, slices: &[Slice], units: &[(u32, u32)]) -> Result<Option<DirectAccess>> {
        let cards = slices.iter().map(|slice| self.card(&slice.gpu)).collect::<Result<Vec<_>>>()?;
        let nodes = cards.iter().map(|card| self.node(card)).collect();
        let names: Vec<&str> = cards.iter().map(|card| card.runtime_name.as_str()).collect();
        // These count what the first variable has left.
        let ordinals: Vec<String> = (0..cards.len()).map(|ordinal| ordinal.to_string()).collect();
        let ordinals = ordinals.join(",");
        let ranges: Vec<String> = units.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        let mask = (!ranges.is_empty()).then(|| ("HSA_CU_MASK", format!("0:{}", ranges.join(","))));
        let variables = [
            ("ROCR_VISIBLE_DEVICES", names.join(",")),
            ("HIP_VISIBLE_DEVICES", ordinals.clone()),
            ("CUDA_VISIBLE_DEVICES", ordinals),
        ];
        Ok(Some(DirectAccess {
            nodes: BTreeMap::from([(self.root.join(NODES), nodes)]),
            variables: variables
                .into_iter()
                .chain(mask)
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }))
    }
}

impl NativeLimit for AmdDriver {
    fn probe(&self, gpu: &GpuUuid, group: &Path) -> LimitSupport {
        match self.dmem(gpu, group) {
            Ok(_) => LimitSupport::Supported(LimitBackend::Dmem),
            Err(why) => LimitSupport::Unsupported(why),
        }
    }

    fn set(&self, gpu: &GpuUuid, group: &Path, hard_bytes: u64) -> Result<()> {
        self.region(gpu, group)?.set(group, Some(hard_bytes))
    }

    fn clear(&self, gpu: &GpuUuid, group: &Path) -> Result<()> {
        self.region(gpu, group)?.set(group, None)
    }

    fn used(&self, gpu: &GpuUuid, group: &Path) -> Result<GroupMemory> {
        self.region(gpu, group)?.used(group)
    }

    fn doors(&self, gpu: &GpuUuid, group: &Path) -> Result<Vec<PathBuf>> {
        Ok(self.region(gpu, group)?.door(group)?.into_iter().collect())
    }
}

/// These GPUs have no MIG.
impl Mig for AmdDriver {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        self.card(gpu).map(|_| None)
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        self.card(gpu).map(|_| Vec::new())
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        self.card(gpu).map(|_| Vec::new())
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, _profile: u32, _start: u32, _size: u32) -> Result<u32> {
        unsupported(gpu, "MIG")
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, _instance: u32) -> Result<String> {
        unsupported(gpu, "MIG")
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, _instance: u32) -> Result<()> {
        unsupported(gpu, "MIG")
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, _instance: u32) -> Result<()> {
        unsupported(gpu, "MIG")
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        self.card(gpu).map(|_| false)
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, _on: bool) -> Result<Activation> {
        unsupported(gpu, "MIG")
    }
}
