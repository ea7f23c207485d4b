//! The GPU models that can be simulated.

/// The properties that a GPU model reports, and the memory of a context on it.
#[derive(Debug)]
pub struct Model {
    /// The name in a spec, e.g. `A100-40GB`.
    pub key: &'static str,
    /// The name as the driver gives it.
    pub name: &'static str,
    /// Total memory. CUDA reports the same here, unless the driver keeps a part for itself ([`Model::reserved_mib`]).
    pub memory_mib: u32,
    /// Memory that each context takes, by NVML's figure for its process; a multiple of 2 MiB. That of the H100 with 80 GB was measured under
    /// driver 580.159.04 (`docs/results/`); the others are plausible.
    pub context_mib: u32,
    /// CUDA compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// PCI device id (high half) and vendor id (low half).
    pub pci_device_id: u32,
    /// Power limit of the board.
    pub power_limit_w: u32,
    /// Highest SM and memory clocks.
    pub clocks_mhz: (u32, u32),
    /// Width of the memory bus.
    pub bus_width_bits: u32,
    /// L2 cache.
    pub l2_mib: u32,
    /// Shared memory per multiprocessor and, with opt-in, per block.
    pub shared_kib: (u32, u32),
    /// Threads that fit on one multiprocessor.
    pub threads_per_multiprocessor: i32,
    /// The key of this GPU in `data/mig_profiles.json`, for models with MIG.
    pub mig: Option<&'static str>,
}

/// The memory that the driver takes for each context on a GPU that is simulated with `:reserved`: NVML reports it for no process. An H100
/// under driver 580.159.04 takes 5.6 MiB, and 3.3 MiB more for the first context of all (`docs/results/`).
pub const UNATTRIBUTED_MIB: u32 = 6;

/// One row: spec name, driver name, MiB of memory, MiB per context, capability, SMs, PCI id, W, SM/memory MHz, bus bits,
/// L2 MiB, MIG table.
macro_rules! models {
    ($($key:literal $name:literal $mem:literal $ctx:literal $cc:tt $sm:literal $pci:literal $w:literal $clk:tt $bus:literal
       $l2:literal $mig:expr;)*) => {
        &[$(Model {
            key: $key, name: $name, memory_mib: $mem, context_mib: $ctx, capability: $cc, multiprocessors: $sm,
            pci_device_id: $pci, power_limit_w: $w, clocks_mhz: $clk, bus_width_bits: $bus, l2_mib: $l2,
            shared_kib: shared_kib($cc), threads_per_multiprocessor: threads($cc), mig: $mig,
        }),*]
    };
}

