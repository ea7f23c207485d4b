//! Plans the whole container of a task: its own options, and cantle's additions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use bollard::models::{ContainerCreateBody, DeviceRequest, HostConfig};
use cantle_model::TaskId;
use serde::{Deserialize, Serialize};

use super::AdmissionError;
use super::admission::{Admitted, Protected};
use super::config::{self, Extra};
use super::contents::{device, mount_option, mounts, variables};
use super::copies::DriverCopy;
use crate::sandbox::CANTLE_DIR;
use crate::{Cgroup, TaskSpec, cdi};

/// The container of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// The task, for the container's labels.
    pub task: TaskId,
    /// The image.
    pub image: String,
    /// The task's own `docker run` options.
    pub options: Vec<String>,
    /// The GPUs' device nodes on the machine.
    pub devices: Vec<PathBuf>,
    /// More files of the driver than libcuda and libnvidia-ml: libraries, which go to the same directory, and programs.
    pub driver_files: Vec<PathBuf>,
}

pub(super) const LABEL_LEASE: &str = "cantle.dev/lease";
pub(super) const LABEL_TASK: &str = "cantle.dev/task";

/// The way in which a slice gets into the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectionMode {
    /// By mounts and device nodes that the container names itself.
    Mounts,
    /// As a device that the engine knows from a spec.
    Device,
}

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) body: ContainerCreateBody,
    pub(super) extra: Extra,
    /// The command as docker's own client would have it, and what was left out of the task's options.
    pub(super) log_head: String,
}

/// The paths that the task's mounts must not touch.
pub(super) fn protected(spec: &TaskSpec) -> Protected {
    let confinement = &spec.confinement;
    let libraries = &confinement.libraries;
    let mut sources = vec![confinement.shim_dir.clone(), confinement.slice_dir.clone(), CANTLE_DIR.into()];
    if !spec.slices.is_empty() {
        for library in [&libraries.cuda, &libraries.nvml] {
            sources.push(library.real.clone());
            sources.extend(library.names.iter().cloned());
        }
    }
    let mut targets = vec![PathBuf::from(CANTLE_DIR)];
    targets.extend(
        mounts(spec, &[], &BTreeSet::new())
            .iter()
            .filter_map(|mount| mount.target.as_ref().map(PathBuf::from)),
    );
    Protected { sources, targets }
}

pub(super) fn plan(
    spec: &TaskSpec,
    container: &ContainerSpec,
    admitted: &Admitted,
    mode: InjectionMode,
    copies: &BTreeSet<DriverCopy>,
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
    // Secrets are not in `variables`, which the log shows.
    let all = variables.iter().chain(&spec.secrets);
    body.env.get_or_insert_default().extend(all.map(|(name, value)| format!("{name}={value}")));
    let labels = [(LABEL_LEASE, spec.lease.0.as_str()), (LABEL_TASK, container.task.0.as_str())];
    body.labels
        .get_or_insert_default()
        .extend(labels.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let host = body.host_config.get_or_insert_default();
    host.cgroup_parent = spec.cgroup.as_ref().and_then(Cgroup::path_for_engine);
    let mut given: Vec<String> =
        host.cgroup_parent.iter().map(|path| format!("--cgroup-parent={path}")).collect();
    given.extend(match mode {
        InjectionMode::Mounts => by_mounts(spec, container, copies, host),
        InjectionMode::Device => by_device(spec, host),
    });
    let name = name_of(&spec.lease.0);
    let log_head = log_head(&name, container, admitted, &variables, given, spec);
    Ok(Plan { name, body, extra, log_head })
}

/// Gives the options of docker's client that do the same.
fn by_mounts(
    spec: &TaskSpec,
    container: &ContainerSpec,
    copies: &BTreeSet<DriverCopy>,
    host: &mut HostConfig,
) -> Vec<String> {
    let ours = mounts(spec, &container.driver_files, copies);
    let mut words: Vec<String> = ours.iter().map(mount_option).collect();
    words.extend(container.devices.iter().map(|device| format!("--device={}", device.display())));
    host.mounts.get_or_insert_default().extend(ours);
    host.devices.get_or_insert_default().extend(container.devices.iter().map(|path| device(path)));
    words
}

/// As [`by_mounts`].
fn by_device(spec: &TaskSpec, host: &mut HostConfig) -> Vec<String> {
    let name = cdi::qualified(&spec.lease.0);
    let word = format!("--device={name}");
    host.device_requests.get_or_insert_default().push(DeviceRequest {
        driver: Some("cdi".to_owned()),
        device_ids: Some(vec![name]),
        ..Default::default()
    });
    vec![word]
}

/// One container per lease: a second one cannot be created, even if the engine's answer to the first got lost.
pub(super) fn name_of(lease: &str) -> String {
    format!("cantle-{lease}")
}

fn log_head(
    name: &str,
    container: &ContainerSpec,
    admitted: &Admitted,
    variables: &BTreeMap<String, String>,
    slice: Vec<String>,
    spec: &TaskSpec,
) -> String {
    let mut words = vec!["docker".to_owned(), "run".to_owned(), format!("--name={name}")];
    for given in &admitted.options {
        let value = if given.value.is_empty() { String::new() } else { format!("={}", given.value) };
        words.push(format!("--{}{value}", given.name));
    }
    words.extend(variables.iter().map(|(name, value)| format!("--env={name}={}", shown(name, value))));
    words.extend(slice);
    words.push(format!("--label={LABEL_LEASE}={}", spec.lease));
    words.push(format!("--label={LABEL_TASK}={}", container.task));
    words.push(container.image.clone());
    words.extend(spec.argv.iter().map(|word| word.to_string_lossy().into_owned()));
    let mut text =
        format!("cantle: {}\n", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    for note in &admitted.notes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "cantle: {note}");
    }
    text
}

