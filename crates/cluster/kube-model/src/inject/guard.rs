//! Refuses pods with a slice that could evade its limit. The limits do not depend on this check: they are in files that
//! the node mounts read-only. The check turns a later failure into an immediate refusal.

use cantle_model::is_withheld;
use k8s_openapi::api::core::v1::{EnvVar, Pod, SecurityContext, VolumeMount};

use super::containers::ContainerList;
use super::read::is_fraction_key;
use super::{Denial, NO_DEVICES};
use crate::names::MIG_RESOURCE;

/// The settings that the operator of the injector can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Environment variables that pods with a slice may not set, in addition to `CANTLE_…` and
    /// `DOCKER_RESOURCE_…`.
    pub denied_env: Vec<String>,
    /// How pods come to their slices.
    pub mode: InjectionMode,
    /// Are nodes nominated for pods with claims? Then kube-scheduler waits for that.
    pub packs: bool,
}

/// How pods come to their slices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum InjectionMode {
    /// By a claim on devices (DRA).
    #[default]
    Claim,
    /// By an extended resource, placed by cantle's extender.
    Classic {
        /// The scheduler that asks the extender.
        scheduler: String,
        /// Do pods that ask for `nvidia.com/mig-…` get their instance from here? Not where NVIDIA's plugin gives it out.
        mig_resources: bool,
    },
}

impl Rules {
    /// The variables that redirect libraries, and those that NVIDIA's container runtime reads.
    pub const DENIED_ENV: [&str; 4] = ["LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", NO_DEVICES.0];

    /// Does a pod request a slice by this resource? With claims MIG profiles need no injector: they are device classes.
    pub(crate) fn is_asking(&self, key: &str) -> bool {
        let takes_mig = matches!(self.mode, InjectionMode::Classic { mig_resources: true, .. });
        is_fraction_key(key) || (takes_mig && key.starts_with(MIG_RESOURCE))
    }
}

impl Default for Rules {
    fn default() -> Self {
        let denied_env = Self::DENIED_ENV.map(str::to_owned).to_vec();
        Self { denied_env, mode: InjectionMode::Claim, packs: false }
    }
}

/// Of the node: GPUs, their limits, the driver's own libraries, and container runtimes. `/var/run` is `/run`.
const NODE_PATHS: [&str; 17] = [
    "/dev/nvidia*",
    "/etc/cdi",
    "/lib",
    "/lib64",
    "/opt/cantle",
    "/proc",
    "/run/cantle",
    "/run/cdi",
    "/run/containerd",
    "/run/crio",
    "/run/docker.sock",
    "/run/nvidia",
    "/sys",
    "/usr/lib",
    "/usr/lib64",
    "/var/lib/cantle",
    "/var/lib/kubelet",
];

/// Inside a container: where limits lie, and where NVIDIA's container runtime reads requests for GPUs, which win over its variable
/// (`accept-nvidia-visible-devices-as-volume-mounts`).
const INSIDE: [&str; 2] = ["/run/cantle", "/run/nvidia-container-devices"];

/// Variables that NVIDIA's container runtime can be set up to read requests for GPUs from (`swarm-resource`).
const SWARM_RESOURCE: &str = "DOCKER_RESOURCE_";

pub(crate) fn check(pod: &Pod, rules: &Rules) -> Result<(), Denial> {
    for (_, _, c) in ContainerList::containers(pod) {
        let parts =
            Parts { name: &c.name, env: &c.env, mounts: &c.volume_mounts, security: &c.security_context };
        parts.check(rules)?;
    }
    let volumes = pod.spec.iter().flat_map(|spec| &spec.volumes).flatten();
    for (volume, host) in volumes.filter_map(|v| v.host_path.as_ref().map(|host| (v, host))) {
        if reaches(&host.path) {
            return Err(Denial::HostPath { volume: volume.name.clone(), path: host.path.clone() });
        }
    }
    Ok(())
}

