//! Sharing linear memory and events between processes. The exporter is charged; an importer gets an address that costs
//! nothing.

use super::address_space::{Allocation, Kind};
use super::checkpoint::shares;
use super::execution::Object;
use super::session::session;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;

const MAGIC: u64 = u64::from_le_bytes(*b"cantlIPC");
/// The importer finds the exporter gone.
const MAP_FAILED: CuError = CuError(205);

/// `CUipcMemHandle`: 64 bytes that processes hand to each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemHandle {
    magic: u64,
    /// The exporter's registration: identifies it for as long as it is alive.
    slot: u64,
    generation: u64,
    size_bytes: u64,
    device_uuid: [u8; 16],
    address: u64,
    rest: u64,
}

const _: () = assert!(size_of::<MemHandle>() == 64);

const EVENT_MAGIC: u64 = u64::from_le_bytes(*b"cantlEVT");

/// `CUipcEventHandle`: as large. All work completes at once here, so it makes no difference which process made the event and
/// whose work it marks.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventHandle {
    magic: u64,
    slot: u64,
    generation: u64,
    rest: [u64; 5],
}

const _: () = assert!(size_of::<EventHandle>() == 64);

fn export_event(event: u64) -> CuResult<EventHandle> {
    let mut inner = session()?.lock();
    let (_, device) = inner.current_device()?;
    if !matches!(inner.objects.get(event)?, Object::Event { .. }) {
        return Err(CuError::INVALID_HANDLE);
    }
    let (slot, generation) = inner.account(device)?.0.identity();
    Ok(EventHandle { magic: EVENT_MAGIC, slot: slot as u64, generation, rest: [0; 5] })
}

fn import_event(handle: EventHandle) -> CuResult<u64> {
    let session = session()?;
    if handle.magic != EVENT_MAGIC {
        return Err(CuError::INVALID_VALUE);
    }
    if !session.sim.is_alive(handle.slot as usize, handle.generation) {
        return Err(MAP_FAILED);
    }
    let mut inner = session.lock();
    inner.current_device()?;
    Ok(inner.objects.insert(Object::Event { flags: 0 }))
}

fn export(address: u64) -> CuResult<MemHandle> {
    let session = session()?;
    let mut inner = session.lock();
    shares();
    let allocation = inner.addresses.get(address).filter(|a| a.kind == Kind::Device);
    let allocation = allocation.ok_or(CuError::INVALID_VALUE)?;
    let device = inner.contexts.device_of(allocation.context)?;
    let device_uuid = session.devices[device].uuid().0;
    let (slot, generation) = inner.account(device)?.0.identity();
    let size_bytes = allocation.size_bytes;
    Ok(MemHandle { magic: MAGIC, slot: slot as u64, generation, size_bytes, device_uuid, address, rest: 0 })
}

fn import(handle: MemHandle) -> CuResult<u64> {
    let session = session()?;
    if handle.magic != MAGIC {
        return Err(CuError::INVALID_VALUE);
    }
    let alive = session.sim.is_alive(handle.slot as usize, handle.generation);
    let mut inner = session.lock();
    shares();
    let (context, device) = inner.current_device()?;
    let own = inner.account(device)?.0.identity() == (handle.slot as usize, handle.generation);
    // A process cannot import from itself.
    if own {
        return Err(CuError::INVALID_CONTEXT);
    }
    if !alive || !session.devices.iter().any(|d| d.uuid().0 == handle.device_uuid) {
        return Err(MAP_FAILED);
    }
    let allocation = Allocation { size_bytes: handle.size_bytes, context, kind: Kind::Imported };
    inner.addresses.insert(allocation).ok_or(CuError::OUT_OF_MEMORY)
}

driver_api! {
    fn cuIpcGetMemHandle(handle: Out<MemHandle>, address: u64) { Ok(handle.set(export(address)?)?) }

    fn cuIpcOpenMemHandle(address: Out<u64>, handle: MemHandle, _flags: u32) { Ok(address.set(import(handle)?)?) }

    fn cuIpcOpenMemHandle_v2(address: Out<u64>, handle: MemHandle, _flags: u32) { Ok(address.set(import(handle)?)?) }

    fn cuIpcGetEventHandle(handle: Out<EventHandle>, event: u64) { Ok(handle.set(export_event(event)?)?) }

    fn cuIpcOpenEventHandle(event: Out<u64>, handle: EventHandle) { Ok(event.set(import_event(handle)?)?) }

    fn cuIpcCloseMemHandle(address: u64) {
        let mut inner = session()?.lock();
        match inner.addresses.get(address) {
            Some(Allocation { kind: Kind::Imported, .. }) => {
                inner.addresses.remove(address);
                Ok(())
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}
