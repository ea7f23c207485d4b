//! The hooks of NVML, which show only the slice: its GPUs by UUID, its share of memory, and its own processes.

mod devices;
mod export_table;
mod guard;
mod memory;
mod processes;
mod utilization;

use core::ffi::{c_char, c_uint, c_ulonglong, c_void};

use crate::function::Status;
use crate::hooks::hooks;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const INVALID_ARGUMENT: Status = 2;
pub(crate) const NOT_SUPPORTED: Status = 3;
pub(crate) const NO_PERMISSION: Status = 4;
pub(crate) const NOT_FOUND: Status = 6;
pub(crate) const INSUFFICIENT_SIZE: Status = 7;
pub(crate) const FUNCTION_NOT_FOUND: Status = 13;

/// `nvmlDevice_t`.
type Device = *mut c_void;

hooks! { NVML, "nvml"
    // These change a GPU, or the machine, for all who use it: memory limits of other control groups, MIG instances, clocks, modes. The driver
    // asks for an administrator's rights, which a task of root has. They are not the slice's to change.
    refusing NO_PERMISSION: [
        nvmlComputeInstanceDestroy nvmlDeviceClearAccountingPids nvmlDeviceClearEccErrorCounts nvmlDeviceClearFieldValues
        nvmlDeviceCreateGpuInstance nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceDiscoverGpus
        nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceModifyDrainState nvmlDevicePowerSmoothingActivatePresetProfile
        nvmlDevicePowerSmoothingSetState nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceReadWritePRM_v1
        nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks nvmlDeviceResetGpuLockedClocks
        nvmlDeviceResetMemoryLockedClocks nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
        nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetAdaptiveTgpMode_v1
        nvmlDeviceSetApplicationsClocks nvmlDeviceSetAutoBoostedClocksEnabled nvmlDeviceSetClockOffsets
        nvmlDeviceSetComputeMode nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetDefaultAutoBoostedClocksEnabled
        nvmlDeviceSetDefaultFanSpeed_v2 nvmlDeviceSetDramEncryptionMode nvmlDeviceSetDriverModel nvmlDeviceSetEccMode
        nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2 nvmlDeviceSetGpcClkVfOffset nvmlDeviceSetGpuLockedClocks
        nvmlDeviceSetGpuOperationMode nvmlDeviceSetHostname_v1 nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLimits_v1
        nvmlDeviceSetMemoryLockedClocks nvmlDeviceSetMigMode nvmlDeviceSetNvLinkDeviceLowPowerThreshold
        nvmlDeviceSetNvLinkUtilizationControl nvmlDeviceSetNvlinkBwMode nvmlDeviceSetNvlinkBwModeAsync_v1
        nvmlDeviceSetPersistenceMode nvmlDeviceSetPowerManagementLimit nvmlDeviceSetPowerManagementLimit_v2
        nvmlDeviceSetPowerMizerMode_v1 nvmlDeviceSetRusdSettings_v1 nvmlDeviceSetTemperatureThreshold
        nvmlDeviceSetVgpuCapabilities nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState
        nvmlDeviceSetVgpuSchedulerState_v2 nvmlDeviceSetVirtualizationMode nvmlDeviceVgpuForceGspUnload
        nvmlDeviceWorkloadPowerProfileClearRequestedProfiles nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
        nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 nvmlGpmSetStreamingEnabled nvmlGpuInstanceCreateComputeInstance
        nvmlGpuInstanceCreateComputeInstanceWithPlacement nvmlGpuInstanceDestroy nvmlGpuInstanceSetVgpuHeterogeneousMode
        nvmlGpuInstanceSetVgpuSchedulerState nvmlGpuInstanceSetVgpuSchedulerState_v2 nvmlSetVgpuVersion
        nvmlSystemSetConfComputeGpusReadyState nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode
        nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceSetEncoderCapacity
    ]:
    Reports nvmlDeviceGetMemoryInfo(device: Device, info: *mut memory::Info) => memory::info;
    Reports nvmlDeviceGetMemoryInfo_v2(device: Device, info: *mut memory::InfoV2) => memory::info_v2;
    Reports nvmlDeviceGetBAR1MemoryInfo(device: Device, info: *mut memory::Bar1) => memory::bar1;
    Reports nvmlDeviceGetConfComputeProtectedMemoryUsage(device: Device, info: *mut memory::Info) => memory::info;

    Reports nvmlDeviceGetCount(count: *mut c_uint) => devices::count;
    Reports nvmlDeviceGetCount_v2(count: *mut c_uint) => devices::count;
    Reports nvmlDeviceGetHandleByIndex(index: c_uint, device: *mut Device) => devices::by_index;
    Reports nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: *mut Device) => devices::by_index;
    Reports nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) => devices::by_name;
    Reports nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, device: *mut Device) => devices::by_name;
    Reports nvmlDeviceGetHandleBySerial(serial: *const c_char, device: *mut Device) => devices::by_name;
    Reports nvmlDeviceGetHandleByPciBusId(id: *const c_char, device: *mut Device) => devices::by_name;
    Reports nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, device: *mut Device) => devices::by_name;
    Reports nvmlDeviceGetMigDeviceHandleByIndex(gpu: Device, index: c_uint, device: *mut Device) => devices::mig_by_index;
    Reports nvmlDeviceGetIndex(device: Device, index: *mut c_uint) => devices::index;

    Reports nvmlInternalGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) => export_table::get;

    Reports nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut processes::Process) => processes::compute;
    Reports nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::compute;
    Reports nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::compute;
    Reports nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, list: *mut processes::Process) => processes::none;
    Reports nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::none;
    Reports nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::none;
    Reports nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, list: *mut processes::Process) => processes::none;
    Reports nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::none;
    Reports nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, list: *mut processes::ProcessV2) => processes::none;
    Reports nvmlDeviceGetRunningProcessDetailList(device: Device, list: *mut processes::DetailList) => processes::details;
    Reports nvmlDeviceGetProcessUtilization(device: Device, rows: *mut utilization::Sample, count: *mut c_uint, since_us: c_ulonglong) => utilization::samples;
    Reports nvmlDeviceGetProcessesUtilizationInfo(device: Device, infos: *mut utilization::Infos) => utilization::infos;
}

/// Functions of NVML that the hooks ask themselves.
mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::*;

    crate::function::driver_functions! { NVML:
        nvmlDeviceGetUUID(Device, *mut c_char, c_uint);
        nvmlDeviceGetMaxMigDeviceCount(Device, *mut c_uint);
        nvmlSystemGetDriverVersion(*mut c_char, c_uint);
    }
}
