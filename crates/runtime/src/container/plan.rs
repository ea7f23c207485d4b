//! The whole container of a task: its own options, and what cantle adds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use bollard::models::{ContainerCreateBody, DeviceMapping, HostConfig, Mount, MountTmpfsOptions, MountType};
use cantle_model::TaskId;
use serde::{Deserialize, Serialize};

use super::AdmissionError;
use super::admission::{Admitted, Protected};
use super::config::{self, Extra};
use crate::namespace::{CANTLE_DIR, REAL_DIR, SLICE_DIR};
use crate::{Backend, TaskSpec, environment};

/// Which container a task runs in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The task, for the container's labels.
    pub task: TaskId,
    /// The image.
    pub image: String,
    /// The task's own `docker run` options.
    pub options: Vec<String>,
    /// The GPUs' device nodes on the machine; none for simulated GPUs.
    pub devices: Vec<PathBuf>,
    /// More files of the driver, besides libcuda and libnvidia-ml: libraries, which go beside them, and programs.
    pub driver_files: Vec<PathBuf>,
}

pub(super) const LABEL_LEASE: &str = "cantle.dev/lease";
pub(super) const LABEL_TASK: &str = "cantle.dev/task";
/// The container's copy of the simulated GPUs' folder.
const SIM_DIR: &str = "/run/cantle/sim";

/// Where the loader of an image looks by itself: Debian's and Red Hat's folder.
fn library_dirs() -> [String; 2] {
    [format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH), "/usr/lib64".to_owned()]
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) body: ContainerCreateBody,
    pub(super) extra: Extra,
    /// The command as docker's own client would have it, and what was left out of the task's options.
    pub(super) log_head: String,
}

/// What the task's mounts must keep away from.
pub(super) fn protected(spec: &TaskSpec) -> Protected {
    let confinement = &spec.confinement;
    let libraries = &confinement.libraries;
    let mut sources = vec![confinement.shim_dir.clone(), confinement.slice_dir.clone(), "/run/cantle".into()];
    sources.extend(confinement.sim_dir.clone());
    for library in [&libraries.cuda, &libraries.nvml] {
        sources.push(library.real.clone());
        sources.extend(library.names.iter().cloned());
    }
    let mut targets = vec![PathBuf::from("/run/cantle")];
    targets.extend(mounts(spec, &[]).iter().filter_map(|mount| mount.target.as_ref().map(PathBuf::from)));
    Protected { sources, targets }
}

pub(super) fn plan(
    spec: &TaskSpec,
    container: &ContainerSpec,
    admitted: &Admitted,
) -> Result<Plan, AdmissionError> {
    let mut body = ContainerCreateBody {
        image: Some(container.image.clone()),
        cmd: Some(spec.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect()),
        host_config: Some(HostConfig::default()),
        ..Default::default()
    };
    let mut extra = Extra::default();
    config::apply(&admitted.options, &mut body, &mut extra)?;
    let variables = variables(spec);
    body.env.get_or_insert_default().extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
    let labels = [(LABEL_LEASE, spec.lease.0.as_str()), (LABEL_TASK, container.task.0.as_str())];
    body.labels
        .get_or_insert_default()
        .extend(labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let ours = mounts(spec, &container.driver_files);
    let host = body.host_config.get_or_insert_default();
    host.mounts.get_or_insert_default().extend(ours.iter().cloned());
    host.devices.get_or_insert_default().extend(container.devices.iter().map(|path| device(path)));
    let name = name_of(&spec.lease.0);
    let log_head = log_head(&name, container, admitted, &variables, &ours, spec);
    Ok(Plan { name, body, extra, log_head })
}

/// One container per lease: a second one can't be created, even if the engine's answer to the first got lost.
pub(super) fn name_of(lease: &str) -> String {
    format!("cantle-{lease}")
}

pub(super) fn variables(spec: &TaskSpec) -> BTreeMap<String, String> {
    let mut inside = spec.clone();
    // The machine's paths mean nothing in there, and nothing is inherited from the agent.
    inside.confinement.sim_dir = None;
    let variables = environment::for_task(&inside, &Backend::Container, |_| None);
    let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
    let mut variables: BTreeMap<String, String> =
        variables.into_iter().map(|(name, value)| (name, text(value))).collect();
    // An engine whose default runtime is NVIDIA's would add all GPUs by itself.
    variables.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned());
    if spec.confinement.sim_dir.is_some() {
        variables.insert("CANTLE_SIM_DIR".to_owned(), SIM_DIR.to_owned());
    }
    variables
}

