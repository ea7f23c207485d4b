//! The layout of the state file.

use super::checkpoint::ProcessState;
use super::groups::{DEPTH, GroupIds};
use super::limits::{GroupLimit, MAX_LIMITS};
use crate::GRANULE_BYTES;
use crate::models::{MODELS, Model};
use crate::spec::{MAX_DEVICES, MachineSpec, SpecDevice};
use crate::version::{DEFAULT_DRIVER, cuda_of};
use crate::wiring::{Wired, Wiring};

/// Memory domains of one GPU: the whole GPU, and one per GPU instance (MIG).
pub const MAX_DOMAINS: usize = 16;
/// The domain of a process that uses a GPU without MIG. GPU instance `n` is domain `n + 1`.
pub const WHOLE_GPU: usize = 0;
/// GPU instances of one GPU.
pub const MAX_INSTANCES: usize = MAX_DOMAINS - 1;
/// Compute instances of one GPU instance.
pub const MAX_COMPUTE_INSTANCES: usize = 8;
/// Processes that can hold a context at one time.
pub const MAX_PROCESSES: usize = 1024;

/// Room for the driver's version and its final NUL.
pub(super) const DRIVER_LEN: usize = 16;

/// Everything behind the lock. Plain integers only: any bytes are a valid value.
#[repr(C)]
pub struct SimState {
    /// Number of GPUs.
    pub device_count: u32,
    /// Slots at and above this index have never been used.
    pub slot_end: u32,
    /// Generation of the next registered process; never 0.
    pub next_generation: u64,
    /// The driver's version, NUL-terminated.
    pub driver: [u8; DRIVER_LEN],
    /// How the GPUs are connected, as a [`Wiring`].
    pub wiring: u64,
    /// The GPUs; those from `device_count` on are unused.
    pub devices: [SimGpu; MAX_DEVICES],
    /// The processes.
    pub slots: [Slot; MAX_PROCESSES],
    /// The memory limits of control groups.
    pub(super) limits: [GroupLimit; MAX_LIMITS],
}

/// One GPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SimGpu {
    /// Index into [`MODELS`].
    pub model: u32,
    /// 1: it reads the host's pageable memory by itself (HMM).
    pub hmm: u32,
    /// MIG mode when the machine was created.
    pub mig_at_start: u32,
    /// MIG mode now.
    pub mig_enabled: u32,
    /// MIG mode that was last asked for.
    pub mig_pending: u32,
    /// GPU instances, by id.
    pub instances: [SimGpuInstance; MAX_INSTANCES],
    /// Granules in each domain.
    pub capacity_granules: [u32; MAX_DOMAINS],
    /// Granules taken in each domain: at all times outside the lock, the sum over all slots.
    pub used_granules: [u32; MAX_DOMAINS],
}

/// A GPU instance.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SimGpuInstance {
    /// Index into the model's profiles plus 1; 0: no such instance.
    pub profile: u32,
    /// The first memory slice.
    pub start: u32,
    /// The number of its pipe on the GPU, plus 1; 0 if its name does not depend on that.
    pub pipe: u32,
    /// Compute instances, by id.
    pub compute: [SimComputeInstance; MAX_COMPUTE_INSTANCES],
}

/// A compute instance.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SimComputeInstance {
    /// Index into the GPU instance profile's compute profiles plus 1; 0: no such instance.
    pub profile: u32,
    /// The first compute slice.
    pub start: u32,
}

impl SimGpuInstance {
    /// No instance.
    pub const NONE: Self =
        Self { profile: 0, start: 0, pipe: 0, compute: [SimComputeInstance::NONE; MAX_COMPUTE_INSTANCES] };
}

impl SimComputeInstance {
    /// No instance.
    pub const NONE: Self = Self { profile: 0, start: 0 };
}

/// One process that holds (or held, until swept) device memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slot {
    /// 0 while the slot is free; else unique in the life of the machine.
    pub generation: u64,
    /// The process in its own pid namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its pid namespace: with the pid and the start, its name in every namespace. 0 without `/proc`.
    pub pid_namespace: u64,
    /// Its control groups at its last allocation on a GPU with limits, its own first.
    pub(super) groups: GroupIds,
    /// Granules held in each domain of each device.
    pub held_granules: [[u32; MAX_DOMAINS]; MAX_DEVICES],
    /// Those of them that the driver's kernel module holds for the contexts of the process. NVML reports them as used on the device, and
    /// for no process.
    pub unattributed_granules: [[u32; MAX_DOMAINS]; MAX_DEVICES],
    /// Granules of memory that migrates, resident now in each domain of each device. The driver may evict them at any time.
    pub migrated_granules: [[u32; MAX_DOMAINS]; MAX_DEVICES],
    /// Its state for the checkpoint functions.
    pub process_state: ProcessState,
    /// While it is checkpointed: the granules of each device that are in host memory, and those of them that are the kernel module's.
    pub(super) parked_granules: [u32; MAX_DEVICES],
    pub(super) parked_unattributed: [u32; MAX_DEVICES],
}

impl Slot {
    /// A slot that no process uses.
    pub const FREE: Self = Self {
        generation: 0,
        pid: 0,
        start_ticks: 0,
        pid_namespace: 0,
        groups: [0; DEPTH],
        held_granules: [[0; MAX_DOMAINS]; MAX_DEVICES],
        unattributed_granules: [[0; MAX_DOMAINS]; MAX_DEVICES],
        migrated_granules: [[0; MAX_DOMAINS]; MAX_DEVICES],
        process_state: ProcessState::RUNNING,
        parked_granules: [0; MAX_DEVICES],
        parked_unattributed: [0; MAX_DEVICES],
    };

