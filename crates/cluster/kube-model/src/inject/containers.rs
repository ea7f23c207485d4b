//! The containers of a pod.

use k8s_openapi::api::core::v1::{Container, Pod};

/// The lists of containers that a pod is created with. Sidecars are init containers that keep running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContainerList {
    Init,
    Main,
}

impl ContainerList {
    pub(crate) const ALL: [Self; 2] = [Self::Main, Self::Init];

    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::Main => "containers",
        }
    }

    /// All containers of a pod, the main ones first.
    pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (Self, usize, &Container)> {
        let spec = pod.spec.iter();
        spec.flat_map(|spec| {
            let main = spec.containers.iter().enumerate().map(|(at, c)| (Self::Main, at, c));
            let init = spec.init_containers.iter().flatten().enumerate().map(|(at, c)| (Self::Init, at, c));
            main.chain(init)
        })
    }
}