/// A task's log is read by more people than may know its keys.
fn shown<'a>(name: &str, value: &'a str) -> &'a str {
    let is_secret = ["SECRET", "TOKEN", "PASSWORD", "_KEY"].iter().any(|word| name.contains(word));
    if is_secret { "***" } else { value }
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
    use super::*;
    use crate::{Confinement, DriverLibraries, DriverLibrary};
    use cantle_model::{GpuUuid, LeaseId, Milli, Slice};

    fn spec() -> TaskSpec {
        let library = |name: &str| DriverLibrary { real: format!("/real/{name}").into(), names: Vec::new() };
        let slice = Slice {
            gpu: GpuUuid("GPU-a".to_owned()),
            milli: Milli(500),
            memory_limit_bytes: 20 << 30,
            mig: None,
        };
        TaskSpec {
            lease: LeaseId("lease-1".to_owned()),
            slices: vec![slice],
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            clear_env: false,
            cwd: None,
            user: None,
            confinement: Confinement {
                gate: false,
                burst: false,
                shim_dir: "/shim".into(),
                slice_dir: "/slice".into(),
                libraries: DriverLibraries {
                    cuda: library("libcuda.so.550"),
                    nvml: library("libnvidia-ml.so.550"),
                },
                backend: crate::BackendChoice::Auto,
                hidden: Vec::new(),
                privileges: crate::Privileges::Own,
                direct: None,
            },
            workspace: None,
            authorities: None,
            cgroup: None,
            host: None,
            is_client: false,
            secrets: BTreeMap::new(),
        }
    }

    fn planned(mode: InjectionMode) -> Plan {
        let container = ContainerSpec {
            task: TaskId::from("task-1"),
            image: "img:1".to_owned(),
            options: Vec::new(),
            devices: vec!["/dev/nvidia0".into()],
            driver_files: Vec::new(),
        };
        plan(&spec(), &container, &Admitted::default(), mode, &BTreeSet::new()).unwrap()
    }

    #[test]
    fn a_slice_comes_by_mounts_or_as_a_device() {
        let by_mounts = planned(InjectionMode::Mounts);
        let host = by_mounts.body.host_config.unwrap();
        assert!(host.mounts.unwrap().iter().any(|mount| mount.source.as_deref() == Some("/slice/limits")));
        assert_eq!(host.devices.unwrap()[0].path_on_host.as_deref(), Some("/dev/nvidia0"));
        assert!(host.device_requests.is_none());
        assert!(by_mounts.log_head.contains(" --device=/dev/nvidia0 "), "{}", by_mounts.log_head);

        let as_device = planned(InjectionMode::Device);
        let host = as_device.body.host_config.unwrap();
        assert!(host.mounts.is_none() && host.devices.is_none());
        let request = &host.device_requests.unwrap()[0];
        assert_eq!(request.driver.as_deref(), Some("cdi"));
        assert_eq!(request.device_ids.as_deref(), Some(&["cantle.dev/slice=lease-1".to_owned()][..]));
        let head = &as_device.log_head;
        assert!(head.contains(" --device=cantle.dev/slice=lease-1 ") && !head.contains("--mount"), "{head}");
    }

    /// The description of a device lies in a file; the engine gets the task's variables through its socket.
    #[test]
    fn a_device_has_none_of_the_tasks_variables() {
        let env = BTreeMap::from([("CLEARML_API_SECRET_KEY".to_owned(), "secret".into())]);
        let edits = super::super::slice_edits(&TaskSpec { env, ..spec() }, &[], &[]);
        let names: Vec<&str> = edits.env.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        assert!(names.contains(&"CANTLE_SLICE") && !names.contains(&"CLEARML_API_SECRET_KEY"), "{names:?}");
    }

    #[test]
    fn the_logged_command_can_be_pasted() {
        assert_eq!(quoted("--env=A=1"), "--env=A=1");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