/// Every model, in the order in which error messages name them.
#[rustfmt::skip]
pub const MODELS: &[Model] = models! {
    "V100-16GB" "Tesla V100-SXM2-16GB" 16384 306 (7, 0) 80 0x1DB1_10DE 300 (1530, 877) 4096 6 None;
    "V100-32GB" "Tesla V100-SXM2-32GB" 32768 306 (7, 0) 80 0x1DB5_10DE 300 (1530, 877) 4096 6 None;
    "T4-16GB" "Tesla T4" 15360 104 (7, 5) 40 0x1EB8_10DE 70 (1590, 5001) 256 4 None;
    "A10-24GB" "NVIDIA A10" 23028 258 (8, 6) 72 0x2236_10DE 150 (1695, 6251) 384 6 None;
    "A16-16GB" "NVIDIA A16" 15356 152 (8, 6) 10 0x25B6_10DE 62 (1755, 6251) 128 2 None;
    "A40-48GB" "NVIDIA A40" 46068 266 (8, 6) 84 0x2235_10DE 300 (1740, 7251) 384 6 None;
    "RTX3090-24GB" "NVIDIA GeForce RTX 3090" 24576 264 (8, 6) 82 0x2204_10DE 350 (2100, 9751) 384 6 None;
    "A30-24GB" "NVIDIA A30" 24576 360 (8, 0) 56 0x20B7_10DE 165 (1440, 1215) 3072 24 Some("A30-24GB");
    "A100-40GB" "NVIDIA A100-SXM4-40GB" 40960 416 (8, 0) 108 0x20B0_10DE 400 (1410, 1215) 5120 40 Some("A100-40GB");
    "A100-80GB" "NVIDIA A100-SXM4-80GB" 81920 416 (8, 0) 108 0x20B2_10DE 400 (1410, 1593) 5120 40 Some("A100-80GB");
    "L4-24GB" "NVIDIA L4" 23034 236 (8, 9) 58 0x27B8_10DE 72 (2040, 6251) 192 48 None;
    "L40-48GB" "NVIDIA L40" 46068 388 (8, 9) 142 0x26B5_10DE 300 (2490, 9001) 384 96 None;
    "L40S-48GB" "NVIDIA L40S" 46068 388 (8, 9) 142 0x26B9_10DE 350 (2520, 9001) 384 96 None;
    "RTX4090-24GB" "NVIDIA GeForce RTX 4090" 24564 372 (8, 9) 128 0x2684_10DE 450 (3105, 10501) 384 72 None;
    "H100-80GB" "NVIDIA H100 80GB HBM3" 81559 518 (9, 0) 132 0x2330_10DE 700 (1980, 2619) 5120 50 Some("H100-80GB-SXM5/HBM3");
    "H100-94GB" "NVIDIA H100 NVL" 95830 520 (9, 0) 132 0x2321_10DE 400 (1980, 2619) 6016 60 Some("H100-94GB-NVL/SXM5-94");
    "GH200-96GB" "NVIDIA GH200 480GB" 97871 520 (9, 0) 132 0x2342_10DE 900 (1980, 2619) 6144 60 Some("GH200-96GB (H100-96)");
    "GH200-144GB" "NVIDIA GH200 144G HBM3e" 146831 520 (9, 0) 132 0x2348_10DE 900 (1980, 3201) 6144 60 Some("GH200-144GB-HBM3e");
    "H200-141GB" "NVIDIA H200" 143771 520 (9, 0) 132 0x2335_10DE 700 (1980, 3201) 6144 60 Some("H200-141GB (SXM5 0x2335, NVL 0x233B)");
    "B200-180GB" "NVIDIA B200" 183359 580 (10, 0) 148 0x2901_10DE 1000 (1965, 3996) 8192 126 Some("B200-180GB");
    "GB200-186GB" "NVIDIA GB200" 189471 580 (10, 0) 152 0x2941_10DE 1200 (2062, 3996) 8192 126 Some("GB200-186GB");
    "RTX5090-32GB" "NVIDIA GeForce RTX 5090" 32607 460 (12, 0) 170 0x2B85_10DE 575 (3090, 14001) 512 96 None;
    "RTX-PRO-6000-96GB" "NVIDIA RTX PRO 6000 Blackwell Server Edition" 97887 480 (12, 0) 188 0x2BB5_10DE 600 (2430, 12481) 512 128
        Some("RTX-PRO-6000-Blackwell-96GB");
    "H100-80GB-PCIe" "NVIDIA H100 PCIe" 81559 520 (9, 0) 114 0x2331_10DE 350 (1755, 1593) 5120 50 Some("H100-80GB-PCIe");
    "H20-96GB" "NVIDIA H20" 97871 520 (9, 0) 78 0x2329_10DE 500 (1980, 2619) 6144 60 Some("H20-96GB");
    "B300-269GB" "NVIDIA B300 SXM6 AC" 275040 580 (10, 3) 148 0x3182_10DE 1100 (2032, 3996) 8192 126 Some("B300-269GB");
    "GB300-278GB" "NVIDIA GB300" 284208 580 (10, 3) 152 0x31C2_10DE 1400 (2062, 3996) 8192 126 Some("GB300-278GB");
    "RTX-PRO-5000-48GB" "NVIDIA RTX PRO 5000 Blackwell" 48942 480 (12, 0) 110 0x2BB3_10DE 300 (2617, 14001) 384 96
        Some("RTX-PRO-5000-Blackwell-48GB");
    // There is no such GPU: a program that works on it relies only on the driver's answers.
    "INVENTED-60GB" "Invented Accelerator 60GB" 61440 500 (12, 9) 100 0x7FFF_10DE 500 (2000, 2000) 4096 64 Some("INVENTED-60GB");
};

const fn shared_kib(capability: (i32, i32)) -> (u32, u32) {
    match capability {
        (7, 0) => (96, 96),
        (7, 5) => (64, 64),
        (8, 0) => (164, 163),
        (8, _) | (12, _) => (100, 99),
        _ => (228, 227),
    }
}

const fn threads(capability: (i32, i32)) -> i32 {
    match capability {
        (7, 5) => 1024,
        (8, 6 | 9) | (12, _) => 1536,
        _ => 2048,
    }
}

/// Finds a model by the name used in a spec; case does not matter.
pub fn find(key: &str) -> Option<usize> {
    MODELS.iter().position(|m| m.key.eq_ignore_ascii_case(key))
}

impl Model {
    /// The memory that the driver reserves on this GPU if it is simulated with `:reserved`. An idle A10 of 23028 MiB under driver 535.129.03 has
    /// 541917184 bytes in use (github.com/mayooot/detect-gpu, issue 3), an idle H100 under 580.159.04 has 503316480 (`docs/results/`).
    pub const fn reserved_mib(&self) -> u32 {
        if self.capability.0 == 9 { 480 } else { 516 }
    }

    /// Total memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_whole_granules_and_keys_differ() {
        for (i, m) in MODELS.iter().enumerate() {
            assert_eq!(m.context_mib % 2, 0, "{}: contexts are counted in 2 MiB granules", m.key);
            assert_eq!(find(m.key), Some(i));
            assert!(m.memory_mib > 10_000 && m.context_mib > 0, "{}", m.key);
        }
    }
}
