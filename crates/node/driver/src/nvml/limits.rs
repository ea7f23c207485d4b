//! Memory limits of control groups (NVML 615). `nvml-wrapper-sys` does not have these functions yet.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cantle_model::LimitBackend;

use super::*;
use crate::dmem::Dmem;
use crate::native_limit::{GroupMemory, LimitSupport, NativeLimit};

/// `nvmlSetMemoryLimits_v1_t`. It has no version field.
#[repr(C)]
struct NewLimits {
    name_space: *const c_char,
    soft_limit: u64,
    hard_limit: u64,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
struct KnownLimits {
    name_space: *const c_char,
    soft_limit: u64,
    hard_limit: u64,
    current_used: u64,
}

type Set = unsafe extern "C" fn(nvmlDevice_t, *mut NewLimits) -> nvmlReturn_t;
type Get = unsafe extern "C" fn(nvmlDevice_t, *mut KnownLimits) -> nvmlReturn_t;

const SET: &str = "nvmlDeviceSetMemoryLimits_v1";
const GET: &str = "nvmlDeviceGetMemoryLimits_v1";
/// No hard limit.
const UNLIMITED: u64 = u64::MAX;

impl Session {
    fn set_limits(&self, gpu: &GpuUuid, group: &Path, hard_limit: u64) -> Result<()> {
        let (device, name) = (self.device(gpu)?, c_path(group, SET)?);
        // SAFETY: `Set` is the function's type in NVIDIA's header of r615.
        let set = unsafe { self.lib.__library.get::<Set>(SET.as_bytes()) };
        let set = set.map_err(|_| DriverError::TooOld { function: SET.into() })?;
        let mut limits = NewLimits { name_space: name.as_ptr(), soft_limit: 0, hard_limit };
        // SAFETY: NVML checks the handle, which is its own; the structure and the text that it points to outlive the call.
        self.check(SET, Some(gpu), unsafe { set(device, &raw mut limits) })
    }
}

impl Session {
    fn limits_of(&self, gpu: &GpuUuid, group: &Path) -> Result<GroupMemory> {
        let (device, name) = (self.device(gpu)?, c_path(group, GET)?);
        // SAFETY: `Get` is the function's type in NVIDIA's header of r615.
        let get = unsafe { self.lib.__library.get::<Get>(GET.as_bytes()) };
        let get = get.map_err(|_| DriverError::TooOld { function: GET.into() })?;
        let mut limits =
            KnownLimits { name_space: name.as_ptr(), soft_limit: 0, hard_limit: UNLIMITED, current_used: 0 };
        // SAFETY: NVML checks the handle, which is its own; the structure and the text that it points to outlive the call.
        self.check(GET, Some(gpu), unsafe { get(device, &raw mut limits) })?;
        let hard_bytes = Some(limits.hard_limit).filter(|hard| *hard != UNLIMITED);
        Ok(GroupMemory { hard_bytes, used_bytes: limits.current_used })
    }

    /// The kernel's own controller of the GPU's memory.
    fn dmem(&self, gpu: &GpuUuid, group: &Path) -> std::result::Result<Dmem, String> {
        Dmem::of(&self.location(gpu).map_err(|error| error.to_string())?.pci_bus_id, group)
    }

    /// The answer of NVML, or that of the kernel where NVML lacks the function.
    fn by_either<T>(
        &self,
        (gpu, group): (&GpuUuid, &Path),
        by_nvml: Result<T>,
        by_kernel: impl FnOnce(&Dmem) -> Result<T>,
    ) -> Result<T> {
        match by_nvml {
            Err(error) if lacks_function(&error) => match self.dmem(gpu, group) {
                Ok(dmem) => by_kernel(&dmem),
                Err(_) => Err(error),
            },
            answer => answer,
        }
    }
}

impl NativeLimit for Session {
    fn probe(&self, gpu: &GpuUuid, group: &Path) -> LimitSupport {
        match self.gpu(gpu) {
            Ok(found) if found.mig => {
                return LimitSupport::Unsupported(
                    "a GPU in MIG mode has none; the hardware enforces instances".to_owned(),
                );
            }
            Ok(_) => {}
            Err(error) => return LimitSupport::Unsupported(error.to_string()),
        }
        match self.limits_of(gpu, group) {
            Ok(_) => LimitSupport::Supported(LimitBackend::Nvml),
            Err(error) if lacks_function(&error) => match self.dmem(gpu, group) {
                Ok(_) => LimitSupport::Supported(LimitBackend::Dmem),
                Err(why) => {
                    let driver = self.versions().driver;
                    LimitSupport::Unsupported(format!(
                        "driver {driver} does not offer them here (they require driver 615, CUDA 13.4 and Linux 6.14), and {why}"
                    ))
                }
            },
            Err(error) => LimitSupport::Unsupported(error.to_string()),
        }
    }

    fn set(&self, gpu: &GpuUuid, group: &Path, hard_bytes: u64) -> Result<()> {
        let set = self.set_limits(gpu, group, hard_bytes);
        self.by_either((gpu, group), set, |dmem| dmem.set(group, Some(hard_bytes)))
    }

    fn clear(&self, gpu: &GpuUuid, group: &Path) -> Result<()> {
        let cleared = self.set_limits(gpu, group, UNLIMITED);
        self.by_either((gpu, group), cleared, |dmem| dmem.set(group, None))
    }

    fn used(&self, gpu: &GpuUuid, group: &Path) -> Result<GroupMemory> {
        let known = self.limits_of(gpu, group);
        self.by_either((gpu, group), known, |dmem| dmem.used(group))
    }

    fn doors(&self, gpu: &GpuUuid, group: &Path) -> Result<Vec<PathBuf>> {
        let known = self.limits_of(gpu, group).map(|_| None);
        Ok(self.by_either((gpu, group), known, |dmem| dmem.door(group))?.into_iter().collect())
    }
}

/// No directory of a group has a NUL in its path.
fn c_path(group: &Path, function: &'static str) -> Result<CString> {
    CString::new(group.as_os_str().as_bytes()).map_err(|why| DriverError::Nvml {
        function: function.into(),
        gpu: None,
        code: NVML_ERROR_INVALID_ARGUMENT,
        text: why.to_string(),
    })
}
