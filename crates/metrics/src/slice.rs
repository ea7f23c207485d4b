//! The labels of what is said about a slice: the agent's own and the server's figures are joined by them.

/// Whose slice it is, and of what. The names are those of NVIDIA's DCGM exporter where it has one.
#[derive(Clone, Copy, Debug)]
pub struct SliceLabels<'a> {
    /// NVML index of the GPU.
    pub gpu: &'a str,
    /// Its UUID.
    pub uuid: &'a str,
    /// Name of the node.
    pub node: &'a str,
    /// MIG profile; empty if it is none.
    pub mig_profile: &'a str,
    /// The lease.
    pub slice: &'a str,
    /// The task.
    pub task: &'a str,
}

impl<'a> SliceLabels<'a> {
    /// Names and values.
    #[must_use]
    pub const fn pairs(&self) -> [(&'static str, &'a str); 6] {
        [
            ("gpu", self.gpu),
            ("UUID", self.uuid),
            ("Hostname", self.node),
            ("GPU_I_PROFILE", self.mig_profile),
            ("slice", self.slice),
            ("task", self.task),
        ]
    }
}
