//! `cantle suspend`, `cantle resume`, `cantle resize`, and `cantle move --gpu`: what becomes of a task that runs on this machine.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cantle_driver::{Driver, Installation};
use cantle_model::{Bytes, Gpu, GpuRequest, Lease, LeaseId};
use cantle_node::{CheckpointHelper, LOCK_LIMIT, NodeStore, SuspendError, Suspender, got, parked_memory};

use clap::Args;

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::shared_args::{ParkedArgs, values};

/// `cantle suspend`
#[derive(Args, Debug)]
pub(crate) struct SuspendArgs {
    /// Id of the task, the beginning of it, or its name; cantle ps lists them
    #[arg(value_name = "TASK")]
    task: String,
    #[command(flatten)]
    limits: SuspendLimits,
}

/// The limits of a suspension.
#[derive(Args, Debug, Default)]
pub(crate) struct SuspendLimits {
    /// Seconds that the work in flight may take until the task is left alone [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: Option<u64>,
    #[command(flatten)]
    parked: ParkedArgs,
}

/// `cantle resume`
#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// Id of the task, the beginning of it, or its name; cantle ps lists them
    #[arg(value_name = "TASK")]
    task: String,
    /// On this GPU, by its number [default: where it was, else another one of the same kind]
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,
}

/// `cantle resize`
#[derive(Args, Debug)]
pub(crate) struct ResizeArgs {
    /// Id of the task, the beginning of it, or its name; cantle ps lists them
    #[arg(value_name = "TASK")]
    task: String,
    #[command(flatten)]
    size: NewSize,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct NewSize {
    /// The part of its GPU that the task gets: more than 0, less than 1
    #[arg(long, value_name = "F", value_parser = values::fraction)]
    gpu: Option<GpuRequest>,
    /// The amount of memory that the task gets, e.g. 20G
    #[arg(long, value_name = "M", value_parser = values::memory)]
    gpu_memory: Option<GpuRequest>,
}

/// This machine, for changes of its tasks.
struct Here {
    driver: Arc<dyn Driver>,
    node: NodeStore,
    gpus: Vec<Gpu>,
    helper: CheckpointHelper,
}

impl Here {
    fn open() -> Result<Self, CliError> {
        let installation = Installation::of_this_machine();
        let driver = cantle_driver::open(&installation).map_err(as_kind(ErrorKind::Unavailable))?;
        let gpus = driver.gpus().map_err(as_kind(ErrorKind::Unavailable))?;
        let node = NodeStore::open(&NodeStore::dir_for(&installation))?;
        Ok(Self { driver, node, gpus, helper: CheckpointHelper::default() })
    }

    fn suspender(&mut self, limits: &SuspendLimits) -> Result<Suspender<'_>, CliError> {
        let parked_memory = match limits.parked.bytes() {
            Some(bytes) => Some(bytes),
            // The limit that the machine's agent was given.
            None => parked_memory(&self.node)?,
        };
        Ok(Suspender {
            driver: self.driver.as_ref(),
            node: &self.node,
            gpus: &self.gpus,
            helper: &mut self.helper,
            parked_memory,
            lock_limit: limits.timeout.map_or(LOCK_LIMIT, Duration::from_secs),
        })
    }

    /// The lease of a task by its id, the beginning of it, or its name.
    fn lease(&self, task: &str) -> Result<LeaseId, CliError> {
        let leases = self.node.leases()?;
        let exact: Vec<&Lease> = leases.iter().filter(|lease| lease.task.0 == task).collect();
        let found: Vec<&Lease> = if exact.is_empty() {
            leases.iter().filter(|lease| lease.name == task || lease.task.0.starts_with(task)).collect()
        } else {
            exact
        };
        match found.as_slice() {
            [] => Err(cantle_node::NodeError::from(SuspendError::NotHere(task.to_owned())).into()),
            [lease] => Ok(lease.id.clone()),
            several => {
                let (name, count) = (task.to_owned(), several.len());
                Err(cantle_node::NodeError::from(SuspendError::Ambiguous { name, count }).into())
            }
        }
    }

    fn gpu(&self, index: u32) -> Result<Gpu, CliError> {
        let found = self.gpus.iter().find(|gpu| gpu.index == index).cloned();
        found.ok_or_else(|| {
            let last = self.gpus.len().saturating_sub(1);
            let text = format!("--gpu {index}: this machine has no such GPU");
            CliError::new(ErrorKind::Usage, text).with_hint(format!("its GPUs are 0 to {last}"))
        })
    }

    fn index_of(&self, lease: &Lease) -> String {
        let slices = lease.suspension.as_ref().map_or(&lease.slices, |suspension| &suspension.slices);
        let gpu = slices.first().and_then(|slice| self.gpus.iter().find(|gpu| gpu.uuid == slice.gpu));
        gpu.map_or_else(|| "?".to_owned(), |gpu| gpu.index.to_string())
    }
}

/// Suspends a task of this machine.
pub(crate) fn suspend(context: &Context, args: &SuspendArgs) -> CommandResult {
    let mut here = Here::open()?;
    let id = here.lease(&args.task)?;
    let lease = here.suspender(&args.limits)?.suspend(&id)?;
    let parked = Bytes(lease.suspension.as_ref().map_or(0, |suspension| suspension.parked_bytes));
    let (task, gpu) = (&lease.task, here.index_of(&lease));
    context
        .printer
        .say(&format!("{task} is suspended: {parked} are in host memory, and its part of GPU {gpu} is free"));
    Ok(ExitCode::SUCCESS)
}

/// Resumes a suspended task of this machine.
pub(crate) fn resume(context: &Context, args: &ResumeArgs) -> CommandResult {
    let mut here = Here::open()?;
    let id = here.lease(&args.task)?;
    let to = args.gpu.map(|index| here.gpu(index)).transpose()?;
    let lease = here.suspender(&SuspendLimits::default())?.resume(&id, to.as_ref())?;
    context.printer.say(&format!("{} runs again: {}", lease.task, got(&lease.slices, &here.gpus)));
    Ok(ExitCode::SUCCESS)
}

/// Moves a task of this machine to another GPU.
pub(crate) fn move_to_gpu(context: &Context, task: &str, gpu: u32) -> CommandResult {
    let mut here = Here::open()?;
    let id = here.lease(task)?;
    let to = here.gpu(gpu)?;
    let lease = here.suspender(&SuspendLimits::default())?.move_to(&id, &to)?;
    context.printer.say(&format!("{} has moved: {}", lease.task, got(&lease.slices, &here.gpus)));
    Ok(ExitCode::SUCCESS)
}

/// Changes the size of a running task's slice.
pub(crate) fn resize(context: &Context, args: &ResizeArgs) -> CommandResult {
    let mut here = Here::open()?;
    let id = here.lease(&args.task)?;
    let Some(request) = args.size.gpu.as_ref().or(args.size.gpu_memory.as_ref()) else {
        return Err(CliError::new(ErrorKind::Usage, "give the new size with --gpu or --gpu-memory"));
    };
    let lease = here.suspender(&SuspendLimits::default())?.resize(&id, request)?;
    context.printer.say(&format!("{} has now {}", lease.task, got(&lease.slices, &here.gpus)));
    Ok(ExitCode::SUCCESS)
}
