//! Allocations of a cluster's scheduler: the scheduler chooses the GPU, and this node checks the choice and creates the
//! slice.
//!
//! Their leases are in the same store as those of `cantle run` and the agent. The lease is the checkpoint: it is on disk
//! before the hardware is touched, and its name is the claim's, so that a repeated request finds what exists already.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cantle_decide::Offer;
use cantle_driver::{Activation, Driver, DriverError, Installation};
use cantle_ledger::LIMITS_FILE;
use cantle_mig::{Table, grant};
use cantle_model::{
    AllocatedPart, ComputeRequest, Enforcement, Gpu, GpuList, GpuRequest, GpuUuid, Lease, LeaseId,
    MigInstance, QueueSpec, QueueWant, Slice, TaskId, Topology,
};
use cantle_runtime::{BackendChoice, MachineRoot};
use cantle_sched::{Host, Start, Waiting};

use crate::NodeError;
use crate::capacity::{self, Lent};
use crate::clock::now_ms;
use crate::compute::ComputeArbiter;
use crate::driver_files::DriverFiles;
use crate::launch::{Launcher, new_lease};
use crate::members::Members;
use crate::mig::{Adopt, Stages, Writer, make_instances, report_lost, turn_on};
use crate::store::{Locked, NodeStore};
use crate::usage::{SliceUsage, UsageMeter};
use crate::watchdog::Watchdog;
use cantle_runtime::files::{self, Durability};

mod host_paths;
mod watch;

/// The name of the scheduler's decision where a plan is checked.
const HERE: &str = "here";

/// A decision of a cluster's scheduler for one task, which this node carries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The lease it gets: the same decision has the same name, however often it arrives.
    pub lease: LeaseId,
    /// The task.
    pub task: TaskId,
    /// Its name for people.
    pub name: String,
    /// Its part of each GPU.
    pub request: GpuRequest,
    /// Its share of the GPU's compute time.
    pub compute: ComputeRequest,
    /// Its slices, at most one on each GPU.
    pub placements: Vec<SlicePlacement>,
}

/// The place of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePlacement {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The scheduler's allocation of it. No slice has more.
    pub allocated: AllocatedPart,
}

/// The GPUs that are put into MIG mode at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MigAtStart {
    /// None: each stays in the mode that it has.
    #[default]
    AsTheyAre,
    /// These, or it is an error.
    Listed(GpuList),
    /// Those that can change now; the reason why others cannot is logged.
    AllThatCan,
}

/// The GPUs of this machine, allocated as a cluster's scheduler decides.
pub struct AllocatableGpus {
    driver: Arc<dyn Driver>,
    node: NodeStore,
    launcher: Launcher,
    gpus: Vec<Gpu>,
    /// The capacity of each GPU when it last answered.
    known: Mutex<BTreeMap<GpuUuid, Offer>>,
    /// GPUs that cannot be put into MIG mode without their administrator.
    no_mig: Mutex<BTreeSet<GpuUuid>>,
    watchdog: Mutex<Watchdog>,
    meter: Mutex<UsageMeter>,
    stages: Stages,
    copies: Option<DriverFiles>,
    cover: Option<PathBuf>,
    /// The root in which the container engine looks for the files that it mounts.
    engine: MachineRoot,
    /// Why no GPU was offered when that was last checked.
    unoffered: Mutex<Option<String>>,
    /// Opens and closes the gates of slices with a share of compute time.
    _compute: ComputeArbiter,
}

