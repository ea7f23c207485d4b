//! Virtual memory management: physical memory (`cuMemCreate`), address ranges (`cuMemAddressReserve`), and mappings of the
//! one into the other. Physical memory is freed when no handle, mapping, descriptor or importer is left in any process. Its
//! owner learns of the last two when it next allocates or asks for the amount of memory.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use super::address_space::{Allocation, Kind};
use super::async_memory::Location;
use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out};
use crate::{GRANULE_BYTES, granules};

const HANDLE_BASE: u64 = 0xC0DD_0000_0000;
const TYPE_PINNED: u32 = 1;
const HANDLE_TYPE_FD: u32 = 1;
const ACCESS_READ_WRITE: u64 = 3;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    windows: usize,
    flags: [u8; 8],
}

/// Physical memory.
struct Physical {
    device: usize,
    size_bytes: u64,
    properties: Properties,
    handles: u32,
    mappings: u32,
    /// Taken from the device by this process: not if another one created it, nor if it is host memory.
    is_ours: bool,
    /// Once it is exported: tells whether a descriptor or an importer is left. Of an importer: tells the owner that there is one.
    shared: Option<Shared>,
}

struct Mapping {
    size_bytes: u64,
    physical: u64,
}

/// Physical memory by handle, mappings by address.
#[derive(Default)]
pub(super) struct Vmm {
    physical: BTreeMap<u64, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    created: u64,
}

/// The contents of an exported file descriptor. The memory belongs to a process; another one that imports it pays
/// nothing.
const EXPORT_BYTES: usize = 32;
const EXPORT_MAGIC: u64 = u64::from_le_bytes(*b"cantlVMM");

impl Vmm {
    fn get(&mut self, handle: u64) -> CuResult<&mut Physical> {
        self.physical.get_mut(&handle).ok_or(CuError::INVALID_VALUE)
    }

    fn insert(&mut self, physical: Physical) -> u64 {
        self.created += 1;
        let handle = HANDLE_BASE + self.created * 16;
        self.physical.insert(handle, physical);
        handle
    }

    /// The start of the mapping that contains `address`, its size, and the device of its memory.
    pub(super) fn mapped(&self, address: u64) -> Option<(u64, u64, usize)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        let device = self.physical.get(&mapping.physical)?.device;
        (address - start < mapping.size_bytes).then_some((start, mapping.size_bytes, device))
    }

    /// Mappings that begin in `[start, start + size)`; an error unless the range is made of whole mappings.
    fn within(&self, start: u64, size_bytes: u64) -> CuResult<Vec<u64>> {
        let end = start.checked_add(size_bytes).ok_or(CuError::INVALID_VALUE)?;
        let mut next = start;
        let mut found = Vec::new();
        for (&at, mapping) in self.mappings.range(start..end) {
            if at != next {
                return Err(CuError::INVALID_VALUE);
            }
            found.push(at);
            next = at + mapping.size_bytes;
        }
        if next == end { Ok(found) } else { Err(CuError::INVALID_VALUE) }
    }
}

