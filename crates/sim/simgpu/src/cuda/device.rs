//! Devices: their number, names and UUIDs.

use std::ffi::c_char;

use super::session::{cuda_version, init, session};
use super::{CuError, driver_api};
use crate::ffi::{Out, Text, TextBuffer};
use crate::identity::pci_bus;

fn pci_name(index: usize) -> String {
    format!("0000:{:02x}:00.0", pci_bus(index))
}

driver_api! {
    fn cuInit(flags: u32) {
        if flags != 0 { Err(CuError::INVALID_VALUE) } else { init() }
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        Ok(version.set(cuda_version())?)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        Ok(count.set(session()?.devices.len() as i32)?)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        session()?.device(ordinal)?;
        Ok(device.set(ordinal)?)
    }

    fn cuDeviceGetName(name: TextBuffer, length: i32, device: i32) {
        let session = session()?;
        name.write(usize::try_from(length).unwrap_or(0), &session.device(device)?.name)?;
        Ok(())
    }

    /// The GPU's, also for a MIG device; the second form gives the MIG device's own.
    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) { Ok(out.set(session()?.device(device)?.gpu_uuid().0)?) }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) { Ok(out.set(session()?.device(device)?.uuid().0)?) }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        Ok(bytes.set(session()?.device(device)?.total_bytes as usize)?)
    }

    fn cuDeviceGetPCIBusId(text: TextBuffer, length: i32, device: i32) {
        let name = pci_name(session()?.device(device)?.index());
        let complete = text.write(usize::try_from(length).unwrap_or(0), &name)?;
        if complete { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let session = session()?;
        // Programs write the domain with 4 or 8 digits, or leave it out.
        let wanted = text.get()?.to_ascii_lowercase();
        let found = session.devices.iter().position(|d| wanted.ends_with(&pci_name(d.index())["0000:".len()..]));
        Ok(device.set(found.ok_or(CuError::INVALID_DEVICE)? as i32)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let capability = session()?.device(device)?.model.capability;
        major.set(capability.0)?;
        Ok(minor.set(capability.1)?)
    }

    fn cuDeviceGetLuid(_luid: Out<c_char>, _mask: Out<u32>, _device: i32) {
        // Exists on Windows only.
        Err(CuError::NOT_SUPPORTED)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let session = session()?;
        session.device(device)?;
        session.device(peer)?;
        Ok(can.set(i32::from(device != peer))?)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, device: i32, peer: i32) {
        const PERFORMANCE_RANK: i32 = 1;
        let session = session()?;
        session.device(device)?;
        session.device(peer)?;
        Ok(value.set(i32::from(attribute != PERFORMANCE_RANK && device != peer))?)
    }
}
