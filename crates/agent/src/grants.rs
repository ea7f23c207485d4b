//! Slices that a cluster's scheduler has decided on: it says which GPU, this machine checks, cuts and holds.
//!
//! They come out of the same store as those of `cantle run` and the daemon. The lease is the checkpoint: it is on disk
//! before the hardware is touched, its name is the claim's, and whatever is asked again finds what is there already.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cantle_driver::{Activation, Driver, DriverError, Installation};
use cantle_ledger::host::LIMITS_FILE;
use cantle_mig::{Table, grant};
use cantle_model::{
    Enforcement, Gpu, GpuList, GpuRequest, GpuUuid, Lease, LeaseId, MigInstance, QueueSpec, QueueWant, Slice,
    TaskId,
};
use cantle_runtime::{BackendWish, cdi::Edits, slice_edits};
use cantle_sched::{Host, Plan, Queue, Start, Violation, Waiting, audit};
use tokio::time::Instant;

use crate::clock::now_ms;
use crate::launch::{Command, Launcher, new_lease};
use crate::members::Members;
use crate::mig::{Adopt, Stages, Writer, make_instances, turn_on};
use crate::node::files::{self, Keep};
use crate::node::{Locked, Node};
use crate::watchdog::{Finding, Watchdog};
use crate::{AgentError, capacity};

/// What the scheduler's decision is called where a plan is checked.
const HERE: &str = "here";

/// A GPU and what can be had of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The GPU, with its MIG mode now.
    pub gpu: Gpu,
    /// What it offers in MIG mode; none if that is not known, or it has no such mode.
    pub table: Option<Table>,
    /// Can it change between shares and MIG instances by itself?
    pub switches: bool,
    /// It does not answer. This is what was to be had when it last did.
    pub lost: bool,
}

/// What was decided for one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Award {
    /// The lease it is to have: the same name for the same decision, however often it is told.
    pub lease: LeaseId,
    /// The task.
    pub task: TaskId,
    /// What people call it.
    pub name: String,
    /// What it gets of each GPU.
    pub request: GpuRequest,
    /// The GPUs, each once.
    pub places: Vec<Place>,
}

/// Where a slice is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The GPU.
    pub gpu: GpuUuid,
    /// First unit of a MIG instance; none for a share or a whole GPU.
    pub start: Option<u32>,
}

/// Which GPUs are put into MIG mode at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MigAtStart {
    /// None: each stays in the mode that it has.
    #[default]
    AsTheyAre,
    /// These, or it is an error.
    Listed(GpuList),
    /// Those that can change now; what hinders the others is logged.
    AllThatCan,
}

/// The GPUs of this machine, given out as a cluster decides.
pub struct Grants {
    driver: Arc<dyn Driver>,
    node: Node,
    launcher: Launcher,
    gpus: Vec<Gpu>,
    /// What was to be had of each GPU when it last answered.
    known: Mutex<BTreeMap<GpuUuid, Offer>>,
    /// GPUs that can't be put into MIG mode without their administrator.
    no_mig: Mutex<BTreeSet<GpuUuid>>,
    watchdog: Mutex<Watchdog>,
    stages: Stages,
}

impl Grants {
    /// Takes the GPUs of this machine for the cluster's node `name`; those of `mig` are put into MIG mode first.
    ///
    /// # Errors
    /// If there are none, another agent has them, or one that is listed can't be put into MIG mode.
    pub fn open(
        installation: &Installation,
        lib_dir: &Path,
        name: &str,
        mig: &MigAtStart,
    ) -> Result<Self, AgentError> {
        let driver = cantle_driver::open(installation)?;
        let mut gpus = driver.gpus()?;
        if gpus.is_empty() {
            return Err(AgentError::NoGpu);
        }
        let node = Node::open(&Node::dir_for(installation))?;
        let launcher = Launcher::new(driver.as_ref(), lib_dir, &node, BackendWish::default())?;
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
        // Out of MIG mode is where a context can be measured.
        launcher.measure(driver.as_ref(), &gpus)?;
        let grants = Self {
            driver,
            node,
            launcher,
            gpus,
            known: Mutex::default(),
            no_mig: Mutex::default(),
            watchdog: Mutex::default(),
            stages: Stages::default(),
        };
        if *mig == MigAtStart::AllThatCan {
            grants.turn_mig_on()?;
        }
        Ok(grants)
    }

