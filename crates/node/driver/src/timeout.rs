//! Keeps a GPU that does not answer from delaying the others: each GPU has a thread of its own for calls, and callers wait
//! for an answer for a limited time.
//!
//! Calls about MIG instances go to a process of their own ([`MigProcess`]). Creating and destroying has no time limit: the
//! caller's thread waits for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Slice, Topology};
use serde::de::DeserializeOwned;

use crate::mig_process::{MigCall, MigProcess};
use crate::nvml::{Connections, LostGpu, Session};
use crate::recent::Recent;
use crate::{
    Activation, Checkpoints, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, GroupMemory,
    Libraries, LimitSupport, Load, Location, Memory, Mig, NativeLimit, ProcessMemory, Result, Versions, Xid,
};

/// NVML answers in a millisecond; on a busy machine an answer has taken a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

type Job = Box<dyn FnOnce(&Session) + Send>;

/// The thread that asks one GPU.
struct GpuThread {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
    /// The current call has taken too long and has not returned.
    stalled: Arc<AtomicBool>,
}

impl GpuThread {
    fn start(session: Arc<Session>, gpu: &GpuUuid) -> Result<Self> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let stalled = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&stalled);
        let work = move || {
            for job in todo {
                job(&session);
                // A swap, as in `TimedDriver::ask`: the later of the two reads what the earlier one's thread wrote before.
                done.swap(false, Ordering::AcqRel);
            }
        };
        let thread = thread::Builder::new().name("nvml".to_owned()).spawn(work);
        let thread = thread.map_err(|why| DriverError::Thread { gpu: gpu.clone(), why: why.to_string() })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), stalled })
    }
}

impl Drop for GpuThread {
    /// The session is closed when this returns, unless its GPU does not answer: that is not waited for here either.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| !self.stalled.load(Ordering::Acquire)) {
            // A panic in it has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// A session that asks each GPU on a thread of its own, with a time limit.
pub(crate) struct TimedDriver {
    threads: BTreeMap<GpuUuid, GpuThread>,
    session: Arc<Session>,
    /// As found at the start; reported for a GPU that does not answer.
    gpus: Vec<Gpu>,
    /// The place of MIG calls: a separate process, or this one in unit tests.
    process: Option<MigProcess>,
    recent: Recent,
    topology: OnceLock<Topology>,
}

impl TimedDriver {
    pub(crate) fn new(session: Session, process: Option<MigProcess>) -> Result<Self> {
        let (gpus, session) = (session.gpus()?, Arc::new(session));
        let thread = |gpu: &Gpu| Ok((gpu.uuid.clone(), GpuThread::start(Arc::clone(&session), &gpu.uuid)?));
        let threads = gpus.iter().map(thread).collect::<Result<_>>()?;
        let (recent, topology) = (Recent::default(), OnceLock::new());
        Ok(Self { session, threads, gpus, process, recent, topology })
    }

    /// The process for MIG calls, and the GPU as it names it.
    fn process_for(&self, gpu: &GpuUuid) -> Result<Option<(MigProcess, Gpu)>> {
        let Some(process) = &self.process else { return Ok(None) };
        let known = self.gpus.iter().find(|known| known.uuid == *gpu);
        let known = known.ok_or_else(|| DriverError::NoSuchGpu(gpu.clone()))?;
        Ok(Some((process.clone(), known.clone())))
    }

    /// A question about MIG instances, with a time limit.
    fn ask_mig<T: DeserializeOwned + Send + 'static>(
        &self,
        gpu: &GpuUuid,
        what: &'static str,
        call: MigCall,
        in_process: impl FnOnce(&Session) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.process_for(gpu)? {
            Some((process, gpu)) => self.ask(&gpu.uuid.clone(), what, move |session| {
                process.ask(&gpu, session.known_table(&gpu.uuid).as_ref(), &call)
            }),
            None => self.ask(gpu, what, in_process),
        }
    }

