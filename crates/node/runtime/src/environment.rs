//! The environment variables of a task.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use crate::{Backend, TaskSpec, TaskUser};

/// Names the task's lease.
pub(crate) const SLICE: &str = "CANTLE_SLICE";

/// The variables that cantle sets, given those the task has already. They win over the task's own, but none of them
/// has an effect on enforcement.
pub(crate) fn for_task(
    spec: &TaskSpec,
    backend: &Backend,
    inherited: impl Fn(&str) -> Option<OsString>,
) -> BTreeMap<String, OsString> {
    let mut vars = BTreeMap::new();
    // A container has a user database and directories of its own.
    let user = spec.user.as_ref().filter(|_| *backend != Backend::Container);
    for (name, value) in user.into_iter().flat_map(TaskUser::variables) {
        vars.insert(name.to_owned(), value);
    }
    vars.extend(spec.env.clone());
    let mut set = |name: &str, value: OsString| drop(vars.insert(name.into(), value));
    let devices: Vec<&str> =
        spec.slices.iter().map(|s| s.mig.as_ref().map_or(s.gpu.0.as_str(), |mig| &mig.uuid)).collect();
    set("CUDA_VISIBLE_DEVICES", devices.join(",").into());
    // ClearML's programs know "none"; an empty value means "leave it to me".
    let visible = if devices.is_empty() { "none".to_owned() } else { devices.join(",") };
    set("NVIDIA_VISIBLE_DEVICES", visible.into());
    set("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into());
    for (name, value) in spec.confinement.direct.iter().flat_map(|direct| &direct.variables) {
        set(name, value.into());
    }
    set(SLICE, spec.lease.0.clone().into());
    if let Some(limit) = spec.slices.iter().map(|slice| slice.memory_limit_bytes).min() {
        set("GPU_MEMORY_LIMIT", limit.to_string().into());
    }
    let confinement = &spec.confinement;
    if let Backend::Preload { .. } = backend {
        let library = confinement.shim_dir.join("libcantle-preload.so");
        let given = spec.env.get("LD_PRELOAD").cloned();
        set("LD_PRELOAD", in_front(&library, given.or_else(|| inherited("LD_PRELOAD"))));
        set("CANTLE_SLICE_DIR", confinement.slice_dir.clone().into());
    }
    vars
}

fn in_front(first: &Path, rest: Option<OsString>) -> OsString {
    let mut list = first.as_os_str().to_owned();
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}