impl Inner {
    fn create_physical(&mut self, size_bytes: u64, properties: Properties) -> CuResult<u64> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(GRANULE_BYTES) || properties.kind != TYPE_PINNED {
            return Err(CuError::INVALID_VALUE);
        }
        let is_ours = !properties.location.is_host();
        let device = if is_ours { properties.location.device()? } else { 0 };
        if is_ours {
            self.register(session()?.sim)?;
            self.take_or_collect(|inner| {
                let (registration, account) = inner.account(device)?;
                account.take(registration, granules(size_bytes))
            })?;
        }
        let new = Physical { device, size_bytes, properties, handles: 1, mappings: 0, is_ours, shared: None };
        Ok(self.vmm.insert(new))
    }

    /// Gives physical memory back once nothing refers to it.
    fn collect(&mut self, handle: u64) -> CuResult {
        let p = self.vmm.get(handle)?;
        if p.handles > 0 || p.mappings > 0 || (p.is_ours && p.shared.as_ref().is_some_and(Shared::is_in_use))
        {
            return Ok(());
        }
        let (device, size_bytes, is_ours) = (p.device, p.size_bytes, p.is_ours);
        self.vmm.physical.remove(&handle);
        if !is_ours {
            return Ok(());
        }
        let (registration, account) = self.account(device)?;
        account.give(registration, granules(size_bytes))
    }

    /// Gives back what is kept for descriptors and importers only, where these are gone.
    pub(super) fn collect_shared(&mut self) -> CuResult {
        let shared = self.vmm.physical.iter().filter(|(_, p)| p.shared.is_some()).map(|(&handle, _)| handle);
        shared.collect::<Vec<_>>().into_iter().try_for_each(|handle| self.collect(handle))
    }

    /// Takes memory; if there is none, it retries after memory that is no longer shared has been released.
    pub(super) fn take_or_collect(&mut self, take: impl Fn(&mut Self) -> CuResult) -> CuResult {
        match take(self) {
            Err(CuError::OUT_OF_MEMORY) => self.collect_shared().and_then(|()| take(self)),
            taken => taken,
        }
    }

    fn map(&mut self, address: u64, size_bytes: u64, handle: u64) -> CuResult {
        let (start, range) = self.addresses.containing(address).ok_or(CuError::INVALID_VALUE)?;
        let fits = range.kind == Kind::Reserved && address - start + size_bytes <= range.size_bytes;
        let aligned = (address | size_bytes).is_multiple_of(GRANULE_BYTES);
        let overlaps = self.vmm.mapped(address).is_some()
            || self.vmm.mappings.range(address..address + size_bytes).next().is_some();
        let physical = self.vmm.get(handle)?;
        if !fits || !aligned || overlaps || size_bytes != physical.size_bytes {
            return Err(CuError::INVALID_VALUE);
        }
        physical.mappings += 1;
        self.vmm.mappings.insert(address, Mapping { size_bytes, physical: handle });
        Ok(())
    }

    fn unmap(&mut self, address: u64, size_bytes: u64) -> CuResult {
        for at in self.vmm.within(address, size_bytes)? {
            if let Some(mapping) = self.vmm.mappings.remove(&at) {
                self.vmm.get(mapping.physical)?.mappings -= 1;
                self.collect(mapping.physical)?;
            }
        }
        Ok(())
    }

    fn import(&mut self, file: &File) -> CuResult<u64> {
        let mut bytes = [0; EXPORT_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(|_| CuError::INVALID_VALUE)?;
        let [magic, pid, handle, size_bytes] = words(&bytes);
        if magic != EXPORT_MAGIC {
            return Err(CuError::INVALID_VALUE);
        }
        if pid == u64::from(std::process::id()) {
            self.vmm.get(handle)?.handles += 1;
            return Ok(handle);
        }
        let location = Location { kind: 1, id: 0 };
        let properties =
            Properties { kind: TYPE_PINNED, handle_types: 0, location, windows: 0, flags: [0; 8] };
        Ok(self.vmm.insert(Physical {
            device: 0,
            size_bytes,
            properties,
            handles: 1,
            mappings: 0,
            is_ours: false,
            shared: Some(Shared::with(file)?),
        }))
    }
}

fn words(bytes: &[u8; EXPORT_BYTES]) -> [u64; 4] {
    let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
    std::array::from_fn(word)
}

/// A file descriptor that names physical memory of this process.
fn export(handle: u64, size_bytes: u64) -> CuResult<(OwnedFd, Shared)> {
    // SAFETY: the name is a NUL-terminated constant.
    let raw = unsafe { libc::memfd_create(c"cantle-sim-memory".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(CuError::OUT_OF_MEMORY);
    }
    // SAFETY: `raw` is not negative, so it is the descriptor just opened, which nothing else owns.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
    let words = [EXPORT_MAGIC, u64::from(std::process::id()), handle, size_bytes];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&bytes, 0).map_err(|_| CuError::OUT_OF_MEMORY)?;
    let shared = Shared::beside(&file)?;
    file.lock_shared().map_err(|_| CuError::OUT_OF_MEMORY)?;
    Ok((file.into(), shared))
}

/// The file behind an exported descriptor, opened once more. Every descriptor that goes from process to process, and every importer,
/// holds a shared lock on it; the kernel takes that back when the last copy of a descriptor is closed, however its holder ends.
#[derive(Debug)]
struct Shared(File);

impl Shared {
    fn beside(file: &File) -> CuResult<Self> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(Self(File::open(path).map_err(|_| CuError::OUT_OF_MEMORY)?))
    }

    /// An importer's.
    fn with(file: &File) -> CuResult<Self> {
        let shared = Self::beside(file)?;
        shared.0.lock_shared().map_err(|_| CuError::INVALID_VALUE)?;
        Ok(shared)
    }

    /// Asked by the owner, which has no lock of its own.
    fn is_in_use(&self) -> bool {
        match self.0.try_lock() {
            Ok(()) => self.0.unlock().is_err(),
            Err(_) => true,
        }
    }
}