    /// What can be had of each GPU. One that is lost says what it last did, the others go on.
    ///
    /// # Errors
    /// If a file can't be read or written.
    pub fn offers(&self) -> Result<Vec<Offer>, AgentError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for gpu in &self.gpus {
            let before = known.get_mut(&gpu.uuid);
            match self.offer(gpu) {
                Ok(offer) => {
                    if before.is_some_and(|before| before.lost) {
                        tracing::info!(gpu = gpu.index, "GPU answers again");
                    }
                    known.insert(gpu.uuid.clone(), offer);
                }
                Err(AgentError::Driver(error)) => match before {
                    Some(Offer { lost: true, .. }) => {}
                    Some(before) => {
                        tracing::warn!(gpu = gpu.index, %error, "GPU lost");
                        before.lost = true;
                    }
                    None => tracing::warn!(gpu = gpu.index, %error, "GPU left out"),
                },
                Err(error) => return Err(error),
            }
        }
        Ok(self.gpus.iter().filter_map(|gpu| known.get(&gpu.uuid)).cloned().collect())
    }

    /// Puts GPUs into MIG mode that serve no instances yet. One with a slice stays as it is, for the next call; one that needs
    /// its administrator is named once and left alone.
    ///
    /// # Errors
    /// If a file can't be read or written, or the driver fails.
    pub fn turn_mig_on(&self) -> Result<(), AgentError> {
        let offers = self.offers()?;
        let mut no_mig = self.no_mig.lock().unwrap_or_else(PoisonError::into_inner);
        // For as long as the change takes: whoever planned meanwhile would count on the mode that goes.
        let locked = self.node.lock()?;
        let leases = locked.sweep()?;
        for Offer { gpu, table, switches, lost } in offers {
            let serves = gpu.mig || switches && table.is_some();
            if serves || lost || no_mig.contains(&gpu.uuid) || is_held(&gpu, &leases) {
                continue;
            }
            match turn_on(self.driver.as_ref(), &mut [gpu.clone()], &GpuList::Indices(vec![gpu.index])) {
                Err(why @ AgentError::MigMode { .. }) => {
                    tracing::warn!(gpu = gpu.index, %why, "stays as it is");
                    no_mig.insert(gpu.uuid);
                }
                Ok(()) => tracing::info!(gpu = gpu.index, "serves MIG instances"),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn offer(&self, gpu: &Gpu) -> Result<Offer, AgentError> {
        self.driver.memory(&gpu.uuid)?;
        let now = self.driver.mig_table(&gpu.uuid)?;
        let gpu = Gpu { mig: now.is_some(), ..gpu.clone() };
        // Out of MIG mode a driver does not say what the GPU would offer in it, so it is written down.
        let path = self.node.mig_dir().join(format!("{}.table.json", gpu.uuid));
        let known: Option<Table> = files::read_json(&path)?;
        if now.is_some() && now != known {
            files::write_json(&path, &now, Keep::UntilBoot)?;
        }
        let switches = self.driver.switches_mig(&gpu.uuid)?;
        Ok(Offer { gpu, table: now.or(known), switches, lost: false })
    }

    /// Carries a decision out, as far as that has not happened yet.
    ///
    /// # Errors
    /// [`AgentError::NotFree`] if it takes what somebody else on this machine has; or the hardware fails. What was
    /// written down stays, to be completed when it is told again or taken back by [`Self::revoke`].
    pub fn grant(&self, award: &Award) -> Result<Lease, AgentError> {
        let known = self.node.lock()?.lease(&award.lease)?;
        let mut lease = match known {
            Some(lease) => lease,
            None => self.write_down(award)?,
        };
        let driver = self.driver.as_ref();
        make_instances(driver, &self.node, &self.gpus, &mut lease, &self.stages)?;
        // A region that is there may be in use. Its limits come last.
        if !self.node.slice_dir(&lease.id).join(LIMITS_FILE).exists() {
            self.launcher.make_region(driver, &self.node, &lease, &self.gpus)?;
        }
        Ok(lease)
    }

    fn write_down(&self, award: &Award) -> Result<Lease, AgentError> {
        for place in &award.places {
            self.switch(place)?;
        }
        let locked = self.node.lock()?;
        let slice = |place: &Place| self.slice(&award.request, place);
        let slices: Vec<Slice> = award.places.iter().map(slice).collect::<Result<_, _>>()?;
        self.check(&locked, award, &slices)?;
        let lease = Lease {
            id: award.lease.clone(),
            kept: true,
            enforcement: Some(Enforcement::Container),
            ..new_lease(award.task.clone(), award.name.clone(), None, slices)
        };
        locked.put(&lease)?;
        Ok(lease)
    }

    fn slice(&self, request: &GpuRequest, place: &Place) -> Result<Slice, AgentError> {
        let gpu = self.gpu(&place.gpu)?;
        let not_had = |why: String| AgentError::NotFree(format!("GPU {}: {why}", gpu.index));
        let Some(start) = place.start else {
            let share = request.share_of(gpu.memory_bytes);
            let share = share.ok_or_else(|| not_had(format!("it can't give {request}")))?;
            let (milli, memory_limit_bytes) = (share.milli, share.memory_limit_bytes);
            return Ok(Slice { gpu: gpu.uuid.clone(), milli, memory_limit_bytes, mig: None });
        };
        let table = self.driver.mig_table(&gpu.uuid)?;
        let table = table.ok_or_else(|| not_had("it is not in MIG mode".to_owned()))?;
        let granted = grant(&table, request).map_err(|error| not_had(error.to_string()))?;
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

    /// The cluster knows only what it has given out itself. What else runs here is counted here, by the same rules as
    /// for every other plan.
    fn check(&self, locked: &Locked<'_>, award: &Award, slices: &[Slice]) -> Result<(), AgentError> {
        let leases = locked.sweep()?;
        let mut waiting = Waiting::new(award.task.clone(), now_ms()).wanting(award.request.clone());
        waiting.devices = u32::try_from(slices.len()).unwrap_or(u32::MAX);
        let spec = QueueSpec { name: HERE.to_owned(), want: QueueWant::Task };
        let queues = vec![Queue::new(spec, vec![waiting])];
        let state = capacity::state(self.driver.as_ref(), locked.node(), HERE, &self.gpus, &leases, queues);
        let mut plan = Plan::default();
        plan.starts.push(Start {
            task: award.task.clone(),
            queue: HERE.to_owned(),
            node: HERE.to_owned(),
            slices: slices.to_vec(),
            host: Host::default(),
        });
        match audit(&state, &plan).iter().find(|violation| !is_rounding(violation, leases.len() + 1)) {
            Some(violation) => Err(AgentError::NotFree(violation.to_string())),
            None => Ok(()),
        }
    }

    /// Puts the GPU into the mode that the slice needs.
    fn switch(&self, place: &Place) -> Result<(), AgentError> {
        let (gpu, driver) = (self.gpu(&place.gpu)?, self.driver.as_ref());
        let wanted = place.start.is_some();
        if driver.mig_table(&gpu.uuid)?.is_some() == wanted {
            return Ok(());
        }
        let mut writer = Writer::open(driver, &self.node, gpu, &self.stages)?;
        if !wanted {
            writer.sweep(Adopt::Busy)?;
        }
        // For as long as the change takes: whoever planned meanwhile would count on the mode that goes.
        let locked = self.node.lock()?;
        let index = gpu.index;
        let leases = locked.sweep()?;
        if let Some(lease) = leases.iter().find(|l| l.slices.iter().any(|slice| slice.gpu == gpu.uuid)) {
            let why = format!("GPU {index} has a slice of task {}, which needs its present mode", lease.task);
            return Err(AgentError::NotFree(why));
        }
        let mode = if wanted { "into" } else { "out of" };
        let refused =
            |why: &str| AgentError::NotFree(format!("GPU {index} can't be put {mode} MIG mode: {why}"));
        match driver.set_mig_mode(&gpu.uuid, wanted)? {
            Activation::Done => Ok(()),
            Activation::InUse => Err(refused("a program or a monitor uses it")),
            Activation::ResetRequired => Err(refused("it needs a reset for that")),
        }
    }

    fn gpu(&self, uuid: &GpuUuid) -> Result<&Gpu, AgentError> {
        let found = self.gpus.iter().find(|gpu| gpu.uuid == *uuid);
        found.ok_or_else(|| DriverError::NoSuchGpu(uuid.clone()).into())
    }

    /// What a container needs to have this slice.
    ///
    /// # Errors
    /// If the driver can't say.
    pub fn edits(&self, lease: &Lease) -> Result<Edits, AgentError> {
        let parts = self.driver.container_parts(&lease.slices)?;
        let spec = self.launcher.spec(&self.node, &lease.id, &lease.slices, &Command::default());
        Ok(slice_edits(&spec, &parts.devices, &parts.files))
    }

    /// All that was granted and not revoked, by whichever process.
    ///
    /// # Errors
    /// Names the file that can't be read.
    pub fn standing(&self) -> Result<Vec<Lease>, AgentError> {
        Ok(self.node.leases()?.into_iter().filter(|lease| lease.kept).collect())
    }

    /// Takes a slice back; one that is gone already is fine. A MIG instance stays, as room for the next.
    ///
    /// # Errors
    /// Names what could not be removed.
    pub fn revoke(&self, id: &LeaseId) -> Result<(), AgentError> {
        let locked = self.node.lock()?;
        match locked.lease(id)? {
            Some(lease) if lease.kept => locked.retire(&lease),
            _ => Ok(()),
        }
    }

    /// Looks at what the tasks really hold. Whoever takes what is not its own is named, and ended after a second; gives
    /// the lease and what was found.
    pub fn watch(&self) -> Vec<(Lease, String)> {
        let Ok(standing) = self.standing() else { return Vec::new() };
        let ours = |id: &LeaseId| standing.iter().any(|lease| lease.id == *id);
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        let findings = watchdog.look(self.driver.as_ref(), &self.node, &self.gpus, ours, Instant::now());
        let told = findings.into_iter().filter_map(|(id, finding)| {
            let lease = standing.iter().find(|lease| lease.id == id)?.clone();
            let what = match finding {
                Finding::Suspect(why) => why,
                Finding::Guilty(why) => {
                    self.end(&id, &standing);
                    format!("killed: {why} (cantle explain watchdog-kill)")
                }
            };
            Some((lease, what))
        });
        told.collect()
    }

    /// Ends what the task runs on GPUs; its container's restart policy says what then.
    fn end(&self, id: &LeaseId, standing: &[Lease]) {
        let members = Members::of(&self.node, standing);
        for gpu in &self.gpus {
            let processes = self.driver.processes(&gpu.uuid).unwrap_or_default();
            let theirs = processes.iter().filter(|process| members.lease_of(process.pid) == Some(id));
            let holders = theirs.filter_map(|process| cantle_runtime::holder_of(process.pid));
            holders.for_each(|holder| cantle_runtime::end_now(&holder));
        }
    }
}

/// A GPU with a slice on it stays as it is, and changes when a claim needs it.
fn is_held(gpu: &Gpu, leases: &[Lease]) -> bool {
    leases.iter().flat_map(|lease| &lease.slices).any(|slice| slice.gpu == gpu.uuid)
}

/// A cluster counts a share's bytes, a node its thousandths too, each rounded up: shares that fill a GPU exactly may be one
/// thousandth each too many.
fn is_rounding(violation: &Violation, shares: usize) -> bool {
    matches!(violation, Violation::OverCompute { milli, .. } if *milli <= 1000 + shares as u64)
}
