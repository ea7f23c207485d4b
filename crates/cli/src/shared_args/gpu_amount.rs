//! Flags for the part of a GPU, or the MIG instance, that a task requests.

use cantle_model::{Bytes, GpuList, GpuRequest, Isolation, check_memory_limit};
use clap::Args;

use super::values::{self, Gpus};
use crate::error::{CliError, ErrorKind, as_kind};

/// The flags of a request for GPUs.
#[derive(Args, Debug, Clone, Default)]
#[group(multiple = false)]
pub(crate) struct GpuAmount {
    /// A part of one GPU: more than 0, at most 1, in steps of 0.001
    #[arg(long, value_name = "F", value_parser = values::fraction)]
    pub(crate) gpu: Option<GpuRequest>,
    /// Number of whole GPUs; with run also an existing MIG instance: 0:1 or MIG-…
    #[arg(long, value_name = "N", value_parser = values::gpus)]
    pub(crate) gpus: Option<Gpus>,
    /// Amount of memory of one GPU, e.g. 4G or 4Gi
    #[arg(long, visible_alias = "gpu-memory-request", value_name = "M", value_parser = values::memory)]
    pub(crate) gpu_memory: Option<GpuRequest>,
    /// A MIG profile, e.g. 2g.10gb
    #[arg(long, value_name = "P", value_parser = values::profile)]
    pub(crate) mig_profile: Option<GpuRequest>,
}

/// `--gpu-memory-limit`.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct MemoryLimitArgs {
    /// Memory of its GPU that the task may have at most: beyond its request as long as it is free. The task is suspended or queued
    /// again if it does not give that back for another one
    #[arg(long, value_name = "M", value_parser = values::bytes)]
    gpu_memory_limit: Option<Bytes>,
}

impl MemoryLimitArgs {
    /// The limit that was given, for this request.
    ///
    /// # Errors
    /// If it means nothing with that.
    pub(crate) fn limit(
        self,
        request: Option<&GpuRequest>,
        isolation: Isolation,
    ) -> Result<Option<Bytes>, CliError> {
        if let Some(limit) = self.gpu_memory_limit {
            check_memory_limit(limit, request, isolation).map_err(as_kind(ErrorKind::Usage))?;
        }
        Ok(self.gpu_memory_limit)
    }
}

impl GpuAmount {
    /// The request that was given, if any.
    ///
    /// # Errors
    /// If it names a MIG instance of this machine, which is not an amount.
    pub(crate) fn request(&self) -> Result<Option<GpuRequest>, CliError> {
        let count = match &self.gpus {
            Some(Gpus::Count(count)) => Some(count),
            Some(Gpus::Instances(_)) => {
                let text = "--gpus names a MIG instance here, which only run and daemon take";
                let hint = "ask for --mig-profile or --gpus N";
                return Err(CliError::new(ErrorKind::Usage, text).with_hint(hint));
            }
            None => None,
        };
        let given = [self.gpu.as_ref(), count, self.gpu_memory.as_ref(), self.mig_profile.as_ref()];
        Ok(given.into_iter().flatten().next().cloned())
    }

    /// The requested GPUs: an amount of any GPU (a whole one if nothing was given), or one of the MIG instances that were
    /// named.
    pub(crate) fn request_and_gpus(&self) -> Result<(GpuRequest, GpuList), CliError> {
        match &self.gpus {
            Some(Gpus::Instances(list)) => Ok((GpuRequest::Gpus(1), list.clone())),
            _ => Ok((self.request()?.unwrap_or(GpuRequest::Gpus(1)), GpuList::All)),
        }
    }
}