/// Everything that cantle mounts. The real libraries lie where the shim is linked against them; the shim has every name
/// under which a program may open them.
pub(super) fn mounts(spec: &TaskSpec, driver_files: &[PathBuf]) -> Vec<Mount> {
    if spec.slices.is_empty() {
        return Vec::new();
    }
    let confinement = &spec.confinement;
    let libraries = &confinement.libraries;
    let mut mounts = vec![
        own_folder(),
        bind(&libraries.cuda.real, format!("{REAL_DIR}/libcuda.so.1"), true),
        bind(&libraries.nvml.real, format!("{REAL_DIR}/libnvidia-ml.so.1"), true),
        bind(&confinement.slice_dir.join("limits"), format!("{SLICE_DIR}/limits"), true),
        bind(&confinement.slice_dir.join("usage"), format!("{SLICE_DIR}/usage"), false),
    ];
    if let Some(sim_dir) = &confinement.sim_dir {
        mounts.push(bind(sim_dir, SIM_DIR.to_owned(), false));
    }
    for dir in library_dirs() {
        for (library, stem) in [(&libraries.cuda, "libcuda.so"), (&libraries.nvml, "libnvidia-ml.so")] {
            let shim = confinement.shim_dir.join(format!("{stem}.1"));
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
        mounts.push(bind(file, format!("/usr/bin/{name}"), true));
    }
    mounts
}

fn named(files: &[PathBuf]) -> impl Iterator<Item = (&PathBuf, String)> {
    files.iter().filter_map(|file| Some((file, file.file_name()?.to_string_lossy().into_owned())))
}

/// A mount of its own, so that it can't be moved away and replaced, and takes no more files.
fn own_folder() -> Mount {
    Mount {
        typ: Some(MountType::TMPFS),
        target: Some(CANTLE_DIR.to_owned()),
        read_only: Some(true),
        tmpfs_options: Some(MountTmpfsOptions {
            size_bytes: Some(64 << 10),
            mode: Some(0o755),
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

fn device(path: &Path) -> DeviceMapping {
    let path = path.display().to_string();
    DeviceMapping {
        path_on_host: Some(path.clone()),
        path_in_container: Some(path),
        cgroup_permissions: Some("rw".to_owned()),
    }
}

fn log_head(
    name: &str,
    container: &ContainerSpec,
    admitted: &Admitted,
    variables: &BTreeMap<String, String>,
    mounts: &[Mount],
    spec: &TaskSpec,
) -> String {
    let mut words = vec!["docker".to_owned(), "run".to_owned(), format!("--name={name}")];
    for given in &admitted.options {
        let value = if given.value.is_empty() { String::new() } else { format!("={}", given.value) };
        words.push(format!("--{}{value}", given.name));
    }
    words.extend(variables.iter().map(|(name, value)| format!("--env={name}={}", shown(name, value))));
    words.extend(mounts.iter().map(mount_option));
    words.extend(container.devices.iter().map(|device| format!("--device={}", device.display())));
    words.push(format!("--label={LABEL_LEASE}={}", spec.lease));
    words.push(format!("--label={LABEL_TASK}={}", container.task));
    words.push(container.image.clone());
    words.extend(spec.argv.iter().map(|word| word.to_string_lossy().into_owned()));
    let mut text =
        format!("cantle: {}\n", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    for note in &admitted.notes {
        // Writing to a string can't fail.
        let _ = writeln!(text, "cantle: {note}");
    }
    text
}

/// A task's log is read by more people than may know its keys.
fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    let is_secret = ["SECRET", "TOKEN", "PASSWORD", "_KEY"].iter().any(|word| name.contains(word));
    if is_secret { "***" } else { value }
}

/// The mount as an option of docker's own client.
pub(super) fn mount_option(mount: &Mount) -> String {
    let target = mount.target.as_deref().unwrap_or_default();
    let what = match mount.source.as_deref() {
        Some(source) => format!("type=bind,source={source},target={target}"),
        None => format!("type=tmpfs,target={target},tmpfs-mode=0755,tmpfs-size=65536"),
    };
    let read_only = if mount.read_only == Some(true) { ",readonly" } else { "" };
    format!("--mount={what}{read_only}")
}

/// As a shell would need it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn the_logged_command_can_be_pasted() {
        assert_eq!(quoted("--env=A=1"), "--env=A=1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
