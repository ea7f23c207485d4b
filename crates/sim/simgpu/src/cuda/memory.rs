//! Linear memory: allocation, freeing, and what is left. Copies are in `transfer`.

use std::ffi::c_void;

use super::address_space::{Allocation, Kind};
use super::session::{Inner, session};
use super::slab::SMALL_BYTES;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;
use crate::{GRANULE_BYTES, granules};

const PITCH_BYTES: u64 = 512;

impl Inner {
    /// Allocates in the current context.
    pub(super) fn allocate(&mut self, size_bytes: u64, kind: Kind) -> CuResult<u64> {
        if size_bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let (context, device) = self.current_device()?;
        if kind == Kind::Device && size_bytes <= SMALL_BYTES {
            return self.allocate_small(device, Allocation { size_bytes, context, kind });
        }
        self.take_or_collect(|inner| inner.take(device, size_bytes, kind))?;
        let address = self.addresses.insert(Allocation { size_bytes, context, kind });
        let placed = address.filter(|&address| kind != Kind::Managed || map_host(address, size_bytes));
        if placed.is_none() {
            if let Some(address) = address {
                self.addresses.remove(address);
            }
            self.give(device, size_bytes, kind)?;
        }
        placed.ok_or(CuError::OUT_OF_MEMORY)
    }

    /// In a slab, which takes a granule if it is a new one.
    fn allocate_small(&mut self, device: usize, allocation: Allocation) -> CuResult<u64> {
        if let Some(address) = self.addresses.slabs.insert(allocation) {
            return Ok(address);
        }
        self.take_or_collect(|inner| inner.take(device, GRANULE_BYTES, Kind::Device))?;
        let slab = Allocation { size_bytes: GRANULE_BYTES, kind: Kind::Slab, ..allocation };
        let Some(base) = self.addresses.insert(slab) else {
            self.give(device, GRANULE_BYTES, Kind::Device)?;
            return Err(CuError::OUT_OF_MEMORY);
        };
        self.addresses.slabs.add(base, allocation.context);
        self.addresses.slabs.insert(allocation).ok_or(CuError::OUT_OF_MEMORY)
    }

    fn take(&mut self, device: usize, size_bytes: u64, kind: Kind) -> CuResult {
        match kind {
            Kind::Pool(pool) => return self.pool_take(pool, size_bytes),
            // Its pages come to a device when they are used there.
            Kind::Managed => return Ok(()),
            _ => {}
        }
        let (registration, account) = self.account(device)?;
        account.allocate(registration, size_bytes)
    }

    fn give(&mut self, device: usize, size_bytes: u64, kind: Kind) -> CuResult {
        match kind {
            Kind::Pool(pool) => return self.pool_return(pool, size_bytes),
            Kind::Managed => return Ok(()),
            _ => {}
        }
        let (registration, account) = self.account(device)?;
        account.free(registration, size_bytes)
    }

    /// Frees what starts at `address`: memory from `cuMemAlloc`, a pool or a graph, whichever function is used.
    pub(super) fn free(&mut self, address: u64) -> CuResult {
        let Allocation { size_bytes, context, kind } =
            self.addresses.get(address).ok_or(CuError::INVALID_VALUE)?;
        match kind {
            Kind::Device | Kind::Pool(_) => {}
            Kind::Managed => {
                self.migrate(address, size_bytes, None)?;
                unmap_host(address, size_bytes);
            }
            Kind::Graph(pool) => return self.free_graph_memory(address, pool),
            Kind::Reserved | Kind::Imported | Kind::Slab => return Err(CuError::INVALID_VALUE),
        }
        // Its context is alive: destroying one frees everything in it.
        let device = self.contexts.device_of(context)?;
        if let Some(ended) = self.addresses.slabs.remove(address) {
            let Some(slab) = ended else { return Ok(()) };
            self.addresses.remove(slab);
            return self.give(device, GRANULE_BYTES, Kind::Device);
        }
        self.addresses.remove(address);
        self.give(device, size_bytes, kind)
    }

