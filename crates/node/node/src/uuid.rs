//! Converts GPU and MIG UUIDs to the keys of the accounting region.

/// The 16 bytes behind `GPU-8-4-4-4-12` or `MIG-8-4-4-4-12`; `None` for anything else.
pub fn gpu_uuid_bytes(name: &str) -> Option<[u8; 16]> {
    let text = name.strip_prefix("GPU-").or_else(|| name.strip_prefix("MIG-"))?;
    uuid::Uuid::try_parse(text).ok().map(uuid::Uuid::into_bytes)
}

/// The name of the GPU with these bytes. A MIG instance has the same bytes with another prefix.
pub(crate) fn gpu_name(bytes: &[u8; 16]) -> String {
    format!("GPU-{}", uuid::Uuid::from_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gpus() {
        let bytes = gpu_uuid_bytes("GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(bytes, Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(gpu_uuid_bytes("00010203-0405-0607-0809-0a0b0c0d0e0f"), None);
        assert_eq!(gpu_uuid_bytes("GPU-x"), None);
    }
}
