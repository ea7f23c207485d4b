//! Names of the simulated hardware: a pure function of place and model, so they never change.

use std::fmt;

use crate::models::Model;

/// 128 bits in the usual notation of UUIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A UUID (version 8: made by its vendor) that depends on the text alone. FNV-1a with a final mix, twice: it must be
/// stable and look distinct, not be secret.
pub fn uuid_of(text: &str) -> DeviceUuid {
    let hash = |seed: u64| {
        let fnv = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        let mut h = text.bytes().fold(seed, fnv);
        h = (h ^ h >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        h = (h ^ h >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        h ^ h >> 31
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&hash(0xCBF2_9CE4_8422_2325).to_be_bytes());
    bytes[8..].copy_from_slice(&hash(0x6C62_272E_07BB_0142).to_be_bytes());
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    DeviceUuid(bytes)
}

/// The UUID of a GPU, as CUDA gives it (16 bytes).
pub fn gpu_uuid_bytes(index: usize, model: &Model) -> DeviceUuid {
    uuid_of(&format!("{}/{index}", model.key))
}

/// The UUID of a GPU, as NVML gives it (text).
pub fn gpu_uuid(index: usize, model: &Model) -> String {
    format!("GPU-{}", gpu_uuid_bytes(index, model))
}

/// The PCI bus number of a GPU; domain, device and function are 0.
pub fn pci_bus(index: usize) -> u32 {
    0x10 + index as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::MODELS;

    #[test]
    fn uuids_are_stable_and_distinct() {
        let all: Vec<String> = MODELS.iter().flat_map(|m| (0..16).map(|i| gpu_uuid(i, m))).collect();
        let mut sorted = all.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), all.len());
        assert_eq!(all[0].len(), "GPU-00000000-0000-0000-0000-000000000000".len());
        assert_eq!(uuid_of("A100-40GB/0").to_string(), uuid_of("A100-40GB/0").to_string());
    }
}
