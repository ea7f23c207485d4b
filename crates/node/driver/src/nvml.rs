//! One NVML session: the library stays loaded and initialized, and handles are cached. To open and close it for each
//! call would be slow and racy.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_uint};
use std::path::PathBuf;
use std::sync::OnceLock;

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Slice};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
    nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU, nvmlUtilization_t,
};

use crate::libraries::NVML_SONAME;
use crate::{
    Checkpoints, ContainerParts, ContextMemory, Driver, DriverError, Installation, Libraries, Load, Location,
    Memory, NativeLimit, ProcessMemory, Result, Versions, Xid, context, libraries, nodes,
};

const NVML_SUCCESS: nvmlReturn_t = 0;
const NVML_ERROR_INVALID_ARGUMENT: nvmlReturn_t = 2;
const NVML_ERROR_NOT_SUPPORTED: nvmlReturn_t = 3;
const NVML_ERROR_INSUFFICIENT_SIZE: nvmlReturn_t = 7;
const NVML_ERROR_FUNCTION_NOT_FOUND: nvmlReturn_t = 13;
const NVML_ERROR_ARGUMENT_VERSION_MISMATCH: nvmlReturn_t = 25;
/// `nvmlMemory_v2`: the structure's size, and 2 in the upper byte.
const MEMORY_VERSION_2: c_uint = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;
/// NVML's "not available" for a process's memory.
const VALUE_NOT_AVAILABLE: u64 = u64::MAX;
/// NVML's "not in an instance" for a process.
const NO_INSTANCE: u32 = u32::MAX;
/// Long enough for every name and version that NVML returns (its own limits are 80 to 96).
const TEXT_LEN: usize = 128;

/// Calls an NVML function and turns its code into a `Result`.
macro_rules! nvml {
    ($session:expr, $gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        match $session.lib.$function.as_ref() {
            // SAFETY: the function has the signature of NVIDIA's header (nvml-wrapper-sys) and stays loaded as long as the
            // session. NVML refuses calls before `nvmlInit` itself. Handles are NVML's own, which it checks. Every pointer
            // argument at the macro's uses is null where NVML allows that, or points to a local that outlives the call: one
            // value, or a buffer of as many as the count argument next to it says or, where NVML has no such argument, as
            // its profile's `instanceCount` says.
            Ok(function) => $session.check(stringify!($function), $gpu, unsafe { function($($arg),*) }),
            Err(_) => Err(DriverError::TooOld { function: stringify!($function).into() }),
        }
    };
}

mod busy;
mod events;
mod limits;
mod mig;
mod process_lists;
mod topology;

pub(crate) use topology::Connections;

struct Device {
    handle: nvmlDevice_t,
    gpu: Gpu,
    /// Its MIG profiles, once they have been read.
    table: OnceLock<Table>,
    /// Its event set, once created; `None` for a GPU that reports nothing.
    events: OnceLock<Option<events::EventSet>>,
}

/// A GPU that NVML counts and cannot open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostGpu {
    /// Its number.
    pub index: u32,
    /// The properties that NVML reports.
    pub why: DriverError,
}

pub(crate) struct Session {
    lib: NvmlLib,
    installation: Installation,
    probe_exe: PathBuf,
    devices: BTreeMap<GpuUuid, Device>,
    lost: Vec<LostGpu>,
    third_lists: OnceLock<bool>,
}

// SAFETY: only NVML's handles keep it from being `Send` automatically. They are opaque, never dereferenced here, and by
// NVML's documentation valid in every thread.
unsafe impl Send for Session {}
// SAFETY: NVML's documentation says that its functions may be called by several threads at a time. All state that changes
// after `open` is in `OnceLock`s; the handles never change.
unsafe impl Sync for Session {}