pub(crate) fn check_ephemeral(pod: &Pod, known: &[String], rules: &Rules) -> Result<(), Denial> {
    let all = pod.spec.iter().flat_map(|spec| &spec.ephemeral_containers).flatten();
    for c in all.filter(|c| !known.contains(&c.name)) {
        let parts =
            Parts { name: &c.name, env: &c.env, mounts: &c.volume_mounts, security: &c.security_context };
        parts.check(rules)?;
    }
    Ok(())
}

/// The common fields of all kinds of containers.
struct Parts<'a> {
    name: &'a str,
    env: &'a Option<Vec<EnvVar>>,
    mounts: &'a Option<Vec<VolumeMount>>,
    security: &'a Option<SecurityContext>,
}

impl Parts<'_> {
    fn check(&self, rules: &Rules) -> Result<(), Denial> {
        let lifts = |what: String, right| Denial::Lifts { container: self.name.to_owned(), what, right };
        if let Some(security) = self.security {
            if security.privileged == Some(true) {
                return Err(lifts("is privileged".to_owned(), "set privileged: false"));
            }
            if security.proc_mount.as_deref().is_some_and(|mount| mount != "Default") {
                return Err(lifts("has an unmasked /proc".to_owned(), "leave procMount out"));
            }
            let added = security.capabilities.iter().flat_map(|caps| &caps.add).flatten();
            if let Some(cap) = added.into_iter().find(|cap| is_withheld(cap)) {
                return Err(lifts(format!("adds the capability {cap}"), "leave it out"));
            }
        }
        if let Some(entry) = self.env.iter().flatten().find(|entry| is_denied_env(entry, rules)) {
            return Err(lifts(format!("sets {}", entry.name), "leave the variable out"));
        }
        let is_inside = |path: &str| INSIDE.iter().any(|inside| is_within(path, inside));
        match self.mounts.iter().flatten().find(|mount| is_inside(&plain(&mount.mount_path))) {
            Some(mount) => {
                Err(lifts(format!("mounts a volume at {}", mount.mount_path), "mount it elsewhere"))
            }
            None => Ok(()),
        }
    }
}

fn is_denied_env(entry: &EnvVar, rules: &Rules) -> bool {
    let is_ours = entry.name == NO_DEVICES.0
        && entry.value_from.is_none()
        && entry.value.as_deref() == Some(NO_DEVICES.1);
    let by_prefix = ["CANTLE_", SWARM_RESOURCE].iter().any(|prefix| entry.name.starts_with(prefix));
    !is_ours && (by_prefix || rules.denied_env.contains(&entry.name))
}

/// Is `path` of the node above, at or below a path of cantle?
fn reaches(path: &str) -> bool {
    let path = plain(path);
    NODE_PATHS.iter().any(|guarded| match guarded.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix) || is_within(prefix, &path),
        None => is_within(&path, guarded) || is_within(guarded, &path),
    })
}

fn is_within(path: &str, directory: &str) -> bool {
    directory == "/"
        || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Without doubled or trailing slashes, `.` and `/var` before `run`. Kubernetes itself refuses `..`.
fn plain(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.starts_with(&["var", "run"]) {
        parts.remove(0);
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_node() {
        for path in [
            "/",
            "/dev",
            "/dev/",
            "//dev/.",
            "/dev/nvidia0",
            "/dev/nvidiactl",
            "/dev/nvidia-caps",
            "/run",
            "/var/run",
            "/var/run/cdi",
            "/run/cantle/node",
            "/var/lib",
            "/usr",
            "/usr/lib/x86_64-linux-gnu",
            "/proc/1/root",
        ] {
            assert!(reaches(path), "{path}");
        }
        for path in [
            "/dev/shm",
            "/dev/infiniband",
            "/data",
            "/usr/local/share",
            "/runs",
            "/library",
            "/var/lib/kubelets",
            "/mnt/usr/lib",
        ] {
            assert!(!reaches(path), "{path}");
        }
    }
}