    /// A change of MIG instances, on the caller's thread.
    fn change<T: DeserializeOwned>(
        &self,
        gpu: &GpuUuid,
        call: &MigCall,
        in_process: impl FnOnce(&Session) -> Result<T>,
    ) -> Result<T> {
        let done = match self.process_for(gpu)? {
            Some((process, gpu)) => process.ask(&gpu, self.session.known_table(&gpu.uuid).as_ref(), call),
            None => in_process(&self.session),
        };
        self.recent.forget(gpu);
        done
    }

    fn in_mig_mode(&self, gpu: &GpuUuid) -> Result<bool> {
        let uuid = gpu.clone();
        Ok(self.ask(gpu, "its MIG mode", move |session| session.gpu(&uuid))?.mig)
    }

    /// A GPU that does not answer has unknown connections.
    fn read_topology(&self) -> Topology {
        let uuids: Vec<GpuUuid> = self.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        if uuids.len() < 2 {
            return Topology::default();
        }
        let of = |gpu: &GpuUuid| {
            let (uuid, others) = (gpu.clone(), uuids.clone());
            let asked = self.ask(gpu, "its connections", move |session| session.connections(&uuid, &others));
            asked.unwrap_or_default()
        };
        let all: Vec<Connections> = uuids.iter().map(of).collect();
        Topology::new(uuids, |one, other| Connections::link(&all, one, other))
    }

    fn ask<T: Send + 'static>(
        &self,
        gpu: &GpuUuid,
        call: &'static str,
        question: impl FnOnce(&Session) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let thread = self.threads.get(gpu).ok_or_else(|| DriverError::NoSuchGpu(gpu.clone()))?;
        let stalled = || DriverError::Stalled { gpu: gpu.clone(), call, waited_s: ANSWER_TIMEOUT.as_secs() };
        if thread.stalled.load(Ordering::Acquire) {
            return Err(stalled());
        }
        let (reply, answer) = mpsc::channel();
        // An answer that comes too late has no receiver any more.
        let job: Job = Box::new(move |session| drop(reply.send(question(session))));
        thread.jobs.as_ref().ok_or_else(stalled)?.send(job).map_err(|_| stalled())?;
        answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or_else(|_| {
            thread.stalled.swap(true, Ordering::AcqRel);
            // The answer may have come just now, after which its thread does not clear the mark any more.
            let late = answer.try_recv();
            if late.is_ok() {
                thread.stalled.store(false, Ordering::Release);
            }
            late.unwrap_or_else(|_| Err(stalled()))
        })
    }
}

impl Driver for TimedDriver {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        let now = |known: &Gpu| {
            let uuid = known.uuid.clone();
            match self.ask(&known.uuid, "its MIG mode", move |session| session.gpu(&uuid)) {
                Err(error) if error.is_of_one_gpu() => Ok(known.clone()),
                answer => answer,
            }
        };
        self.gpus.iter().map(now).collect()
    }

    fn lost_gpus(&self) -> Vec<LostGpu> {
        self.session.lost_gpus()
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        let uuid = gpu.clone();
        self.ask(gpu, "its memory", move |session| session.memory(&uuid))
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        let uuid = gpu.clone();
        self.ask(gpu, "its load", move |session| session.load(&uuid))
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its processes", move |session| session.processes(&uuid))
    }

    fn busy_processes(&self, gpu: &GpuUuid, since_us: u64) -> Result<Vec<u32>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its busy processes", move |session| session.busy_processes(&uuid, since_us))
    }

    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its events", move |session| session.xids(&uuid))
    }

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        let uuid = gpu.clone();
        self.ask(gpu, "its location", move |session| session.location(&uuid))
    }

    fn topology(&self) -> Topology {
        self.topology.get_or_init(|| self.read_topology()).clone()
    }

    fn versions(&self) -> Versions {
        self.session.versions()
    }

    fn context_memory(&self, gpu: &GpuUuid, device: &str) -> Result<ContextMemory> {
        self.session.context_memory(gpu, device)
    }

    fn start_checkpoints(&self) -> Result<Checkpoints> {
        self.session.start_checkpoints()
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        self.session.container_parts_of(slices, |gpu, name| {
            let (uuid, name) = (gpu.clone(), name.to_owned());
            let call = MigCall::Named { name: name.clone() };
            self.ask_mig(gpu, "its MIG instances", call, move |session| session.instance_named(&uuid, &name))
        })
    }

    fn native_limit(&self) -> &dyn NativeLimit {
        self
    }

    fn libraries(&self) -> Result<Libraries> {
        self.session.libraries()
    }
}

