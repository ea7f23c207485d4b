//! Creates and destroys instances: one writer per GPU at a time, among all processes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::thread::sleep;
use std::time::Duration;

use cantle_driver::{Driver, DriverError, GpuInstance};
use cantle_mig::Table;
use cantle_model::{Gpu, Lease, LeaseId, MigInstance};

use super::geometry::is_leased;
use super::journal::Journal;
use super::stages::{Stage, Stages, Trouble};
use crate::clock::now_ms;
use crate::{NodeError, NodeStore};

/// Milliseconds between the attempts to destroy an instance: one that is in use may be free in a moment.
const AGAIN_AFTER_MS: [u64; 6] = [50, 100, 200, 400, 800, 1600];

/// How long a placement is not tried again after a failure.
const AVOID_MS: i64 = 30_000;

/// The handling of other programs' instances at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adopt {
    /// They are left as they are.
    #[default]
    Busy,
    /// Unused ones are destroyed.
    Destroy,
}

/// The right to change the instances of one GPU.
pub struct Writer<'a> {
    driver: &'a dyn Driver,
    node: &'a NodeStore,
    gpu: &'a Gpu,
    journal: Journal,
    stages: &'a Stages,
    _lock: File,
}

impl<'a> Writer<'a> {
    /// Waits until no other process changes this GPU.
    ///
    /// # Errors
    /// If the lock or the journal cannot be opened.
    pub fn open(
        driver: &'a dyn Driver,
        node: &'a NodeStore,
        gpu: &'a Gpu,
        stages: &'a Stages,
    ) -> Result<Self, NodeError> {
        let path = node.mig_dir().join(format!("{}.lock", gpu.uuid));
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = open.and_then(|file| file.lock().map(|()| file));
        let lock = lock.map_err(|e| NodeError::file(&path, e))?;
        Ok(Self { driver, node, gpu, journal: Journal::read(node, &gpu.uuid)?, stages, _lock: lock })
    }

    /// The instance that `lease` is to have here; its device's name is in the lease when this returns.
    ///
    /// # Errors
    /// [`NodeError::PlacementLost`] if it is not available now: then nothing of it is left.
    pub fn make(&mut self, lease: &LeaseId, wanted: &MigInstance) -> Result<MigInstance, NodeError> {
        let stages = self.stages;
        stages.time(Stage::Ready, || self.make_and_name(lease, wanted))
    }

    fn make_and_name(&mut self, lease: &LeaseId, wanted: &MigInstance) -> Result<MigInstance, NodeError> {
        let device = self.device_for(wanted).map_err(|error| match error {
            // The GPU may have failed since it was planned on. The next plan sees that; the task is not at fault.
            NodeError::Driver(why) => self.lost(wanted, why.to_string()),
            error => error,
        })?;
        let made = MigInstance { uuid: device, ..wanted.clone() };
        let locked = self.node.lock()?;
        let mut current = locked.lease(lease)?.ok_or_else(|| NodeError::LeaseGone(lease.clone()))?;
        let slice = current.slices.iter_mut().find(|slice| slice.gpu == self.gpu.uuid);
        slice.ok_or_else(|| NodeError::LeaseGone(lease.clone()))?.mig = Some(made.clone());
        locked.put(&current)?;
        Ok(made)
    }

    fn device_for(&mut self, wanted: &MigInstance) -> Result<String, NodeError> {
        if self.driver.fixed_devices(&self.gpu.uuid).is_some() {
            return self.given(wanted);
        }
        let Some(table) = self.driver.mig_table(&self.gpu.uuid)? else {
            return Err(self.lost(wanted, "it is not in MIG mode any more".to_owned()));
        };
        let Some(at) = table.position(&wanted.profile) else {
            return Err(self.lost(wanted, "it has no such profile any more".to_owned()));
        };
        let found = self.driver.gpu_instances(&self.gpu.uuid)?;
        if let Some(device) = self.reusable(&found, table.profiles[at].id, wanted.start)? {
            return Ok(device);
        }
        let leases = self.node.leases()?;
        let is_free =
            |instance: &GpuInstance| !instance.devices.iter().any(|device| is_leased(&leases, device));
        let journal = self.journal.clone();
        let may_go = |instance: &GpuInstance| is_free(instance) && journal.is_ours(instance);
        for instance in in_the_way(&table, at, wanted.start, &found, may_go) {
            if !is_free(instance) {
                return Err(self.lost(wanted, "a task has the instance there".to_owned()));
            }
            self.make_way(instance, wanted)?;
        }
        self.create(&table, at, wanted)
    }

    /// An instance that is used as it is: it has to be there, and empty.
    fn given(&self, wanted: &MigInstance) -> Result<String, NodeError> {
        let found = self.driver.gpu_instances(&self.gpu.uuid)?;
        match found.iter().find(|instance| instance.devices == [wanted.uuid.as_str()]) {
            None => Err(self.lost(wanted, "it is not there any more".to_owned())),
            Some(instance) if self.processes_in(instance.id)?.is_empty() => Ok(wanted.uuid.clone()),
            Some(instance) => {
                Err(self.lost(wanted, "it is in use".to_owned() + &self.who_is_in(instance.id)))
            }
        }
    }