impl AllocatableGpus {
    /// Takes the GPUs of this machine for the cluster's node `name`; those of `mig` are put into MIG mode first. Containers get
    /// the driver's files from copies in `driver_files_dir`, or from where they are for this process.
    ///
    /// # Errors
    /// If there are none, another agent has them, or one that is listed cannot be put into MIG mode.
    pub fn open(
        installation: &Installation,
        lib_dir: &Path,
        driver_files_dir: Option<&Path>,
        name: &str,
        mig: &MigAtStart,
    ) -> Result<Self, NodeError> {
        let driver = cantle_driver::open(installation)?;
        if !driver.has_filter() {
            return Err(NodeError::NoFilter("a pod".to_owned()));
        }
        let mut gpus = driver.gpus()?;
        report_lost(driver.as_ref());
        if gpus.is_empty() {
            return Err(NodeError::NoGpu);
        }
        let node = NodeStore::open(&NodeStore::dir_for(installation))?;
        let launcher = Launcher::new(driver.as_ref(), lib_dir, &node, BackendChoice::default())?;
        let leases = {
            let locked = node.lock()?;
            locked.claim(&format!("{name}:kubernetes"), crate::own_holder(), &gpus, BTreeMap::new())?;
            locked.sweep()?
        };
        if let MigAtStart::Listed(list) = mig {
            let free: Vec<u32> = list
                .select(&gpus)?
                .iter()
                .filter(|gpu| !is_held(gpu, &leases))
                .map(|gpu| gpu.index)
                .collect();
            turn_on(driver.as_ref(), &mut gpus, &GpuList::Indices(free))?;
        }
        let copies = match driver_files_dir {
            Some(dir) => Some(DriverFiles::of_driver(driver.as_ref(), dir)?),
            None => None,
        };
        if let Some(copies) = copies.as_ref().filter(|_| leases.is_empty()) {
            copies.remove_others()?;
        }
        // Out of MIG mode is where a context can be measured.
        launcher.measure(driver.as_ref(), &gpus)?;
        let opened = Self {
            _compute: ComputeArbiter::start(&node),
            driver,
            node,
            launcher,
            gpus,
            known: Mutex::default(),
            no_mig: Mutex::default(),
            watchdog: Mutex::default(),
            meter: Mutex::default(),
            stages: Stages::default(),
            copies,
            cover: None,
            engine: MachineRoot::own().map_err(NodeError::NodeUnseen)?,
            unoffered: Mutex::default(),
        };
        if *mig == MigAtStart::AllThatCan {
            opened.turn_mig_on()?;
        }
        Ok(opened)
    }

    /// Lets engines cover what images have of the driver's libraries, by this program: ours, at a path of the node.
    #[must_use]
    pub fn covering_images(mut self, program: Option<PathBuf>) -> Self {
        self.cover = program;
        self
    }

    /// Lets this engine's root decide which paths there are: that of a pod's node is not the pod's.
    #[must_use]
    pub fn mounted_by(mut self, engine: MachineRoot) -> Self {
        self.engine = engine;
        self
    }

    /// The connections of the GPUs.
    #[must_use]
    pub fn topology(&self) -> Topology {
        self.driver.topology()
    }

