//! Xids: the errors of a GPU as its driver reports them. Some are a program's fault, and the GPU stays in service.

use std::fmt;

/// An error that the driver has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid(pub u64);

/// The Xids that programs cause, according to NVIDIA's device plugin for Kubernetes: the GPU stays healthy.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

impl Xid {
    /// Did a program cause it? Then it concerns no other program.
    #[must_use]
    pub fn is_of_a_program(self) -> bool {
        OF_PROGRAMS.contains(&self.0)
    }

    /// In NVIDIA's words; of rare ones the number alone.
    #[must_use]
    pub const fn meaning(self) -> Option<&'static str> {
        Some(match self.0 {
            13 => "graphics engine exception",
            31 => "GPU memory page fault",
            43 => "GPU stopped processing",
            45 => "preemptive cleanup",
            48 => "double bit ECC error",
            61 | 62 => "internal micro-controller halt",
            63 => "row remapping",
            64 => "row remapper failure",
            68 => "video processor exception",
            74 => "NVLink error",
            79 => "GPU has fallen off the bus",
            92 => "high single-bit ECC error rate",
            94 => "contained ECC error",
            95 => "uncontained ECC error",
            109 => "context switch timeout",
            119 | 120 => "GSP error",
            _ => return None,
        })
    }
}

/// `Xid 79 (GPU has fallen off the bus)`
impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Xid {}", self.0)?;
        self.meaning().map_or(Ok(()), |meaning| write!(f, " ({meaning})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_fault_is_told_from_the_gpus() {
        assert!([13, 31, 43, 45, 68, 109].map(Xid).into_iter().all(Xid::is_of_a_program));
        assert!(![48, 63, 79, 94, 95, 119, 12345].map(Xid).into_iter().any(Xid::is_of_a_program));
        assert_eq!(Xid(79).to_string(), "Xid 79 (GPU has fallen off the bus)");
        assert_eq!(Xid(12345).to_string(), "Xid 12345");
    }
}
