//! Which devices a process sees: `CUDA_VISIBLE_DEVICES`.

use crate::identity::{Uuid, gpu_uuid, gpu_uuid_bytes};
use crate::models::Model;
use crate::state::{State, WHOLE_GPU};

/// A device as this process sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visible {
    /// Index in the machine.
    pub(super) index: usize,
    /// The memory it uses.
    pub(super) domain: usize,
    pub(super) model: &'static Model,
    pub(super) uuid: Uuid,
    pub(super) total_bytes: u64,
}

/// The devices that `setting` selects, in its order. As with the real driver, the list ends at the first entry that names
/// no device, and a device named twice leaves none.
pub(super) fn select(state: &State, setting: Option<&str>) -> Vec<Visible> {
    let count = state.devices().len();
    let Some(setting) = setting else { return (0..count).filter_map(|i| whole(state, i)).collect() };
    let mut selected: Vec<Visible> = Vec::new();
    for entry in setting.split(',').map(str::trim) {
        let Some(device) = resolve(state, entry) else { break };
        if selected.iter().any(|d| d.uuid == device.uuid) {
            return Vec::new();
        }
        selected.push(device);
    }
    selected
}

fn resolve(state: &State, entry: &str) -> Option<Visible> {
    if let Ok(index) = entry.parse::<usize>() {
        return whole(state, index);
    }
    if !entry.starts_with("GPU-") || entry.len() <= "GPU-".len() {
        return None;
    }
    // A prefix will do if it fits one GPU only.
    let mut fitting = (0..state.devices().len()).filter(|&i| {
        gpu_uuid(i, state.devices()[i].model())
            .starts_with(&entry.to_ascii_lowercase().replacen("gpu", "GPU", 1))
    });
    let index = fitting.next()?;
    if fitting.next().is_some() { None } else { whole(state, index) }
}

/// A GPU used as a whole; one in MIG mode can't be.
fn whole(state: &State, index: usize) -> Option<Visible> {
    let device = state.devices().get(index)?;
    if device.mig_enabled != 0 {
        return None;
    }
    let model = device.model();
    let uuid = gpu_uuid_bytes(index, model);
    Some(Visible { index, domain: WHOLE_GPU, model, uuid, total_bytes: model.memory_bytes() })
}
