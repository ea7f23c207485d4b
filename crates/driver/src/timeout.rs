//! A GPU that does not answer must not delay the others: each is asked on a thread of its own, and callers wait for an answer for
//! a limited time.
//!
//! Making and destroying MIG instances has no time limit: it goes straight to the driver, on the caller's thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Slice};

use crate::nvml::Session;
use crate::{
    Activation, ContainerParts, Driver, DriverError, GpuInstance, Libraries, Load, Location, Memory, Mig,
    ProcessMemory, Result, Versions,
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
}

impl TimedDriver {
    pub(crate) fn new(session: Session) -> Result<Self> {
        let (gpus, session) = (session.gpus()?, Arc::new(session));
        let thread = |gpu: &Gpu| Ok((gpu.uuid.clone(), GpuThread::start(Arc::clone(&session), &gpu.uuid)?));
        let threads = gpus.iter().map(thread).collect::<Result<_>>()?;
        Ok(Self { session, threads, gpus })
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
                Err(DriverError::Stalled { .. }) => Ok(known.clone()),
                answer => answer,
            }
        };
        self.gpus.iter().map(now).collect()
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

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        let uuid = gpu.clone();
        self.ask(gpu, "its location", move |session| session.location(&uuid))
    }

    fn versions(&self) -> Versions {
        self.session.versions()
    }

    fn context_bytes(&self, gpu: &GpuUuid, device: &str) -> Result<u64> {
        self.session.context_bytes(gpu, device)
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        self.session.container_parts(slices)
    }

    fn libraries(&self) -> Result<Libraries> {
        self.session.libraries()
    }
}

impl Mig for TimedDriver {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its MIG profiles", move |session| session.mig_table(&uuid))
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its MIG instances", move |session| session.gpu_instances(&uuid))
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        let uuid = gpu.clone();
        self.ask(gpu, "its MIG devices", move |session| session.mig_devices(&uuid))
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        self.session.create_gpu_instance(gpu, profile, start, size)
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        self.session.create_compute_instance(gpu, instance)
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.session.destroy_compute_instances(gpu, instance)
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.session.destroy_gpu_instance(gpu, instance)
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        let uuid = gpu.clone();
        self.ask(gpu, "its architecture", move |session| session.switches_mig(&uuid))
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        self.session.set_mig_mode(gpu, on)
    }
}