    /// An instance of the right profile and placement that is complete, ours, and free.
    fn reusable(
        &self,
        found: &[GpuInstance],
        profile_id: u32,
        start: u32,
    ) -> Result<Option<String>, NodeError> {
        let right = |instance: &&GpuInstance| instance.profile_id == profile_id && instance.start == start;
        let Some(instance) = found.iter().find(right) else { return Ok(None) };
        let [device] = instance.devices.as_slice() else { return Ok(None) };
        let free = self.journal.is_ours(instance)
            && !is_leased(&self.node.leases()?, device)
            && self.processes_in(instance.id)?.is_empty();
        Ok(free.then(|| device.clone()))
    }

    /// Destroys one of our free instances for `wanted`.
    fn make_way(&mut self, instance: &GpuInstance, wanted: &MigInstance) -> Result<(), NodeError> {
        if !self.journal.is_ours(instance) {
            return Err(self.lost(wanted, "somebody else has made an instance there meanwhile".to_owned()));
        }
        match self.destroy(instance) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.journal.avoid(instance.profile_id, instance.start, now_ms() + AVOID_MS, true);
                self.write_journal()?;
                let why = format!("the instance at {} cannot be destroyed: {error}", instance.start);
                Err(self.lost(wanted, why + &self.who_is_in(instance.id)))
            }
        }
    }

    /// Destroys an instance, with retries, and forgets its placement.
    fn destroy(&mut self, instance: &GpuInstance) -> Result<(), NodeError> {
        match self.stages.time(Stage::Destroy, || self.destroy_with_retries(instance.id)) {
            Err(error) if !error.is_gone() => {
                if error.is_in_use() {
                    self.stages.note(Trouble::InUse);
                }
                return Err(error.into());
            }
            _ => self.journal.drop_place(instance.profile_id, instance.start),
        }
        self.write_journal()
    }

    fn destroy_with_retries(&self, instance: u32) -> Result<(), DriverError> {
        let attempt = || {
            self.driver.destroy_compute_instances(&self.gpu.uuid, instance)?;
            self.driver.destroy_gpu_instance(&self.gpu.uuid, instance)
        };
        let mut result = attempt();
        for again_after_ms in AGAIN_AFTER_MS {
            if !result.as_ref().is_err_and(DriverError::is_in_use) {
                break;
            }
            self.stages.note(Trouble::Retry);
            sleep(Duration::from_millis(again_after_ms));
            result = attempt();
        }
        result
    }

    fn write_journal(&self) -> Result<(), NodeError> {
        self.stages.time(Stage::Journal, || self.journal.write(self.node, &self.gpu.uuid))
    }

    /// Makes an instance where nothing is. If that fails half way, nothing is left, or the journal knows it as ours.
    fn create(&mut self, table: &Table, at: usize, wanted: &MigInstance) -> Result<String, NodeError> {
        let (driver, uuid, profile, stages) = (self.driver, &self.gpu.uuid, &table.profiles[at], self.stages);
        let was_ours = self.journal.claims(profile.id, wanted.start);
        self.journal.claim(profile.id, wanted.start);
        self.write_journal()?;
        let mut left = false;
        let create = || driver.create_gpu_instance(uuid, profile.id, wanted.start, profile.size);
        let ready = stages.time(Stage::GpuInstance, create).and_then(|id| {
            let complete = stages.time(Stage::ComputeInstance, || driver.create_compute_instance(uuid, id));
            if complete.is_err() {
                stages.note(Trouble::Rollback);
                left = driver.destroy_gpu_instance(uuid, id).is_err();
            }
            complete
        });
        match ready {
            // A process that read the instances since the claim has not seen this one: a new mark.
            Ok(device) => self.write_journal().map(|()| device),
            Err(error) => {
                // A claim is released only where no instance exists: an instance may belong to another process of
                // cantle's.
                let ours = left || (was_ours && self.may_stand(profile.id, wanted.start));
                self.journal.avoid(profile.id, wanted.start, now_ms() + AVOID_MS, ours);
                self.write_journal()?;
                Err(self.lost(wanted, error.to_string()))
            }
        }
    }

    /// Does an instance exist there, or cannot the driver tell?
    fn may_stand(&self, profile_id: u32, start: u32) -> bool {
        let stands = |one: &GpuInstance| one.profile_id == profile_id && one.start == start;
        self.driver.gpu_instances(&self.gpu.uuid).map_or(true, |found| found.iter().any(stands))
    }

    /// At the start of an agent: destroys free instances, and drops entries of instances that do not exist. The journal
    /// keeps what cannot be destroyed now.
    ///
    /// # Errors
    /// If the driver cannot say what there is, or a file cannot be read.
    pub fn sweep(&mut self, adopt: Adopt) -> Result<(), NodeError> {
        for instance in self.driver.gpu_instances(&self.gpu.uuid)? {
            let leases = self.node.leases()?;
            if instance.devices.iter().any(|device| is_leased(&leases, device)) {
                continue;
            }
            let ours = self.journal.is_ours(&instance);
            let index = self.gpu.index;
            if !ours && adopt == Adopt::Busy {
                tracing::info!(gpu = index, start = instance.start, "a MIG instance of others is left alone");
            } else if !self.processes_in(instance.id)?.is_empty() {
                let who = self.who_is_in(instance.id);
                tracing::warn!(gpu = index, start = instance.start, "a MIG instance stays{who}");
            } else if let Err(error) = self.destroy(&instance) {
                tracing::warn!(gpu = index, start = instance.start, %error, "a MIG instance stays");
            }
        }
        let left = self.driver.gpu_instances(&self.gpu.uuid)?;
        self.journal.keep_only(&left);
        self.write_journal()
    }

    /// Instances that are to be used as they are belong to the user who named them, even if cantle made them once.
    ///
    /// # Errors
    /// If the driver cannot say what there is, or a file cannot be written.
    pub fn disown(&mut self) -> Result<(), NodeError> {
        for instance in self.driver.gpu_instances(&self.gpu.uuid)? {
            self.journal.drop_place(instance.profile_id, instance.start);
        }
        self.write_journal()
    }

    fn processes_in(&self, instance: u32) -> Result<Vec<u32>, NodeError> {
        let all = self.driver.processes(&self.gpu.uuid)?;
        let inside = all.into_iter().filter(|process| process.instance == Some(instance));
        Ok(inside.map(|process| process.pid).collect())
    }

    /// `; process 123 (python3) holds it`
    fn who_is_in(&self, instance: u32) -> String {
        let named = |pid: u32| match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
            Ok(name) => format!("{pid} ({})", name.trim()),
            Err(_) => pid.to_string(),
        };
        let mut pids = self.processes_in(instance).unwrap_or_default();
        if pids.is_empty() {
            pids = self.driver.holders(&self.gpu.uuid, instance);
        }
        match pids.as_slice() {
            [] => "; no process in it is found, perhaps a monitor in a container holds it".to_owned(),
            [pid] => format!("; process {} holds it", named(*pid)),
            pids => {
                let all: Vec<String> = pids.iter().map(|pid| named(*pid)).collect();
                format!("; processes {} hold it", all.join(", "))
            }
        }
    }

    fn lost(&self, wanted: &MigInstance, why: String) -> NodeError {
        let (profile, start, index) = (wanted.profile.clone(), wanted.start, self.gpu.index);
        NodeError::PlacementLost { profile, start, index, why }
    }
}