impl Session {
    pub(crate) fn open(installation: &Installation, probe_exe: PathBuf) -> Result<Self> {
        let mut session = Self::connect(installation, probe_exe)?;
        let mut count: c_uint = 0;
        nvml!(session, None, nvmlDeviceGetCount_v2(&raw mut count))?;
        for index in 0..count {
            match session.find_device(index) {
                Ok(device) => drop(session.devices.insert(device.gpu.uuid.clone(), device)),
                // The others serve.
                Err(why) if why.is_of_one_gpu() => session.lost.push(LostGpu { index, why }),
                Err(error) => return Err(error),
            }
        }
        Ok(session)
    }

    /// A session that knows one GPU only: finding one takes some 20 ms.
    pub(crate) fn of_one(installation: &Installation, index: u32, uuid: &GpuUuid) -> Result<Self> {
        let mut session = Self::connect(installation, PathBuf::new())?;
        let device = session.find_device(index)?;
        if device.gpu.uuid != *uuid {
            return Err(DriverError::NoSuchGpu(uuid.clone()));
        }
        session.devices.insert(uuid.clone(), device);
        Ok(session)
    }

    fn connect(installation: &Installation, probe_exe: PathBuf) -> Result<Self> {
        let lib = installation.nvml().unwrap_or_else(load)?;
        let (installation, devices) = (installation.clone(), BTreeMap::new());
        let session =
            Self { lib, installation, probe_exe, devices, lost: Vec::new(), third_lists: OnceLock::new() };
        nvml!(session, None, nvmlInit_v2())?;
        Ok(session)
    }

    fn find_device(&self, index: u32) -> Result<Device> {
        let mut handle: nvmlDevice_t = std::ptr::null_mut();
        nvml!(self, None, nvmlDeviceGetHandleByIndex_v2(index, &raw mut handle))?;
        let uuid = GpuUuid(text(|buf, len| nvml!(self, None, nvmlDeviceGetUUID(handle, buf, len)))?);
        let model = text(|buf, len| nvml!(self, Some(&uuid), nvmlDeviceGetName(handle, buf, len)))?;
        let mig = self.mig_mode(handle, &uuid)?;
        let memory_bytes = match self.memory_of(handle, &uuid) {
            // A container may not ask the parent of its MIG devices; the profile of all of it has a little less.
            Err(refused) if mig && refused.is_no_permission() => self.largest_profile_bytes(handle, &uuid)?,
            memory => memory?.total_bytes,
        };
        let gpu = Gpu { uuid, index, model, memory_bytes, mig };
        Ok(Device { handle, gpu, table: OnceLock::new(), events: OnceLock::new() })
    }

    /// One GPU as it is now: its MIG mode is the one thing that can change while we run.
    pub(crate) fn gpu(&self, uuid: &GpuUuid) -> Result<Gpu> {
        let mig = self.mig_mode(self.device(uuid)?, uuid)?;
        Ok(Gpu { mig, ..self.devices[uuid].gpu.clone() })
    }

    fn device(&self, gpu: &GpuUuid) -> Result<nvmlDevice_t> {
        let device = self.devices.get(gpu).ok_or_else(|| DriverError::NoSuchGpu(gpu.clone()))?;
        Ok(device.handle)
    }

    /// Without what the driver keeps for itself, 0.4 to 1 GiB of a GPU, which no program can have. Drivers before 510
    /// do not tell: there it counts as used.
    fn memory_of(&self, handle: nvmlDevice_t, gpu: &GpuUuid) -> Result<Memory> {
        let mut memory =
            nvmlMemory_v2_t { version: MEMORY_VERSION_2, total: 0, reserved: 0, free: 0, used: 0 };
        match nvml!(self, Some(gpu), nvmlDeviceGetMemoryInfo_v2(handle, &raw mut memory)) {
            Ok(()) => {
                return Ok(Memory {
                    total_bytes: memory.total.saturating_sub(memory.reserved),
                    used_bytes: memory.used,
                    free_bytes: memory.free,
                });
            }
            Err(error) if lacks_function(&error) => {}
            Err(error) => return Err(error),
        }
        let mut memory = nvmlMemory_t { total: 0, free: 0, used: 0 };
        nvml!(self, Some(gpu), nvmlDeviceGetMemoryInfo(handle, &raw mut memory))?;
        Ok(Memory { total_bytes: memory.total, used_bytes: memory.used, free_bytes: memory.free })
    }

