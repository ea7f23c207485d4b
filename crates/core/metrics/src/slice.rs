//! The labels of a slice's metrics. The agent and the server use the same ones, so that their figures can be joined.

/// The task that holds the slice, and its GPU. Labels that NVIDIA's DCGM exporter has, too, carry its names.
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
