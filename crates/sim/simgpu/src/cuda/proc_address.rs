//! `cuGetProcAddress`: from a base name, a CUDA version and flags to the function a program of that version means.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

use super::session::cuda_version;
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out, Text};
use crate::private_table::{self, PrivateTable};

/// All functions of one base name.
struct Name {
    base: &'static str,
    variants: &'static [Variant],
}

/// `cuMemcpyHtoD_v2_ptds` is level 2 of `cuMemcpyHtoD`, for per-thread default streams.
struct Variant {
    level: u32,
    per_thread: bool,
    /// The CUDA version that introduced it.
    version: u32,
    function: Function,
}

struct Function(*const c_void);
// SAFETY: the address of a function of this library, which never changes; it is compared and handed out, never read through.
unsafe impl Sync for Function {}

include!(concat!(env!("OUT_DIR"), "/cuda_generated.rs"));

const FLAG_LEGACY_STREAM: u64 = 1;
const FLAG_PER_THREAD_STREAM: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Success = 0,
    NotFound = 1,
    VersionNotSufficient = 2,
}

/// The newest variant that `cuda_version` and the driver know; among its two stream variants the one that `flags` asks for.
fn find(base: &str, cuda_version: u32, flags: u64, driver: u32) -> Result<*const c_void, Status> {
    let at = NAMES.binary_search_by(|name| name.base.cmp(base)).map_err(|_| Status::NotFound)?;
    if NAMES[at].variants.iter().all(|v| v.version > driver) {
        return Err(Status::NotFound);
    }
    let known = |v: &&Variant| v.version <= cuda_version.min(driver);
    let legacy = NAMES[at].variants.iter().filter(|v| !v.per_thread).filter(known).max_by_key(|v| v.level);
    let chosen = legacy.ok_or(Status::VersionNotSufficient)?;
    let per_thread =
        NAMES[at].variants.iter().filter(known).find(|v| v.per_thread && v.level == chosen.level);
    match per_thread.filter(|_| flags & FLAG_PER_THREAD_STREAM != 0) {
        Some(variant) => Ok(variant.function.0),
        None => Ok(chosen.function.0),
    }
}

fn look_up(symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) -> CuResult<Status> {
    if function.is_null() || flags & !(FLAG_LEGACY_STREAM | FLAG_PER_THREAD_STREAM) != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let [version, driver] = [version, cuda_version()].map(|number| u32::try_from(number).unwrap_or(0));
    let found = find(symbol.get()?, version, flags, driver);
    function.set(found.unwrap_or(std::ptr::null()))?;
    Ok(found.err().unwrap_or(Status::Success))
}

driver_api! {
    /// CUDA 11.3 to 11.8: a missing symbol is an error.
    fn cuGetProcAddress(symbol: Text, function: Out<*const c_void>, version: i32, flags: u64) {
        match look_up(symbol, function, version, flags)? {
            Status::Success => Ok(()),
            _ => Err(CuError::NOT_FOUND),
        }
    }

    /// CUDA 12: a missing symbol is a status; an error only for callers that do not ask for the status.
    fn cuGetProcAddress_v2(
        symbol: Text,
        function: Out<*const c_void>,
        version: i32,
        flags: u64,
        status: Out<i32>,
    ) {
        let found = look_up(symbol, function, version, flags)?;
        status.set_if_asked(found as i32);
        if status.is_null() && found != Status::Success { Err(CuError::NOT_FOUND) } else { Ok(()) }
    }
}

driver_api! {
    /// The private tables through which NVIDIA's own libraries reach the driver are not simulated. There is one for our stand-in
    /// of the CUDA runtime.
    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        static TABLE: PrivateTable = PrivateTable {
            size_bytes: size_of::<PrivateTable>(),
            primary_context_retain: super::context::retain_primary,
        };
        let known = id.get()? == private_table::ID;
        table.set(if known { (&raw const TABLE).cast() } else { std::ptr::null() })?;
        if known { Ok(()) } else { Err(CuError::NOT_FOUND) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{memory, transfer};

    fn address(base: &str, version: u32, flags: u64) -> Result<usize, Status> {
        find(base, version, flags, 12040).map(|p| p as usize)
    }

    #[test]
    fn chooses_by_version_and_stream_kind() {
        let v2 = memory::cuMemAlloc_v2 as *const c_void as usize;
        assert_eq!(address("cuMemAlloc", 12000, 0), Ok(v2));
        assert_eq!(address("cuMemAlloc", 3020, 0), Ok(v2));
        assert_ne!(address("cuMemAlloc", 3010, 0), Ok(v2));
        assert_eq!(address("cuMemAlloc", 1000, 0), Err(Status::VersionNotSufficient));
        assert_eq!(address("cuMemAllocAsync", 11010, 0), Err(Status::VersionNotSufficient));
        assert_eq!(address("cuNoSuchThing", 12000, 0), Err(Status::NotFound));
        let (plain, ptds) =
            (transfer::cuMemcpyHtoD_v2 as *const c_void, transfer::cuMemcpyHtoD_v2_ptds as *const c_void);
        assert_eq!(address("cuMemcpyHtoD", 12000, FLAG_LEGACY_STREAM), Ok(plain as usize));
        assert_eq!(address("cuMemcpyHtoD", 12000, FLAG_PER_THREAD_STREAM), Ok(ptds as usize));
        assert_eq!(address("cuMemcpyHtoD", 6050, FLAG_PER_THREAD_STREAM), Ok(plain as usize));
    }

    #[test]
    fn a_driver_has_the_names_of_its_time() {
        let of_driver = |base, driver| find(base, 13020, 0, driver).map(|p| p as usize);
        assert_eq!(of_driver("cuLogsCurrent", 12040), Err(Status::NotFound));
        assert!(of_driver("cuLogsCurrent", 13000).is_ok());
        assert_eq!(
            of_driver("cuCtxCreate", 12040),
            Ok(crate::cuda::context::cuCtxCreate_v3 as *const c_void as usize)
        );
        assert_eq!(
            of_driver("cuCtxCreate", 13000),
            Ok(crate::cuda::context::cuCtxCreate_v4 as *const c_void as usize)
        );
        assert_eq!(of_driver("cuLibraryLoadData", 11040), Err(Status::NotFound));
    }
}
