//! The mounts and variables that cantle adds to a container: the slice, and the driver behind its filter.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bollard::models::{DeviceMapping, Mount, MountTmpfsOptions, MountType};

use super::copies::DriverCopy;
use crate::cdi::{self, DeviceNode, Edits};
use crate::sandbox::{CANTLE_DIR, REAL_DIR, SLICE_DIR};
use crate::{Backend, TaskSpec, environment};

/// Size and mode of the container's `/run/cantle`, which holds mount points and nothing else.
const DIRECTORY_BYTES: i64 = 64 << 10;
const DIRECTORY_MODE: u32 = 0o755;
/// No new device nodes are created.
const DEVICE_PERMISSIONS: &str = "rw";

/// The default library directories of the loader in an image: Debian's and Red Hat's.
pub(super) fn library_dirs() -> [String; 2] {
    [format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH), "/usr/lib64".to_owned()]
}

/// All of it as edits of a CDI device: for engines that take devices by name, and for Kubernetes. The task's own variables are
/// not among them: a device's description is a file that others may read, and variables can be secrets.
#[must_use]
pub fn slice_edits(spec: &TaskSpec, devices: &[PathBuf], driver_files: &[PathBuf]) -> Edits {
    edits_over(spec, devices, driver_files, &BTreeSet::new())
}

/// As [`slice_edits`], for an image with copies of the driver's libraries.
pub(super) fn edits_over(
    spec: &TaskSpec,
    devices: &[PathBuf],
    driver_files: &[PathBuf],
    copies: &BTreeSet<DriverCopy>,
) -> Edits {
    let node = |path: &PathBuf| DeviceNode { path: path.clone(), permissions: DEVICE_PERMISSIONS.to_owned() };
    Edits {
        env: variables(&TaskSpec { env: BTreeMap::new(), ..spec.clone() })
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        device_nodes: devices.iter().map(node).collect(),
        mounts: mounts(spec, driver_files, copies).into_iter().map(cdi_mount).collect(),
        hooks: Vec::new(),
    }
}

fn cdi_mount(mount: Mount) -> cdi::Mount {
    let (kind, more) = match &mount.source {
        Some(_) => (cdi::BIND, vec![cdi::BIND.to_owned()]),
        None => ("tmpfs", vec![format!("size={DIRECTORY_BYTES}"), format!("mode={DIRECTORY_MODE:04o}")]),
    };
    let read_only = mount.read_only == Some(true);
    let common = ["nosuid", "nodev"].into_iter().chain(read_only.then_some("ro"));
    cdi::Mount {
        host_path: mount.source.unwrap_or_else(|| kind.to_owned()),
        container_path: mount.target.unwrap_or_default(),
        kind: kind.to_owned(),
        options: common.map(str::to_owned).chain(more).collect(),
    }
}

pub(super) fn variables(spec: &TaskSpec) -> BTreeMap<String, String> {
    // Nothing is inherited from the agent.
    let variables = environment::for_task(spec, &Backend::Container, |_| None);
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    let mut variables: BTreeMap<String, String> =
        variables.into_iter().map(|(name, value)| (name, text(value))).collect();
    // An engine whose default runtime is NVIDIA's would add all GPUs by itself.
    variables.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
    variables
}

/// Everything that cantle mounts. The real libraries are where the shim is linked against them; the shim has every name
/// under which a program may open them, and is in the place of the image's own copies.
pub(super) fn mounts(spec: &TaskSpec, driver_files: &[PathBuf], copies: &BTreeSet<DriverCopy>) -> Vec<Mount> {
    if spec.slices.is_empty() {
        return Vec::new();
    }
    let confinement = &spec.confinement;
    let libraries = &confinement.libraries;
    let mut mounts = vec![
        own_directory(),
        bind(&libraries.cuda.real, format!("{REAL_DIR}/libcuda.so.1"), true),
        bind(&libraries.nvml.real, format!("{REAL_DIR}/libnvidia-ml.so.1"), true),
    ];
    let slice = confinement.slice_files().into_iter();
    mounts.extend(slice.map(|(name, is_read_only)| {
        bind(&confinement.slice_dir.join(name), format!("{SLICE_DIR}/{name}"), is_read_only)
    }));
    for dir in library_dirs() {
        for (library, stem) in [(&libraries.cuda, "libcuda.so"), (&libraries.nvml, "libnvidia-ml.so")] {
            let shim = confinement.filter(stem);
            let mut names = vec![stem.to_owned(), format!("{stem}.1")];
            let file = library.real.file_name().map(|name| name.to_string_lossy().into_owned());
            names.extend(file.filter(|name| name.starts_with(stem)));
            names.sort();
            names.dedup();
            mounts.extend(names.iter().map(|name| bind(&shim, format!("{dir}/{name}"), true)));
        }
        for (file, name) in named(driver_files).filter(|(_, name)| name.contains(".so")) {
            mounts.push(bind(file, format!("{dir}/{name}"), true));
        }
    }
    for (file, name) in named(driver_files).filter(|(_, name)| !name.contains(".so")) {
        mounts.push(bind(file, format!("{}/{name}", directory_of(&name)), true));
    }
    let taken: BTreeSet<String> = mounts.iter().filter_map(|mount| mount.target.clone()).collect();
    for copy in copies.iter().filter(|copy| !taken.contains(&copy.path)) {
        mounts.push(bind(&confinement.filter(copy.stem), copy.path.clone(), true));
    }
    mounts
}

/// The directories in which the driver's files other than libraries are searched. By its name: the file may be a copy, in a
/// directory of cantle's.
fn directory_of(name: &str) -> &'static str {
    match name {
        "nvidia_icd.json" => "/usr/share/vulkan/icd.d",
        "nvidia_layers.json" => "/usr/share/vulkan/implicit_layer.d",
        "10_nvidia.json" => "/usr/share/glvnd/egl_vendor.d",
        "nvoptix.bin" => "/usr/share/nvidia",
        // Of Windows, for its subsystem for Linux.
        "drivers" => "/usr/lib/wsl",
        _ => "/usr/bin",
    }
}

fn named(files: &[PathBuf]) -> impl Iterator<Item = (&PathBuf, String)> {
    files.iter().filter_map(|file| Some((file, file.file_name()?.to_string_lossy().into_owned())))
}

/// A mount of its own, so that it cannot be moved away and replaced, and takes no more files.
fn own_directory() -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(CANTLE_DIR.to_owned()),
        read_only: Some(true),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(DIRECTORY_BYTES),
            mode: Some(DIRECTORY_MODE.into()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn bind(source: &Path, target: String, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target),
        read_only: Some(read_only),
        ..Default::default()
    }
}

pub(super) fn device(path: &Path) -> DeviceMapping {
    let path = path.display().to_string();
    DeviceMapping {
        path_on_host: Some(path.clone()),
        path_in_container: Some(path),
        cgroup_permissions: Some(DEVICE_PERMISSIONS.to_owned()),
    }
}

/// The mount as an option of docker's own client.
pub(super) fn mount_option(mount: &Mount) -> String {
    let target = mount.target.as_deref().unwrap_or_default();
    let what = match mount.source.as_deref() {
        Some(source) => format!("type=bind,source={source},target={target}"),
        None => {
            format!("type=tmpfs,target={target},tmpfs-mode={DIRECTORY_MODE:04o},tmpfs-size={DIRECTORY_BYTES}")
        }
    };
    let read_only = if mount.read_only == Some(true) { ",readonly" } else { "" };
    format!("--mount={what}{read_only}")
}