    /// The capacity of each GPU, and what processes outside of slices hold of it; none if the node lacks files of a slice; for a
    /// lost GPU, the capacity when it last answered.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn offers(&self) -> Result<Vec<Offer>, NodeError> {
        if !self.has_files() {
            return Ok(Vec::new());
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let leases = self.node.leases()?;
        let neighbors = self.node.neighbors();
        let members = Members::of(&self.node, &leases).and(&neighbors);
        let all: Vec<Lease> = leases.into_iter().chain(neighbors).collect();
        for gpu in &self.gpus {
            let before = known.get_mut(&gpu.uuid);
            match self.offer(gpu, &all, &members) {
                Ok(offer) => {
                    if before.is_some_and(|before| before.closed) {
                        tracing::info!(gpu = gpu.index, "GPU answers again");
                    }
                    known.insert(gpu.uuid.clone(), offer);
                }
                Err(NodeError::Driver(error)) => match before {
                    Some(Offer { closed: true, .. }) => {}
                    Some(before) => {
                        tracing::warn!(gpu = gpu.index, %error, "GPU lost");
                        before.closed = true;
                    }
                    None => tracing::warn!(gpu = gpu.index, %error, "GPU is not used"),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(self.gpus.iter().filter_map(|gpu| known.get(&gpu.uuid)).cloned().collect())
    }

    /// Puts GPUs into MIG mode that serve no instances yet. One with a slice stays as it is, for the next call. One that needs
    /// its administrator is logged once and left as it is.
    ///
    /// # Errors
    /// If a file cannot be read or written, or the driver fails.
    pub fn turn_mig_on(&self) -> Result<(), NodeError> {
        let offers = self.offers()?;
        let mut no_mig = self.no_mig.lock().unwrap_or_else(PoisonError::into_inner);
        // Held as long as the change takes: a plan made meanwhile would count on the former mode.
        let locked = self.node.lock()?;
        let leases = locked.sweep()?;
        for Offer { gpu, table, switches, closed, .. } in offers {
            let serves = gpu.mig || switches && table.is_some();
            if serves || closed || no_mig.contains(&gpu.uuid) || is_held(&gpu, &leases) {
                continue;
            }
            match turn_on(self.driver.as_ref(), &mut [gpu.clone()], &GpuList::Indices(vec![gpu.index])) {
                Err(why @ NodeError::MigMode { .. }) => {
                    tracing::warn!(gpu = gpu.index, %why, "GPU keeps its mode");
                    no_mig.insert(gpu.uuid);
                }
                Ok(()) => tracing::info!(gpu = gpu.index, "serves MIG instances"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn offer(&self, gpu: &Gpu, leases: &[Lease], members: &Members) -> Result<Offer, NodeError> {
        self.driver.memory(&gpu.uuid)?;
        let now = self.driver.mig_table(&gpu.uuid)?;
        let gpu = Gpu { mig: now.is_some(), ..gpu.clone() };
        // Outside of MIG mode a driver does not report the GPU's MIG profiles, so they are recorded.
        let path = self.node.mig_dir().join(format!("{}.table.json", gpu.uuid));
        let known: Option<Table> = files::read_json(&path)?;
        if now.is_some() && now != known {
            files::write_json(&path, &now, Durability::Crash)?;
        }
        let switches = self.driver.switches_mig(&gpu.uuid)?;
        // In MIG mode others hold instances, not bytes.
        let foreign_bytes = match gpu.mig {
            true => 0,
            false => capacity::foreign_bytes(self.driver.as_ref(), &self.node, &gpu, leases.iter(), members)?,
        };
        Ok(Offer { table: now.or(known).map(Arc::new), switches, foreign_bytes, ..Offer::new(gpu) })
    }

    /// Carries a decision out, as far as that has not happened yet.
    ///
    /// # Errors
    /// [`NodeError::NotFree`] if another program on this machine holds what it needs; or the hardware fails. The
    /// lease stays on disk: a repeated call completes it, [`Self::release`] removes it.
    pub fn allocate(&self, allocation: &Allocation) -> Result<Lease, NodeError> {
        let known = self.node.lock()?.lease(&allocation.lease)?;
        let mut lease = match known {
            Some(lease) => lease,
            None => self.make_lease(allocation)?,
        };
        self.compare(allocation, &lease.slices)?;
        let driver = self.driver.as_ref();
        make_instances(driver, &self.node, &self.gpus, &mut lease, &self.stages)?;
        // A region that is there may be in use. Its limits come last.
        if !self.node.slice_dir(&lease.id).join(LIMITS_FILE).exists() {
            self.launcher.make_region(driver, &self.node, &lease, &self.gpus)?;
        }
        Ok(lease)
    }

    fn make_lease(&self, allocation: &Allocation) -> Result<Lease, NodeError> {
        for placement in &allocation.placements {
            self.switch_mode(placement)?;
        }
        let locked = self.node.lock()?;
        let slice = |placement: &SlicePlacement| self.slice(allocation, placement);
        let slices: Vec<Slice> = allocation.placements.iter().map(slice).collect::<Result<_, _>>()?;
        self.compare(allocation, &slices)?;
        self.check(&locked, allocation, &slices)?;
        let lease = Lease {
            id: allocation.lease.clone(),
            kept: true,
            enforcement: Some(Enforcement::Container),
            compute: allocation.compute.share_of(&slices)?,
            ..new_lease(allocation.task.clone(), allocation.name.clone(), None, slices)
        };
        locked.put(&lease)?;
        Ok(lease)
    }

    fn slice(&self, allocation: &Allocation, placement: &SlicePlacement) -> Result<Slice, NodeError> {
        let request = &allocation.request;
        let gpu = self.gpu(&placement.gpu)?;
        let not_free = |why: String| NodeError::not_free(format!("GPU {}: {why}", gpu.index));
        let Some(start) = placement.allocated.start() else {
            let share = request.share_of(gpu.memory_bytes);
            let share = share.ok_or_else(|| not_free(format!("it cannot give {request}")))?;
            let share = share.with_compute(allocation.compute.named_part());
            let (milli, memory_limit_bytes) = (share.milli, share.memory_limit_bytes);
            return Ok(Slice { gpu: gpu.uuid.clone(), milli, memory_limit_bytes, mig: None });
        };
        let table = self.driver.mig_table(&gpu.uuid)?;
        let table = table.ok_or_else(|| not_free("it is not in MIG mode".to_owned()))?;
        let granted = grant(&table, request).map_err(|error| NodeError::NotFree {
            why: format!("GPU {}: {error}", gpu.index),
            source: Some(Box::new(error)),
        })?;
        let profile = &table.profiles[granted.profile];
        let instance =
            MigInstance { profile: profile.name.clone(), start, size: profile.size, uuid: String::new() };
        Ok(Slice {
            gpu: gpu.uuid.clone(),
            milli: granted.milli(),
            memory_limit_bytes: profile.memory_bytes,
            mig: Some(instance),
        })
    }

    /// Refuses slices with more than the scheduler has counted, whatever the request says.
    fn compare(&self, allocation: &Allocation, slices: &[Slice]) -> Result<(), NodeError> {
        for slice in slices {
            let mut placements = allocation.placements.iter();
            let allocated =
                placements.find(|placement| placement.gpu == slice.gpu).map(|found| &found.allocated);
            if !allocated.is_some_and(|allocated| allocated.covers(slice)) {
                let index = self.gpu(&slice.gpu)?.index;
                let allocated = allocated.map_or_else(|| "nothing".to_owned(), ToString::to_string);
                let made = AllocatedPart::of(slice);
                return Err(NodeError::BeyondAllocation { index, allocated, made });
            }
        }
        Ok(())
    }

    /// The cluster knows only its own allocations. Everything else that runs here counts too, by the same rules as for
    /// every other plan.
    fn check(&self, locked: &Locked<'_>, allocation: &Allocation, slices: &[Slice]) -> Result<(), NodeError> {
        let leases = locked.sweep()?;
        let mut waiting = Waiting::new(allocation.task.clone(), now_ms()).wanting(allocation.request.clone());
        waiting.compute = allocation.compute;
        waiting.devices = u32::try_from(slices.len()).unwrap_or(u32::MAX);
        let spec = QueueSpec { name: HERE.to_owned(), want: QueueWant::Task };
        let world =
            capacity::describe(self.driver.as_ref(), locked.node(), HERE, (&self.gpus, Lent::Taken), &leases);
        let start = Start {
            task: allocation.task.clone(),
            queue: HERE.to_owned(),
            node: HERE.to_owned(),
            slices: slices.to_vec(),
            host: Host::default(),
        };
        let checked = cantle_decide::check(&world.queue(spec, vec![waiting]).build(), start);
        checked
            .map_err(|broken| NodeError::NotFree { why: broken.to_string(), source: Some(Box::new(broken)) })
    }

    /// Puts the GPU into the mode that the slice needs.
    fn switch_mode(&self, placement: &SlicePlacement) -> Result<(), NodeError> {
        let (gpu, driver) = (self.gpu(&placement.gpu)?, self.driver.as_ref());
        let wanted = placement.allocated.start().is_some();
        if driver.mig_table(&gpu.uuid)?.is_some() == wanted {
            return Ok(());
        }
        let mut writer = Writer::open(driver, &self.node, gpu, &self.stages)?;
        if !wanted {
            writer.sweep(Adopt::Busy)?;
        }
        // Held as long as the change takes: a plan made meanwhile would count on the former mode.
        let locked = self.node.lock()?;
        let index = gpu.index;
        let leases = locked.sweep()?;
        if let Some(lease) = leases.iter().find(|l| l.slices.iter().any(|slice| slice.gpu == gpu.uuid)) {
            let why = format!("GPU {index} has a slice of task {}, which needs its present mode", lease.task);
            return Err(NodeError::not_free(why));
        }
        let mode = if wanted { "into" } else { "out of" };
        let refused =
            |why: &str| NodeError::not_free(format!("GPU {index} cannot be put {mode} MIG mode: {why}"));
        match driver.set_mig_mode(&gpu.uuid, wanted)? {
            Activation::Done => Ok(()),
            Activation::InUse => Err(refused("a program or a monitor uses it")),
            Activation::ResetRequired => Err(refused("it needs a reset for that")),
        }
    }

    fn gpu(&self, uuid: &GpuUuid) -> Result<&Gpu, NodeError> {
        let found = self.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        found.ok_or_else(|| DriverError::NoSuchGpu(uuid.clone()).into())
    }

    /// The leases of all allocations that were not released, of all processes.
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn active(&self) -> Result<Vec<Lease>, NodeError> {
        Ok(self.node.leases()?.into_iter().filter(|lease| lease.kept).collect())
    }

    /// The use of the slices of [`AllocatableGpus::active`].
    ///
    /// # Errors
    /// Names the file that cannot be read.
    pub fn usage(&self) -> Result<Vec<SliceUsage>, NodeError> {
        let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(meter.usage(&self.node, &self.gpus, &self.active()?))
    }

    /// Ends an allocation; it is no error if there is none. A MIG instance stays for the next one.
    ///
    /// # Errors
    /// Names what could not be removed.
    pub fn release(&self, id: &LeaseId) -> Result<(), NodeError> {
        let locked = self.node.lock()?;
        match locked.lease(id)? {
            Some(lease) if lease.kept => locked.retire(&lease),
            _ => Ok(()),
        }
    }
}

/// A GPU with a slice on it stays as it is, and changes when a claim needs it.
fn is_held(gpu: &Gpu, leases: &[Lease]) -> bool {
    leases.iter().flat_map(|lease| &lease.slices).any(|slice| slice.gpu == gpu.uuid)
}