    /// Frees everything allocated in a context that is about to end.
    pub(super) fn free_all_of(&mut self, context: u32) -> CuResult {
        for address in self.addresses.in_context(context) {
            if self.addresses.get(address).is_some_and(|a| a.kind == Kind::Imported) {
                self.addresses.remove(address);
            } else {
                self.free(address)?;
            }
        }
        self.objects.modules_of(context).into_iter().try_for_each(|module| self.unload(module))?;
        self.arrays.in_context(context).into_iter().try_for_each(|array| self.destroy_array(array))
    }
}

/// Puts host memory behind a managed allocation. Pages come into being when touched; none are reserved.
fn map_host(address: u64, size_bytes: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let length = (granules(size_bytes) * GRANULE_BYTES) as usize;
    let wanted = address as *mut c_void;
    // SAFETY: with MAP_FIXED_NOREPLACE the call fails where something is mapped, and with kernels that do not know the
    // flag the address is a hint; so no memory that is in use changes.
    let got = unsafe { libc::mmap(wanted, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got != wanted && got != libc::MAP_FAILED {
        // A kernel older than 4.17 takes the address as a hint.
        // SAFETY: the mapping just made, with the same length; nothing refers to it yet.
        unsafe { libc::munmap(got, length) };
    }
    got == wanted
}

fn unmap_host(address: u64, size_bytes: u64) {
    // SAFETY: `free` found a managed allocation of this address and size, for which `map_host` made a mapping of this length. The
    // program has freed the memory, or ended its context, and so does not use it any more.
    unsafe { libc::munmap(address as *mut c_void, (granules(size_bytes) * GRANULE_BYTES) as usize) };
}

fn allocate(out: Out<u64>, size_bytes: u64, kind: Kind) -> CuResult {
    let session = session()?;
    if out.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let mut inner = session.lock();
    inner.forbid_unsafe()?;
    let address = inner.allocate(size_bytes, kind)?;
    Ok(out.set(address)?)
}

driver_api! {
    fn cuMemAlloc_v2(address: Out<u64>, size_bytes: usize) {
        allocate(address, size_bytes as u64, Kind::Device)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
            return Err(CuError::INVALID_VALUE);
        }
        let row = (width as u64).checked_next_multiple_of(PITCH_BYTES).ok_or(CuError::OUT_OF_MEMORY)?;
        let size_bytes = row.checked_mul(height as u64).ok_or(CuError::OUT_OF_MEMORY)?;
        allocate(address, size_bytes, Kind::Device)?;
        Ok(pitch.set(row as usize)?)
    }

    /// Takes nothing of a device, and may be larger than one: see `managed`.
    fn cuMemAllocManaged(address: Out<u64>, size_bytes: usize, flags: u32) {
        if !matches!(flags, 1 | 2 | 4) {
            return Err(CuError::INVALID_VALUE);
        }
        allocate(address, size_bytes as u64, Kind::Managed)
    }

    fn cuMemFree_v2(address: u64) {
        if address == 0 {
            return session().map(|_| ());
        }
        let mut inner = session()?.lock();
        inner.forbid_unsafe()?;
        inner.free(address)
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let session = session()?;
        let mut inner = session.lock();
        let (_, device) = inner.current_device()?;
        inner.collect_shared()?;
        let (registration, account) = inner.account(device)?;
        let total_bytes = session.devices[device].total_bytes;
        let free_bytes = total_bytes.saturating_sub(account.used_bytes(registration));
        free.set_if_asked(free_bytes as usize);
        total.set_if_asked(total_bytes as usize);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        let range = session()?.lock().range(address).ok_or(CuError::NOT_FOUND)?;
        base.set_if_asked(range.start);
        size.set_if_asked(range.size_bytes as usize);
        Ok(())
    }
}
