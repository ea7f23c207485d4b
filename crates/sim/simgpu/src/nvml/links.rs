//! NVLinks, and the way between GPUs over PCIe.

use super::device::PciInfo;
use super::handle::{Gpu, Handle, gpu};
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::Out;
use crate::identity::pci_bus;
use crate::wiring::LinkEnd;

/// `NVML_NVLINK_DEVICE_TYPE_GPU`
const REMOTE_GPU: u32 = 0;
/// `NVML_NVLINK_DEVICE_TYPE_SWITCH`
const REMOTE_SWITCH: u32 = 2;

/// `NVML_NVLINK_MAX_LINKS`
const MOST_LINKS: u32 = 36;
/// PCI bus of the first switch; device id of those in machines with H100.
const SWITCH: (u32, u32) = (0xC0, 0x22A3_10DE);

fn link_end(gpu: Gpu, link: u32) -> NvmlResult<LinkEnd> {
    if link >= MOST_LINKS {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    let links = gpu.sim.lock().wired().links(gpu.index);
    // nvidia-smi counts the links up to this answer, and takes any other for a failure.
    links.get(link as usize).copied().ok_or(NvmlError::NOT_SUPPORTED)
}

nvml_api! {
    fn nvmlDeviceGetTopologyCommonAncestor(device: Handle, other: Handle, level: Out<u32>) {
        let (one, other) = (gpu(device)?, gpu(other)?);
        let ancestor = one.sim.lock().wired().ancestor(one.index, other.index);
        Ok(level.set(ancestor.ok_or(NvmlError::NOT_SUPPORTED)? as u32)?)
    }

    fn nvmlDeviceGetNvLinkState(device: Handle, link: u32, active: Out<u32>) {
        let is_active = link_end(gpu(device)?, link)? != LinkEnd::Nothing;
        Ok(active.set(u32::from(is_active))?)
    }

    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Handle, link: u32, kind: Out<u32>) {
        let kind_of = match link_end(gpu(device)?, link)? {
            LinkEnd::Gpu(_) => REMOTE_GPU,
            LinkEnd::Switch => REMOTE_SWITCH,
            LinkEnd::Nothing => return Err(NvmlError::NOT_SUPPORTED),
        };
        Ok(kind.set(kind_of)?)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Handle, link: u32, info: Out<PciInfo>) {
        let gpu = gpu(device)?;
        Ok(info.set(match link_end(gpu, link)? {
            LinkEnd::Gpu(other) => {
                let model = gpu.sim.lock().devices()[other].model();
                PciInfo::of(pci_bus(other), model.pci_device_id)
            }
            // The links of each GPU are spread over the switches.
            LinkEnd::Switch => PciInfo::of(SWITCH.0 + link / 3, SWITCH.1),
            LinkEnd::Nothing => return Err(NvmlError::NOT_SUPPORTED),
        })?)
    }
}
