//! The GPUs of the machine, and their names.

use std::ffi::c_char;

use super::handle::{Handle, MigTarget, Target, gpu, of_gpu, target};
use super::session::sim;
use super::system::write;
use super::{NvmlError, NvmlResult, nvml_api, version_word};
use crate::ffi::{In, Out, Text, TextBuffer};
use crate::identity::{self, gpu_uuid, pci_bus};
use crate::mig::mig_uuid;

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    pci_device_id: u32,
    pci_subsystem_id: u32,
    bus_id: [c_char; 32],
}

impl PciInfo {
    /// That of the device on this bus.
    pub(super) fn of(bus: u32, pci_device_id: u32) -> Self {
        let id = bus_id(bus);
        Self {
            bus_id_legacy: chars(&id["0000".len()..]),
            domain: 0,
            bus,
            device: 0,
            pci_device_id,
            pci_subsystem_id: pci_device_id,
            bus_id: chars(&id),
        }
    }
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PciInfoExt {
    version: u32,
    domain: u32,
    bus: u32,
    device: u32,
    pci_device_id: u32,
    pci_subsystem_id: u32,
    base_class: u32,
    sub_class: u32,
    bus_id: [c_char; 32],
}

/// `nvmlUUID_v1_t`: text that ends with NUL, or the 16 bytes of a GPU's UUID.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NvmlUuid {
    version: u32,
    kind: u32,
    value: [u8; 41],
}

impl NvmlUuid {
    const ASCII: u32 = 1;
    const BINARY: u32 = 2;

    fn text(&self) -> Option<String> {
        match self.kind {
            Self::ASCII => Some(self.value.iter().take_while(|&&c| c != 0).map(|&c| char::from(c)).collect()),
            Self::BINARY => Some(format!("GPU-{}", identity::DeviceUuid(self.value.first_chunk().copied()?))),
            _ => None,
        }
    }
}

const CLASS_DISPLAY: u32 = 3;
const SUBCLASS_3D: u32 = 2;

fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

fn bus_id(bus: u32) -> String {
    format!("00000000:{bus:02X}:00.0")
}

fn find(fits: impl Fn(usize) -> bool) -> NvmlResult<Handle> {
    let there = sim()?.lock().accessible();
    there.into_iter().find(|&index| fits(index)).map(of_gpu).ok_or(NvmlError::NOT_FOUND)
}

fn count(out: Out<u32>) -> NvmlResult {
    Ok(out.set(sim()?.lock().accessible().len() as u32)?)
}

/// `index` counts the GPUs that this process can open.
fn by_index(index: u32, device: Out<Handle>) -> NvmlResult {
    let there = sim()?.lock().accessible();
    let handle = of_gpu(*there.get(index as usize).ok_or(NvmlError::INVALID_ARGUMENT)?);
    gpu(handle)?;
    Ok(device.set(handle)?)
}

fn by_uuid(wanted: &str) -> NvmlResult<Handle> {
    let sim = sim()?;
    if wanted.starts_with("MIG-") {
        return super::mig_device::by_uuid(sim, wanted);
    }
    find(|index| {
        let model = sim.lock().devices()[index].model();
        gpu_uuid(index, model).eq_ignore_ascii_case(wanted)
    })
}

fn by_pci_bus_id(text: Text, device: Out<Handle>) -> NvmlResult {
    // Programs write the domain with 4 or 8 digits, or leave it out.
    let wanted = text.get()?.to_ascii_uppercase();
    Ok(device.set(find(|index| wanted.ends_with(&bus_id(pci_bus(index))["00000000:".len()..]))?)?)
}

