//! The whole container of a task: its own options, and what cantle adds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use bollard::models::{ContainerCreateBody, HostConfig, Mount};
use cantle_model::TaskId;
use serde::{Deserialize, Serialize};

use super::AdmissionError;
use super::admission::{Admitted, Protected};
use super::config::{self, Extra};
use super::contents::{device, mount_option, mounts, variables};
use crate::TaskSpec;
use crate::namespace::CANTLE_DIR;

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
    let mut sources = vec![confinement.shim_dir.clone(), confinement.slice_dir.clone(), CANTLE_DIR.into()];
    sources.extend(confinement.sim_dir.clone());
    for library in [&libraries.cuda, &libraries.nvml] {
        sources.push(library.real.clone());
        sources.extend(library.names.iter().cloned());
    }
    let mut targets = vec![PathBuf::from(CANTLE_DIR)];
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