impl NativeLimit for TimedDriver {
    fn probe(&self, gpu: &GpuUuid, group: &Path) -> LimitSupport {
        let (uuid, group) = (gpu.clone(), group.to_owned());
        let probed = self.ask(gpu, "its limits", move |session| Ok(session.probe(&uuid, &group)));
        probed.unwrap_or_else(|error| LimitSupport::Unsupported(error.to_string()))
    }

    fn set(&self, gpu: &GpuUuid, group: &Path, hard_bytes: u64) -> Result<()> {
        let (uuid, group) = (gpu.clone(), group.to_owned());
        self.ask(gpu, "its limits", move |session| session.set(&uuid, &group, hard_bytes))
    }

    fn clear(&self, gpu: &GpuUuid, group: &Path) -> Result<()> {
        let (uuid, group) = (gpu.clone(), group.to_owned());
        self.ask(gpu, "its limits", move |session| session.clear(&uuid, &group))
    }

    fn used(&self, gpu: &GpuUuid, group: &Path) -> Result<GroupMemory> {
        let (uuid, group) = (gpu.clone(), group.to_owned());
        self.ask(gpu, "its limits", move |session| session.used(&uuid, &group))
    }

    fn doors(&self, gpu: &GpuUuid, group: &Path) -> Result<Vec<PathBuf>> {
        let (uuid, group) = (gpu.clone(), group.to_owned());
        self.ask(gpu, "its limits", move |session| session.doors(&uuid, &group))
    }
}

impl Mig for TimedDriver {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        if !self.in_mig_mode(gpu)? {
            return Ok(None);
        }
        // The profiles of a GPU do not change while its driver is loaded, and reading them takes about sixty calls.
        if let Some(table) = self.session.known_table(gpu) {
            return Ok(Some(table));
        }
        let uuid = gpu.clone();
        let read: Option<Table> =
            self.ask_mig(gpu, "its MIG profiles", MigCall::Table, move |session| session.mig_table(&uuid))?;
        Ok(read.map(|table| self.session.keep_table(gpu, table)))
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        let uuid = gpu.clone();
        let call = MigCall::Instances;
        self.ask_mig(gpu, "its MIG instances", call, move |session| session.gpu_instances(&uuid))
    }

    fn recent_instances(&self, gpu: &GpuUuid, mark: u64) -> Result<Vec<GpuInstance>> {
        self.recent.get(gpu, mark, || self.gpu_instances(gpu))
    }

    fn last_instances(&self, gpu: &GpuUuid) -> Option<(Table, Vec<GpuInstance>)> {
        Some((self.session.known_table(gpu)?, self.recent.last(gpu)?))
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        let uuid = gpu.clone();
        self.ask_mig(gpu, "its MIG devices", MigCall::Devices, move |session| session.mig_devices(&uuid))
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        let call = MigCall::CreateGpuInstance { profile, start, size };
        self.change(gpu, &call, |session| session.create_gpu_instance(gpu, profile, start, size))
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        let call = MigCall::CreateComputeInstance { instance };
        self.change(gpu, &call, |session| session.create_compute_instance(gpu, instance))
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        let call = MigCall::DestroyComputeInstances { instance };
        self.change(gpu, &call, |session| session.destroy_compute_instances(gpu, instance))
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        let call = MigCall::DestroyGpuInstance { instance };
        self.change(gpu, &call, |session| session.destroy_gpu_instance(gpu, instance))
    }

    fn holders(&self, gpu: &GpuUuid, instance: u32) -> Vec<u32> {
        let minor = self.location(gpu).map(|location| location.minor);
        minor.map_or_else(|_| Vec::new(), |minor| self.session.holders(minor, instance))
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        let uuid = gpu.clone();
        self.ask(gpu, "its architecture", move |session| session.switches_mig(&uuid))
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        self.session.set_mig_mode(gpu, on)
    }
}
