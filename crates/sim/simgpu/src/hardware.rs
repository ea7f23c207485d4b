//! The facts that an installed driver shows outside its libraries (in `/proc` and `/dev`), as JSON for
//! `cantle_machine`.

use crate::identity::{gpu_uuid, pci_bus};
use crate::mig::nodes;
use crate::state::{Sim, StateGuard};

/// Versions, GPUs and the device nodes of MIG instances.
pub(crate) fn hardware_json(sim: &'static Sim) -> String {
    let state = sim.lock();
    let count = state.devices().len();
    let gpus: Vec<String> = (0..count).map(|index| gpu_json(&state, index)).collect();
    let has_mig = state.devices().iter().any(|device| device.model().mig.is_some());
    let (names, minors) = if has_mig { nodes::all(count) } else { nodes::all(0) };
    let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        r#"{{"driver":"{}","cuda":{},"gpus":[{}],"capability_nodes":[{}],"mig_minors":"{}"}}"#,
        state.driver(),
        state.cuda_version(),
        gpus.join(","),
        names.join(","),
        minors.replace('\n', "\\n"),
    )
}

fn gpu_json(state: &StateGuard, index: usize) -> String {
    let model = state.devices()[index].model();
    let (uuid, bus) = (gpu_uuid(index, model), pci_bus(index));
    format!(r#"{{"model":"{}","uuid":"{uuid}","pci":"0000:{bus:02x}:00.0"}}"#, model.name)
}
