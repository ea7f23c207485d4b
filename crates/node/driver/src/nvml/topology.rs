//! The connections of GPUs: NVLinks and the way over PCIe. A connection that the driver or a GPU does not report stays unknown; nothing
//! here fails.

use cantle_model::{GpuLink, PciePath};
use nvml_wrapper_sys::bindings::{
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU as REMOTE_GPU,
    nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH as REMOTE_SWITCH,
};

use super::*;

/// `NVML_NVLINK_MAX_LINKS` of the newest header; 18 in older ones.
const MOST_LINKS: c_uint = 36;
/// `NVML_FEATURE_ENABLED`
const ENABLED: c_uint = 1;

/// PCI domain, bus and device.
type Address = (u32, u32, u32);

/// The connections that one GPU reports.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connections {
    address: Option<Address>,
    /// Active NVLinks to a switch.
    to_switches: u32,
    /// The other end of each other active NVLink.
    to_gpus: Vec<Address>,
    /// The way over PCIe to each GPU that was asked about.
    paths: Vec<Option<PciePath>>,
}

impl Connections {
    /// The connection of the GPUs at the positions `one` and `other`.
    pub(crate) fn link(all: &[Self], one: usize, other: usize) -> GpuLink {
        let direct = |from: &Self, to: &Self| {
            let ends = from.to_gpus.iter().filter(|end| Some(**end) == to.address);
            u32::try_from(ends.count()).unwrap_or(u32::MAX)
        };
        let (one_end, other_end) = (&all[one], &all[other]);
        let by_switch = one_end.to_switches.min(other_end.to_switches);
        let path = |from: &Self, to: usize| from.paths.get(to).copied().flatten();
        GpuLink {
            nvlinks: by_switch + direct(one_end, other_end).max(direct(other_end, one_end)),
            path: path(one_end, other).or_else(|| path(other_end, one)),
        }
    }
}

impl Session {
    /// The connections of `gpu`; its way to each of `others`, in that order.
    pub(crate) fn connections(&self, gpu: &GpuUuid, others: &[GpuUuid]) -> Result<Connections> {
        let handle = self.device(gpu)?;
        let path = |other: &GpuUuid| {
            let mut level = 0;
            let other = self.device(other).ok().filter(|_| other != gpu)?;
            nvml!(self, Some(gpu), nvmlDeviceGetTopologyCommonAncestor(handle, other, &raw mut level))
                .ok()?;
            PciePath::from_nvml(level)
        };
        let mut found = Connections {
            address: self.address(gpu, handle).ok(),
            paths: others.iter().map(path).collect(),
            ..Connections::default()
        };
        for link in 0..MOST_LINKS {
            if !self.is_link_active(gpu, handle, link) {
                continue;
            }
            match self.remote_type(gpu, handle, link) {
                Some(REMOTE_SWITCH) => found.to_switches += 1,
                // Drivers without the type report the address of a GPU too.
                Some(REMOTE_GPU) | None => found.to_gpus.extend(self.remote_address(gpu, handle, link)),
                Some(_) => {}
            }
        }
        Ok(found)
    }

    /// The driver refuses links that the GPU does not have.
    fn is_link_active(&self, gpu: &GpuUuid, handle: nvmlDevice_t, link: c_uint) -> bool {
        let mut state = 0;
        let asked = nvml!(self, Some(gpu), nvmlDeviceGetNvLinkState(handle, link, &raw mut state));
        asked.is_ok() && state == ENABLED
    }

    fn remote_type(&self, gpu: &GpuUuid, handle: nvmlDevice_t, link: c_uint) -> Option<c_uint> {
        let mut kind = 0;
        nvml!(self, Some(gpu), nvmlDeviceGetNvLinkRemoteDeviceType(handle, link, &raw mut kind)).ok()?;
        Some(kind)
    }

    fn remote_address(&self, gpu: &GpuUuid, handle: nvmlDevice_t, link: c_uint) -> Option<Address> {
        let mut pci = no_address();
        nvml!(self, Some(gpu), nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, &raw mut pci)).ok()?;
        Some((pci.domain, pci.bus, pci.device))
    }

    fn address(&self, gpu: &GpuUuid, handle: nvmlDevice_t) -> Result<Address> {
        let mut pci = no_address();
        nvml!(self, Some(gpu), nvmlDeviceGetPciInfo_v3(handle, &raw mut pci))?;
        Ok((pci.domain, pci.bus, pci.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(at: u32, to_switches: u32, to_gpus: &[u32], paths: &[Option<PciePath>]) -> Connections {
        let address = |at: &u32| (0, *at, 0);
        Connections {
            address: Some(address(&at)),
            to_switches,
            to_gpus: to_gpus.iter().map(address).collect(),
            paths: paths.to_vec(),
        }
    }

    #[test]
    fn links_are_counted_by_their_ends() {
        let (node, sys) = (Some(PciePath::Node), Some(PciePath::Sys));
        let all = [
            gpu(0, 0, &[1, 1, 2, 9], &[None, node, sys]),
            gpu(1, 0, &[0, 0], &[node, None, None]),
            // One end alone reports the link, and one end alone the way.
            gpu(2, 0, &[], &[None, sys, None]),
        ];
        assert_eq!(Connections::link(&all, 0, 1), GpuLink { nvlinks: 2, path: node });
        assert_eq!(Connections::link(&all, 0, 2), GpuLink { nvlinks: 1, path: sys });
        assert_eq!(Connections::link(&all, 1, 2), GpuLink { nvlinks: 0, path: sys });
        let unknown = [Connections::default(), Connections::default()];
        assert_eq!(Connections::link(&unknown, 0, 1), GpuLink::default());
    }

    #[test]
    fn a_switch_connects_as_many_links_as_both_ends_have() {
        let all = [gpu(0, 12, &[], &[]), gpu(1, 11, &[], &[]), gpu(2, 0, &[], &[])];
        assert_eq!(Connections::link(&all, 0, 1).nvlinks, 11);
        assert_eq!(Connections::link(&all, 0, 2).nvlinks, 0);
    }
}
