//! One GPU, as the kernel describes it in `/sys/class/kfd` and `/sys/class/drm`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cantle_model::{Gpu, GpuUuid};

use crate::{DriverError, Load, Memory, Result};

const TOPOLOGY: &str = "sys/class/kfd/kfd/topology/nodes";
const DRM: &str = "sys/class/drm";
/// AMD's number among the vendors of PCI.
const VENDOR: u64 = 0x1002;

/// A GPU, and the directory in which its kernel driver describes it.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) gpu: Gpu,
    /// Its address on the bus, e.g. `0000:05:00.0`.
    pub(super) pci: String,
    /// `N` of `/dev/dri/renderDN`.
    pub(super) render_minor: u32,
    /// Its name in `ROCR_VISIBLE_DEVICES`.
    pub(super) runtime_name: String,
    /// Their number, from which a mask selects; 0 if the kernel does not report it.
    pub(super) compute_units: u32,
    device: PathBuf,
}

/// The properties of the topology's nodes that are GPUs, in the order of the nodes.
pub(super) fn compute_nodes(root: &Path) -> Vec<BTreeMap<String, u64>> {
    let entries = fs::read_dir(root.join(TOPOLOGY)).into_iter().flatten().filter_map(std::result::Result::ok);
    let mut numbers: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    let of_node = |number: u32| {
        let file = root.join(TOPOLOGY).join(number.to_string()).join("properties");
        // That of a GPU that this process may not use cannot be read.
        let text = fs::read_to_string(file).ok()?;
        let line = |line: &str| {
            Some((line.split_once(' ')?.0.to_owned(), line.split_once(' ')?.1.trim().parse().ok()?))
        };
        let properties: BTreeMap<String, u64> = text.lines().filter_map(line).collect();
        let is_gpu = properties.get("vendor_id") == Some(&VENDOR)
            && properties.get("simd_count").is_some_and(|count| *count > 0);
        is_gpu.then_some(properties)
    };
    numbers.into_iter().filter_map(of_node).collect()
}

impl Card {
    pub(super) fn read(root: &Path, index: u32, node: &BTreeMap<String, u64>) -> Result<Self> {
        let minor = node.get("drm_render_minor").and_then(|minor| u32::try_from(*minor).ok());
        let render_minor = minor.filter(|minor| *minor > 0).ok_or_else(|| DriverError::KernelFile {
            file: root.join(TOPOLOGY),
            why: "a GPU has no drm_render_minor".to_owned(),
        })?;
        let device = root.join(DRM).join(format!("renderD{render_minor}")).join("device");
        let events = text(&device.join("uevent"))?;
        let pci = events.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
        let pci = pci.ok_or_else(|| DriverError::KernelFile {
            file: device.join("uevent"),
            why: "it has no PCI_SLOT_NAME".to_owned(),
        })?;
        let memory_bytes = number(&device.join("mem_info_vram_total"))?;
        // Older GPUs have no number of their own, or 0.
        let unique = text(&device.join("unique_id")).ok();
        let unique = unique.and_then(|id| u64::from_str_radix(id.trim().trim_start_matches("0x"), 16).ok());
        let unique = unique.or_else(|| node.get("unique_id").copied()).filter(|id| *id != 0);
        let device_id = node.get("device_id").copied().unwrap_or(0);
        let model = text(&device.join("product_name")).ok().map(|name| name.trim().to_owned());
        let model =
            model.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("AMD GPU 0x{device_id:04x}"));
        let gpu = Gpu { uuid: uuid(unique, pci), index, model, memory_bytes, mig: false };
        let runtime_name = unique.map_or_else(|| index.to_string(), |id| format!("GPU-{id:016x}"));
        let count =
            |name: &str| node.get(name).copied().and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        let compute_units = count("simd_count").checked_div(count("simd_per_cu")).unwrap_or(0);
        Ok(Self { gpu, pci: pci.to_owned(), render_minor, runtime_name, compute_units, device })
    }

    pub(super) fn render_node(&self) -> String {
        format!("renderD{}", self.render_minor)
    }

    pub(super) fn memory(&self) -> Result<Memory> {
        let total_bytes = number(&self.device.join("mem_info_vram_total"))?;
        let used_bytes = number(&self.device.join("mem_info_vram_used"))?;
        Ok(Memory { total_bytes, used_bytes, free_bytes: total_bytes.saturating_sub(used_bytes) })
    }

    pub(super) fn load(&self) -> Result<Load> {
        let busy = number(&self.device.join("gpu_busy_percent"))?;
        let sensors = fs::read_dir(self.device.join("hwmon")).into_iter().flatten();
        let sensors = sensors.filter_map(std::result::Result::ok).map(|entry| entry.path()).next();
        let read = |names: &[&str]| {
            let sensors = sensors.as_ref()?;
            names.iter().find_map(|name| number(&sensors.join(name)).ok())
        };
        let millidegrees = read(&["temp1_input"])
            .ok_or(DriverError::Unsupported { gpu: self.gpu.uuid.clone(), what: "a temperature" })?;
        let microwatts = read(&["power1_average", "power1_input"]);
        Ok(Load {
            busy_percent: u32::try_from(busy).unwrap_or(0),
            celsius: u32::try_from(millidegrees / 1000).unwrap_or(0),
            milliwatts: microwatts.and_then(|power| u32::try_from(power / 1000).ok()),
        })
    }
}

/// The form of cantle's names, with the vendor's number in front. The number of the card is the last part, or else its address.
fn uuid(unique: Option<u64>, pci: &str) -> GpuUuid {
    let address = || u64::from_str_radix(&pci.replace([':', '.'], ""), 16).unwrap_or(0);
    let (kind, id) = unique.map_or_else(|| (1, address()), |id| (0, id));
    GpuUuid(format!("GPU-{VENDOR:08x}-0000-{kind:04x}-{:04x}-{:012x}", id >> 48, id & 0xffff_ffff_ffff))
}

fn text(file: &Path) -> Result<String> {
    fs::read_to_string(file)
        .map_err(|why| DriverError::KernelFile { file: file.to_owned(), why: why.to_string() })
}

fn number(file: &Path) -> Result<u64> {
    let text = text(file)?;
    text.trim()
        .parse()
        .map_err(|why| DriverError::KernelFile { file: file.to_owned(), why: format!("{why}") })
}