    #[cfg(any(feature = "cuda", test))]
    /// The devices that it has memory on, or had before its checkpoint.
    pub(crate) fn was_on(&self) -> [bool; MAX_DEVICES] {
        std::array::from_fn(|device| {
            self.parked_granules[device] > 0 || self.held_granules[device].iter().any(|held| *held > 0)
        })
    }

    /// Granules in host memory since its checkpoint.
    pub(crate) fn parked(&self) -> u64 {
        self.parked_granules.iter().map(|granules| u64::from(*granules)).sum()
    }

    /// All that it has in a domain of a device.
    pub fn granules(&self, device: usize, domain: usize) -> u32 {
        self.held_granules[device][domain] + self.migrated_granules[device][domain]
    }
}

impl SimGpu {
    /// The model of this GPU.
    pub fn model(&self) -> &'static Model {
        &MODELS[self.model as usize % MODELS.len()]
    }

    /// The memory that the driver reserves on the GPU.
    pub fn reserved_bytes(&self) -> u64 {
        // A last odd MiB is not reserved.
        let all = u64::from(self.model().memory_mib / 2);
        (all - u64::from(self.capacity_granules[WHOLE_GPU]).min(all)) * GRANULE_BYTES
    }

    fn new(spec: SpecDevice) -> Self {
        let mut capacity_granules = [0; MAX_DOMAINS];
        // Rounded down: the last odd MiB of a card cannot be handed out.
        let reserved_mib = if spec.reserved { MODELS[spec.model].reserved_mib() } else { 0 };
        capacity_granules[WHOLE_GPU] = (MODELS[spec.model].memory_mib - reserved_mib) / 2;
        let mig = u32::from(spec.mig);
        Self {
            model: spec.model as u32,
            hmm: u32::from(spec.hmm),
            mig_at_start: mig,
            mig_enabled: mig,
            mig_pending: mig,
            instances: [SimGpuInstance::NONE; MAX_INSTANCES],
            capacity_granules,
            used_granules: [0; MAX_DOMAINS],
        }
    }
}

impl SimState {
    /// Makes this the state of a machine that has just been started.
    pub fn power_on(&mut self, spec: &MachineSpec) {
        self.device_count = spec.devices.len() as u32;
        self.wiring = spec.wiring as u64;
        self.slot_end = 0;
        self.next_generation = 1;
        if self.driver[0] == 0 {
            self.set_driver(DEFAULT_DRIVER);
        }
        for (device, &spec) in self.devices.iter_mut().zip(&spec.devices) {
            *device = SimGpu::new(spec);
        }
        self.slots = [Slot::FREE; MAX_PROCESSES];
        self.clear_limits();
    }

    /// The driver's version.
    pub fn driver(&self) -> &str {
        let text = self.driver.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).unwrap_or(DEFAULT_DRIVER)
    }

    /// Another version from now on; the caller knows that it is one ([`cuda_of`](crate::version::cuda_of)).
    pub fn set_driver(&mut self, version: &str) {
        self.driver = [0; DRIVER_LEN];
        let len = version.len().min(DRIVER_LEN - 1);
        self.driver[..len].copy_from_slice(&version.as_bytes()[..len]);
    }

    /// The CUDA version that belongs to the driver.
    pub fn cuda_version(&self) -> i32 {
        cuda_of(self.driver()).unwrap_or(0)
    }

    /// The GPUs of the machine.
    pub fn devices(&self) -> &[SimGpu] {
        &self.devices[..(self.device_count as usize).min(MAX_DEVICES)]
    }

    /// The spec this machine was made from.
    pub fn spec(&self) -> MachineSpec {
        let of = |d: &SimGpu| SpecDevice {
            model: d.model as usize,
            mig: d.mig_at_start != 0,
            reserved: d.reserved_bytes() > 0,
            hmm: d.hmm != 0,
        };
        MachineSpec { devices: self.devices().iter().map(of).collect(), wiring: self.wiring() }
    }

    fn wiring(&self) -> Wiring {
        Wiring::from_state(self.wiring as u32)
    }

    /// The connections of the GPUs.
    pub fn wired(&self) -> Wired {
        Wired::new(self.wiring(), self.devices().iter().map(|device| device.model as usize).collect())
    }

    /// The slots in use, with their indices.
    pub fn processes(&self) -> impl Iterator<Item = (usize, &Slot)> {
        let end = (self.slot_end as usize).min(MAX_PROCESSES);
        self.slots[..end].iter().enumerate().filter(|(_, slot)| slot.generation != 0)
    }

    /// Gives everything that `slot` holds back and frees it.
    pub fn release_slot(&mut self, slot: usize) {
        let gone = self.slots[slot];
        for (index, device) in self.devices.iter_mut().enumerate() {
            for (domain, used) in device.used_granules.iter_mut().enumerate() {
                *used = used.saturating_sub(gone.granules(index, domain));
            }
        }
        self.slots[slot] = Slot::FREE;
    }

    /// Recomputes the totals after a process died while it held the lock, somewhere between two stores.
    pub fn repair(&mut self) {
        for device in &mut self.devices {
            device.used_granules = [0; MAX_DOMAINS];
        }
        for slot in self.slots.iter().filter(|slot| slot.generation != 0) {
            for (index, device) in self.devices.iter_mut().enumerate() {
                for (domain, used) in device.used_granules.iter_mut().enumerate() {
                    *used += slot.granules(index, domain);
                }
            }
        }
    }
}