nvml_api! {
    fn nvmlDeviceGetCount(out: Out<u32>) { count(out) }

    fn nvmlDeviceGetCount_v2(out: Out<u32>) { count(out) }

    fn nvmlDeviceGetHandleByIndex(index: u32, device: Out<Handle>) { by_index(index, device) }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Handle>) { by_index(index, device) }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) { Ok(device.set(by_uuid(uuid.get()?)?)?) }

    fn nvmlDeviceGetHandleByUUIDV(uuid: In<NvmlUuid>, device: Out<Handle>) {
        let uuid = uuid.get()?;
        if uuid.version != version_word::<NvmlUuid>(1) {
            return Err(NvmlError::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(device.set(by_uuid(&uuid.text().ok_or(NvmlError::INVALID_ARGUMENT)?)?)?)
    }

    fn nvmlDeviceGetHandleByPciBusId(text: Text, device: Out<Handle>) { by_pci_bus_id(text, device) }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, device: Out<Handle>) { by_pci_bus_id(text, device) }

    /// For a MIG device: its number on its GPU.
    fn nvmlDeviceGetIndex(device: Handle, index: Out<u32>) {
        match target(device)? {
            Target::Gpu(gpu) => {
                let there = gpu.sim.lock().accessible();
                let number = there.iter().position(|found| *found == gpu.index);
                Ok(index.set(number.ok_or(NvmlError::NOT_FOUND)? as u32)?)
            }
            Target::Mig(place) => Ok(index.set(super::mig_device::index(&place)?)?),
        }
    }

    fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<u32>) { Ok(minor.set(gpu(device)?.index as u32)?) }

    fn nvmlDeviceGetName(device: Handle, text: TextBuffer, length: u32) {
        match target(device)? {
            Target::Gpu(gpu) => write(text, length, gpu.model.name),
            Target::Mig(place) => write(text, length, &super::mig_device::name(&place)?),
        }
    }

    fn nvmlDeviceGetUUID(device: Handle, text: TextBuffer, length: u32) {
        match target(device)? {
            Target::Gpu(gpu) => write(text, length, &gpu_uuid(gpu.index, gpu.model)),
            Target::Mig(MigTarget { gpu, instance, compute }) => {
                write(text, length, &mig_uuid(gpu.index, &gpu.device(), instance, compute))
            }
        }
    }

    fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<PciInfo>) {
        let gpu = gpu(device)?;
        Ok(info.set(PciInfo::of(pci_bus(gpu.index), gpu.model.pci_device_id))?)
    }

    fn nvmlDeviceGetPciInfoExt(device: Handle, info: Out<PciInfoExt>) {
        let gpu = gpu(device)?;
        let version = version_word::<PciInfoExt>(1);
        if info.get()?.version != version {
            return Err(NvmlError::ARGUMENT_VERSION_MISMATCH);
        }
        Ok(info.set(PciInfoExt {
            version,
            domain: 0,
            bus: pci_bus(gpu.index),
            device: 0,
            pci_device_id: gpu.model.pci_device_id,
            pci_subsystem_id: gpu.model.pci_device_id,
            base_class: CLASS_DISPLAY,
            sub_class: SUBCLASS_3D,
            bus_id: chars(&bus_id(pci_bus(gpu.index))),
        })?)
    }

    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<i32>, minor: Out<i32>) {
        let capability = gpu(device)?.model.capability;
        major.set(capability.0)?;
        Ok(minor.set(capability.1)?)
    }

    fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<u32>) {
        Ok(architecture.set(match gpu(device)?.model.capability {
            (7, 0) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            _ => 10,
        })?)
    }

    fn nvmlDeviceGetBrand(device: Handle, brand: Out<u32>) {
        const NVIDIA: u32 = 14;
        gpu(device)?;
        Ok(brand.set(NVIDIA)?)
    }

    fn nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<u32>) {
        let model = gpu(device)?.model;
        let per_multiprocessor = if matches!(model.capability, (7, _) | (8, 0)) { 64 } else { 128 };
        Ok(cores.set(model.multiprocessors as u32 * per_multiprocessor)?)
    }

    fn nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<u32>) {
        Ok(bits.set(gpu(device)?.model.bus_width_bits)?)
    }
}
