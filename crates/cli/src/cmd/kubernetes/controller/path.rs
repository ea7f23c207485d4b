//! The two paths by which pods get slices.

use clap::ValueEnum;

/// How pods get slices.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathArg {
    /// Claims on devices (Kubernetes 1.35 and newer)
    Dra,
    /// A device plugin and a scheduler extender (1.30 and newer)
    Classic,
}