    fn mig_mode(&self, handle: nvmlDevice_t, gpu: &GpuUuid) -> Result<bool> {
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        match nvml!(self, Some(gpu), nvmlDeviceGetMigMode(handle, &raw mut current, &raw mut pending)) {
            Ok(()) => Ok(current == 1),
            // A GPU without MIG, or a driver older than MIG.
            Err(DriverError::Nvml { code: NVML_ERROR_NOT_SUPPORTED, .. } | DriverError::TooOld { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn check(&self, function: &'static str, gpu: Option<&GpuUuid>, code: nvmlReturn_t) -> Result<()> {
        if code == NVML_SUCCESS {
            return Ok(());
        }
        let text = match self.lib.nvmlErrorString.as_ref() {
            Ok(error_string) => {
                // SAFETY: by NVML's documentation it takes any code and returns a constant NUL-terminated string, which stays as
                // long as the library is loaded; it is copied here.
                unsafe { CStr::from_ptr(error_string(code)) }.to_string_lossy().into_owned()
            }
            Err(_) => "unknown error".to_owned(),
        };
        Err(DriverError::Nvml { function: function.into(), gpu: gpu.cloned(), code, text })
    }

    /// The GPUs that could not be opened at the start.
    pub(crate) fn lost_gpus(&self) -> Vec<LostGpu> {
        self.lost.clone()
    }

    /// Two-step protocol of NVML's lists: for a buffer that is too small NVML returns the size that it needs.
    fn process_list(
        &self,
        call: impl Fn(*mut c_uint, *mut nvmlProcessInfo_t) -> Result<()>,
    ) -> Result<Vec<nvmlProcessInfo_t>> {
        let empty = nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        // Room for more than most GPUs have: the driver goes through all of them at each call.
        let mut infos = vec![empty; 512];
        loop {
            let mut count = c_uint::try_from(infos.len()).unwrap_or(c_uint::MAX);
            match call(&raw mut count, infos.as_mut_ptr()) {
                Ok(()) => {
                    infos.truncate(count as usize);
                    return Ok(infos);
                }
                Err(DriverError::Nvml { code: NVML_ERROR_INSUFFICIENT_SIZE, .. }) => {
                    // Some head-room: processes come and go between the two calls.
                    infos.resize(count as usize + 16, empty);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Drivers 535.43 to 535.86 fill longer rows than the header of any other driver says for the third version of the lists.
    fn has_third_lists(&self) -> bool {
        if let Some(&known) = self.third_lists.get() {
            return known;
        }
        let driver = text(|buf, len| nvml!(self, None, nvmlSystemGetDriverVersion(buf, len)));
        // A driver that does not answer is asked again.
        driver.is_ok_and(|driver| *self.third_lists.get_or_init(|| !has_long_rows(&driver)))
    }

    fn compute_processes(&self, gpu: &GpuUuid, handle: nvmlDevice_t) -> Result<Vec<nvmlProcessInfo_t>> {
        let second = || {
            self.process_list(|count, infos| {
                nvml!(self, Some(gpu), nvmlDeviceGetComputeRunningProcesses_v2(handle, count, infos))
            })
        };
        if !self.has_third_lists() {
            return second();
        }
        let third = self.process_list(|count, infos| {
            nvml!(self, Some(gpu), nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos))
        });
        if third.as_ref().is_err_and(DriverError::is_too_old) { second() } else { third }
    }

    /// Processes that draw, and clients of MPS. Drivers that do not have these lists have none of them to show.
    fn other_processes(&self, gpu: &GpuUuid, handle: nvmlDevice_t) -> Result<Vec<Vec<nvmlProcessInfo_t>>> {
        let lists = if self.has_third_lists() {
            [
                self.process_list(|count, infos| {
                    nvml!(self, Some(gpu), nvmlDeviceGetGraphicsRunningProcesses_v3(handle, count, infos))
                }),
                self.process_list(|count, infos| {
                    nvml!(self, Some(gpu), nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, count, infos))
                }),
            ]
        } else {
            [
                self.process_list(|count, infos| {
                    nvml!(self, Some(gpu), nvmlDeviceGetGraphicsRunningProcesses_v2(handle, count, infos))
                }),
                self.process_list(|count, infos| {
                    nvml!(self, Some(gpu), nvmlDeviceGetMPSComputeRunningProcesses_v2(handle, count, infos))
                }),
            ]
        };
        let mut all = Vec::new();
        for list in lists {
            match list {
                Ok(rows) => all.push(rows),
                Err(why) if why.is_not_supported() || why.is_too_old() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

impl Session {
    pub(crate) fn holders(&self, gpu_minor: u32, instance: u32) -> Vec<u32> {
        nodes::holders(self.installation.root(), gpu_minor, instance)
    }

    /// `find` says which GPU instance and compute instance a MIG device is.
    pub(crate) fn container_parts_of(
        &self,
        slices: &[Slice],
        find: impl Fn(&GpuUuid, &str) -> Result<(u32, u32)>,
    ) -> Result<ContainerParts> {
        let (mut minors, mut capabilities) = (Vec::new(), Vec::new());
        for slice in slices {
            let minor = self.location(&slice.gpu)?.minor;
            minors.push(minor);
            if let Some(mig) = &slice.mig {
                let found = find(&slice.gpu, &mig.uuid)?;
                capabilities.extend(nodes::of_instance(self.installation.root(), minor, found)?);
            }
        }
        let mut devices = libraries::device_nodes(self.installation.root(), &minors);
        devices.extend(capabilities);
        let files = libraries::companions(&self.libraries()?, &self.versions().driver);
        Ok(ContainerParts { devices, files })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Nothing can be done about a failure, and the process continues without NVML either way.
        let _ = nvml!(self, None, nvmlShutdown());
    }
}

impl Driver for Session {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        let mut gpus: Vec<Gpu> = self.devices.keys().map(|uuid| self.gpu(uuid)).collect::<Result<_>>()?;
        gpus.sort_by_key(|gpu| gpu.index);
        Ok(gpus)
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        self.memory_of(self.device(gpu)?, gpu)
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        let handle = self.device(gpu)?;
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        nvml!(self, Some(gpu), nvmlDeviceGetUtilizationRates(handle, &raw mut rates))?;
        let mut celsius: c_uint = 0;
        let sensor = nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        nvml!(self, Some(gpu), nvmlDeviceGetTemperature(handle, sensor, &raw mut celsius))?;
        let mut milliwatts: c_uint = 0;
        let power = nvml!(self, Some(gpu), nvmlDeviceGetPowerUsage(handle, &raw mut milliwatts));
        Ok(Load { busy_percent: rates.gpu, celsius, milliwatts: power.ok().map(|_| milliwatts) })
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        let handle = self.device(gpu)?;
        // Without this list the processes are unknown, which does not mean that there are none.
        let compute = self.compute_processes(gpu, handle)?;
        let others = self.other_processes(gpu, handle)?;
        Ok(process_lists::by_process(std::iter::once(compute).chain(others)))
    }

    fn busy_processes(&self, gpu: &GpuUuid, since_us: u64) -> Result<Vec<u32>> {
        self.busy_since(self.device(gpu)?, gpu, since_us)
    }

    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        self.new_xids(gpu)
    }

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        let handle = self.device(gpu)?;
        let mut pci = no_address();
        nvml!(self, Some(gpu), nvmlDeviceGetPciInfo_v3(handle, &raw mut pci))?;
        let mut minor: c_uint = 0;
        nvml!(self, Some(gpu), nvmlDeviceGetMinorNumber(handle, &raw mut minor))?;
        Ok(Location { pci_bus_id: until_nul(&pci.busId), minor })
    }

    fn versions(&self) -> Versions {
        let unknown = |_| "unknown".to_owned();
        let driver = text(|buf, len| nvml!(self, None, nvmlSystemGetDriverVersion(buf, len)));
        let nvml = text(|buf, len| nvml!(self, None, nvmlSystemGetNVMLVersion(buf, len)));
        let mut cuda = 0;
        let asked = nvml!(self, None, nvmlSystemGetCudaDriverVersion_v2(&raw mut cuda));
        let cuda = asked.map(|()| format!("{}.{}", cuda / 1000, cuda % 1000 / 10));
        Versions {
            driver: driver.unwrap_or_else(unknown),
            cuda: cuda.unwrap_or_else(unknown),
            nvml: nvml.unwrap_or_else(unknown),
        }
    }

    fn context_memory(&self, gpu: &GpuUuid, device: &str) -> Result<ContextMemory> {
        let libcuda = self.libraries()?.cuda.real;
        context::measure(self, &self.installation, &self.probe_exe, &libcuda, gpu, device)
    }

    fn start_checkpoints(&self) -> Result<Checkpoints> {
        Checkpoints::start(&self.installation, &self.probe_exe, &self.libraries()?.cuda.real)
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        self.container_parts_of(slices, |gpu, name| self.instance_named(gpu, name))
    }

    fn native_limit(&self) -> &dyn NativeLimit {
        self
    }

    fn libraries(&self) -> Result<Libraries> {
        self.installation.libraries(&self.versions().driver)
    }
}

/// To be filled by NVML.
const fn no_address() -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    }
}

/// Did a driver answer that it does not know the function, or not for this GPU?
const fn lacks_function(error: &DriverError) -> bool {
    const CODES: [nvmlReturn_t; 3] =
        [NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_ARGUMENT_VERSION_MISMATCH];
    match error {
        DriverError::TooOld { .. } => true,
        DriverError::Nvml { code, .. } => *code == CODES[0] || *code == CODES[1] || *code == CODES[2],
        _ => false,
    }
}

fn has_long_rows(driver: &str) -> bool {
    let mut numbers = driver.split('.').map_while(|number| number.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(535), Some(43..=86)))
}

fn load() -> Result<NvmlLib> {
    // SAFETY: runs the constructors of NVIDIA's library, which ask nothing of the process that loads it.
    let loaded = unsafe { NvmlLib::new(NVML_SONAME) };
    loaded.or_else(|_| load_installed())
}

/// Searches beyond the loader's path: containers and hand-installed drivers have the library elsewhere.
fn load_installed() -> Result<NvmlLib> {
    let path = libraries::find(NVML_SONAME).ok_or(DriverError::NoDriver)?;
    // SAFETY: runs the constructors of NVIDIA's library, which ask nothing of the process that loads it.
    let loaded = unsafe { NvmlLib::new(&path) };
    loaded.map_err(|why| DriverError::Load { path, why: why.to_string() })
}

/// Lets `fill` write a C string into a buffer.
fn text(fill: impl FnOnce(*mut c_char, c_uint) -> Result<()>) -> Result<String> {
    let mut buf = [0 as c_char; TEXT_LEN];
    fill(buf.as_mut_ptr(), TEXT_LEN as c_uint)?;
    Ok(until_nul(&buf))
}

/// `c_char` is signed on x86-64 and unsigned on aarch64.
fn until_nul(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).flat_map(|c| c.to_ne_bytes()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_ends_before_its_nul_whatever_the_sign_of_a_char() {
        let chars: Vec<c_char> = "GPU µ\0rest".bytes().map(|byte| byte as c_char).collect();
        assert_eq!(until_nul(&chars), "GPU µ");
    }

    #[test]
    fn drivers_with_long_rows_are_known() {
        for (driver, long) in [
            ("535.43.02", true),
            ("535.86.10", true),
            ("535.98", false),
            ("535.104.05", false),
            ("530.41", false),
            ("550.163.01", false),
            ("", false),
        ] {
            assert_eq!(has_long_rows(driver), long, "{driver}");
        }
    }
}