driver_api! {
    fn cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, _option: i32) {
        let location = properties.get()?.location;
        if !location.is_host() {
            location.device()?;
        }
        Ok(bytes.set(GRANULE_BYTES as usize)?)
    }

    fn cuMemCreate(handle: Out<u64>, size_bytes: usize, properties: In<Properties>, _flags: u64) {
        if handle.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        let created = session()?.lock().create_physical(size_bytes as u64, properties.get()?)?;
        Ok(handle.set(created)?)
    }

    fn cuMemRelease(handle: u64) {
        let mut inner = session()?.lock();
        let physical = inner.vmm.get(handle)?;
        physical.handles = physical.handles.checked_sub(1).ok_or(CuError::INVALID_VALUE)?;
        inner.collect(handle)
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, address: *mut c_void) {
        let mut inner = session()?.lock();
        let (start, ..) = inner.vmm.mapped(address as u64).ok_or(CuError::INVALID_VALUE)?;
        let physical = inner.vmm.mappings.get(&start).ok_or(CuError::INVALID_VALUE)?.physical;
        handle.set(physical)?;
        inner.vmm.get(physical)?.handles += 1;
        Ok(())
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) {
        Ok(properties.set(session()?.lock().vmm.get(handle)?.properties)?)
    }

    fn cuMemAddressReserve(address: Out<u64>, size_bytes: usize, _alignment: usize, _wanted: u64, _flags: u64) {
        let size_bytes = size_bytes as u64;
        if address.is_null() || size_bytes == 0 || !size_bytes.is_multiple_of(GRANULE_BYTES) {
            return Err(CuError::INVALID_VALUE);
        }
        let range = Allocation { size_bytes, context: 0, kind: Kind::Reserved };
        let start = session()?.lock().addresses.insert(range).ok_or(CuError::OUT_OF_MEMORY)?;
        Ok(address.set(start)?)
    }

    fn cuMemAddressFree(address: u64, size_bytes: usize) {
        let mut inner = session()?.lock();
        let range = inner.addresses.get(address).ok_or(CuError::INVALID_VALUE)?;
        let mapped = inner.vmm.mappings.range(address..address + range.size_bytes).next().is_some();
        if range.kind != Kind::Reserved || range.size_bytes != size_bytes as u64 || mapped {
            return Err(CuError::INVALID_VALUE);
        }
        inner.addresses.remove(address);
        Ok(())
    }

    fn cuMemMap(address: u64, size_bytes: usize, offset: usize, handle: u64, _flags: u64) {
        // The real driver knows no other offset either.
        if offset != 0 || size_bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        session()?.lock().map(address, size_bytes as u64, handle)
    }

    fn cuMemUnmap(address: u64, size_bytes: usize) { session()?.lock().unmap(address, size_bytes as u64) }

    fn cuMemSetAccess(address: u64, size_bytes: usize, _descriptions: *const c_void, _count: usize) {
        session()?.lock().vmm.within(address, size_bytes as u64).map(|_| ())
    }

    fn cuMemGetAccess(flags: Out<u64>, _location: In<Location>, address: u64) {
        session()?.lock().vmm.mapped(address).ok_or(CuError::INVALID_VALUE)?;
        Ok(flags.set(ACCESS_READ_WRITE)?)
    }

    fn cuMemExportToShareableHandle(out: *mut c_void, handle: u64, kind: u32, _flags: u64) {
        if kind != HANDLE_TYPE_FD {
            return Err(CuError::NOT_SUPPORTED);
        }
        let mut inner = session()?.lock();
        super::checkpoint::shares();
        let physical = inner.vmm.get(handle)?;
        let descriptor = match &physical.shared {
            // Exported before: one more descriptor of the same file.
            Some(shared) => OwnedFd::from(Shared::with(&shared.0)?.0),
            None => {
                let (descriptor, shared) = export(handle, physical.size_bytes)?;
                physical.shared = Some(shared);
                descriptor
            }
        };
        Out(out.cast::<i32>()).set(descriptor.as_raw_fd())?;
        // From here on the program owns it.
        std::mem::forget(descriptor);
        Ok(())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: *mut c_void, kind: u32) {
        if kind != HANDLE_TYPE_FD {
            return Err(CuError::NOT_SUPPORTED);
        }
        let raw = descriptor as i32;
        if raw < 0 {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not negative, and by the contract of this function the program keeps the descriptor open until it returns; it
        // is borrowed no longer than that.
        let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
        let file = File::from(borrowed.try_clone_to_owned().map_err(|_| CuError::INVALID_VALUE)?);
        let imported = session()?.lock().import(&file)?;
        Ok(handle.set(imported)?)
    }
}
