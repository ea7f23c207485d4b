//! The memory of processes, from what the kernel notes about each open descriptor of a GPU (`/proc/PID/fdinfo`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::ProcessMemory;

/// Each process with its memory of the GPU at this address, in ascending order of pid. Memory that several processes share by one
/// descriptor is of the first of them.
pub(super) fn processes(proc: &Path, pci: &str) -> Vec<ProcessMemory> {
    let entries = fs::read_dir(proc).into_iter().flatten().filter_map(Result::ok);
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::new());
    for pid in pids {
        // A process that has ended meanwhile has none.
        let files = fs::read_dir(proc.join(pid.to_string()).join("fdinfo")).into_iter().flatten();
        for file in files.filter_map(Result::ok) {
            let client = fs::read_to_string(file.path()).ok().and_then(|text| Client::read(&text, pci));
            let Some(client) = client else { continue };
            let used = found.entry(pid).or_insert(0_u64);
            if seen.insert(client.id) {
                *used = used.saturating_add(client.bytes);
            }
        }
    }
    let process = |(pid, bytes)| ProcessMemory { pid, used_bytes: Some(bytes), instance: None };
    found.into_iter().map(process).collect()
}

/// A GPU that was opened once; it may have several descriptors.
struct Client {
    id: u64,
    bytes: u64,
}

impl Client {
    /// `None` for a descriptor of anything but this GPU.
    fn read(text: &str, pci: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        if field("drm-driver")? != "amdgpu" || field("drm-pdev")? != pci {
            return None;
        }
        let id = field("drm-client-id")?.parse().ok()?;
        // The first is what is in the memory now, and the older of two names.
        let names = ["drm-resident-vram", "drm-memory-vram", "drm-total-vram"];
        let bytes = names.into_iter().find_map(|name| bytes(field(name)?)).unwrap_or(0);
        Some(Self { id, bytes })
    }
}

/// `123`, `123 KiB`, `123 MiB`.
fn bytes(text: &str) -> Option<u64> {
    let mut words = text.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    let shift = match words.next() {
        None => 0,
        Some("KiB") => 10,
        Some("MiB") => 20,
        Some(_) => return None,
    };
    number.checked_mul(1 << shift)
}