/// The instances to destroy before one of the profile at position `at` can be created at `start`: all that overlap it,
/// a free one of its own profile elsewhere if the maximum number exists, and free ones whose engines it needs.
fn in_the_way<'f>(
    table: &Table,
    at: usize,
    start: u32,
    found: &'f [GpuInstance],
    may_go: impl Fn(&GpuInstance) -> bool,
) -> Vec<&'f GpuInstance> {
    let profile = &table.profiles[at];
    let end = start + profile.size;
    let overlaps = |instance: &&GpuInstance| instance.start < end && start < instance.start + instance.size;
    let mut way: Vec<&GpuInstance> = found.iter().filter(overlaps).collect();
    let same = |instance: &&GpuInstance| instance.profile_id == profile.id;
    let left = found.iter().filter(same).filter(|instance| !overlaps(instance));
    let surplus = (left.clone().count() + 1).saturating_sub(profile.max_instances as usize);
    way.extend(left.filter(|instance| may_go(instance)).take(surplus));
    // Then free ones whose media engines are needed.
    for instance in found.iter().filter(|instance| may_go(instance)) {
        let stays = found.iter().filter(|other| !way.contains(other));
        let position = |one: &GpuInstance| table.profiles.iter().position(|known| known.id == one.profile_id);
        if table.has_engines_for(stays.filter_map(position).chain([at])) {
            break;
        }
        if !way.contains(&instance) {
            way.push(instance);
        }
    }
    way
}

/// Makes the instances of a lease that is on disk, as far as it has none yet, with all their names in it. Takes seconds on
/// real hardware.
///
/// # Errors
/// [`NodeError::PlacementLost`], or the driver fails; instances that were made stay for other tasks.
pub fn make_instances(
    driver: &dyn Driver,
    node: &NodeStore,
    gpus: &[Gpu],
    lease: &mut Lease,
    stages: &Stages,
) -> Result<(), NodeError> {
    for slice in &mut lease.slices {
        let Some(wanted) = slice.mig.as_ref().filter(|mig| mig.uuid.is_empty()) else { continue };
        let gpu = gpus.iter().find(|gpu| gpu.uuid == slice.gpu);
        let gpu = gpu.ok_or_else(|| DriverError::NoSuchGpu(slice.gpu.clone()))?;
        slice.mig = Some(Writer::open(driver, node, gpu, stages)?.make(&lease.id, wanted)?);
    }
    Ok(())
}
