//! The devices that a process sees: `CUDA_VISIBLE_DEVICES`.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::GRANULE_BYTES;
use crate::identity::{DeviceUuid, gpu_uuid, gpu_uuid_bytes};
use crate::mig::{mig_uuid, mig_uuid_bytes, multiprocessors, nodes};
use crate::models::Model;
use crate::state::{SimGpu, StateGuard, WHOLE_GPU};

/// A device as this process sees it: a GPU or a MIG device.
#[derive(Debug, Clone)]
pub(super) struct Visible {
    /// Index of the GPU in the machine; another one after the process was restored there.
    at: Arc<AtomicUsize>,
    /// The memory it uses.
    pub(super) domain: usize,
    pub(super) model: &'static Model,
    pub(super) name: String,
    /// Of the MIG device; none for a GPU.
    mig_uuid: Option<DeviceUuid>,
    pub(super) total_bytes: u64,
    /// It reads pageable host memory by itself.
    pub(super) hmm: bool,
    pub(super) multiprocessors: u32,
}

impl Visible {
    /// Index of the GPU in the machine.
    pub(super) fn index(&self) -> usize {
        self.at.load(Relaxed)
    }

    /// It is this GPU of the machine from now on.
    pub(super) fn is_at(&self, index: usize) {
        self.at.store(index, Relaxed);
    }

    /// The UUID of the GPU.
    pub(super) fn gpu_uuid(&self) -> DeviceUuid {
        gpu_uuid_bytes(self.index(), self.model)
    }

    /// The UUID of the device: the GPU's, or the MIG device's own.
    pub(super) fn uuid(&self) -> DeviceUuid {
        self.mig_uuid.unwrap_or_else(|| self.gpu_uuid())
    }

    /// Threads that can be resident at once: each has a stack.
    pub(super) fn resident_threads(&self) -> u64 {
        u64::from(self.multiprocessors) * self.model.threads_per_multiprocessor as u64
    }
}

/// The devices that `setting` selects, in its order. As with the real driver, the list ends at the first entry that names
/// no device, a device named twice leaves none, and without a setting MIG devices are visible only if there is nothing else,
/// and then one.
pub(super) fn select(state: &StateGuard, setting: Option<&str>) -> Vec<Visible> {
    let there = state.accessible();
    let Some(setting) = setting else {
        let gpus: Vec<Visible> = there.iter().filter_map(|&i| whole(state, i)).collect();
        let first_mig = || there.iter().find_map(|&i| mig_devices(state, i).into_iter().next());
        return if gpus.is_empty() { first_mig().into_iter().collect() } else { gpus };
    };
    let mut selected: Vec<Visible> = Vec::new();
    for entry in setting.split(',').map(str::trim) {
        let Some(device) = resolve(state, &there, entry) else { break };
        if selected.iter().any(|d| d.uuid() == device.uuid()) {
            return Vec::new();
        }
        selected.push(device);
    }
    selected
}

/// `there` are the GPUs that this process can open; a number counts among them.
fn resolve(state: &StateGuard, there: &[usize], entry: &str) -> Option<Visible> {
    // The number of a GPU in MIG mode means its first MIG device.
    if let Ok(number) = entry.parse::<usize>() {
        let index = *there.get(number)?;
        return whole(state, index).or_else(|| mig_devices(state, index).into_iter().next());
    }
    if entry.starts_with("MIG-") {
        return there.iter().flat_map(|&i| mig_devices(state, i)).find(|d| names_mig_device(state, d, entry));
    }
    // A prefix will do if it fits one GPU only.
    let wanted = entry.strip_prefix("GPU-").filter(|rest| !rest.is_empty())?.to_ascii_lowercase();
    let fits = |&i: &usize| gpu_uuid(i, state.devices()[i].model())["GPU-".len()..].starts_with(&wanted);
    let mut fitting = there.iter().copied().filter(fits);
    let index = fitting.next()?;
    if fitting.next().is_some() { None } else { whole(state, index) }
}

/// Either notation: `MIG-<uuid>`, `MIG-GPU-<uuid>/<gi>/<ci>`.
fn names_mig_device(state: &StateGuard, device: &Visible, entry: &str) -> bool {
    let gpu = &state.devices()[device.index()];
    gpu.mig_devices().into_iter().any(|(gi, ci, ..)| {
        let new = mig_uuid(device.index(), gpu, gi, ci);
        let old = format!("MIG-{}/{gi}/{ci}", gpu_uuid(device.index(), device.model));
        let same = mig_uuid_bytes(device.index(), gpu, gi, ci) == device.uuid();
        same && (entry.eq_ignore_ascii_case(&new) || entry.eq_ignore_ascii_case(&old))
    })
}

/// A GPU used as a whole; one in MIG mode cannot be.
fn whole(state: &StateGuard, index: usize) -> Option<Visible> {
    let device = state.devices().get(index)?;
    if device.mig_enabled != 0 {
        return None;
    }
    let model = device.model();
    Some(Visible {
        at: Arc::new(index.into()),
        domain: WHOLE_GPU,
        model,
        name: model.name.to_owned(),
        mig_uuid: None,
        total_bytes: model.memory_bytes() - device.reserved_bytes(),
        hmm: device.hmm != 0,
        multiprocessors: model.multiprocessors as u32,
    })
}

/// The MIG devices of a GPU that this process can open.
fn mig_devices(state: &StateGuard, index: usize) -> Vec<Visible> {
    let Some(device) = state.devices().get(index) else { return Vec::new() };
    let model = device.model();
    let visible = |(gi, ci, profile, compute): (
        usize,
        usize,
        &crate::mig::GpuInstanceProfile,
        &crate::mig::ComputeInstanceProfile,
    )| {
        let domain = SimGpu::domain_of(gi);
        Visible {
            at: Arc::new(index.into()),
            domain,
            model,
            name: format!("{} MIG {}", model.name, compute.name),
            mig_uuid: Some(mig_uuid_bytes(index, device, gi, ci)),
            total_bytes: u64::from(device.capacity_granules[domain]) * GRANULE_BYTES,
            hmm: device.hmm != 0,
            multiprocessors: multiprocessors(model, profile) * compute.slices / profile.compute_slices,
        }
    };
    let can_open = |gi: usize, ci: usize| nodes::can_open(state.site(), index, gi, ci);
    device.mig_devices().into_iter().filter(|(gi, ci, ..)| can_open(*gi, *ci)).map(visible).collect()
}
