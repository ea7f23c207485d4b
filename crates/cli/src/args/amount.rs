//! How much GPU a task wants, or which MIG instance.

use cantle_model::{GpuList, GpuRequest};
use clap::Args;

use super::values::{self, Gpus};
use crate::error::{CliError, Kind};

/// How much GPU.
#[derive(Args, Debug, Clone, Default)]
#[group(multiple = false)]
pub(crate) struct Amount {
    /// A part of one GPU: more than 0, at most 1, in steps of 0.001
    #[arg(long, value_name = "F", value_parser = values::fraction)]
    pub(crate) gpu: Option<GpuRequest>,
    /// Whole GPUs; with run also a MIG instance as it is: 0:1 or MIG-…
    #[arg(long, value_name = "N", value_parser = values::gpus)]
    pub(crate) gpus: Option<Gpus>,
    /// So much GPU memory of one GPU, e.g. 4G or 4Gi
    #[arg(long, value_name = "M", value_parser = values::memory)]
    pub(crate) gpu_memory: Option<GpuRequest>,
    /// A MIG profile, e.g. 2g.10gb
    #[arg(long, value_name = "P", value_parser = values::profile)]
    pub(crate) mig_profile: Option<GpuRequest>,
}

impl Amount {
    /// The one that was given.
    ///
    /// # Errors
    /// If it is a MIG instance of this machine: who asks for that does not ask for an amount.
    pub(crate) fn request(&self) -> Result<Option<GpuRequest>, CliError> {
        let count = match &self.gpus {
            Some(Gpus::Count(count)) => Some(count),
            Some(Gpus::Instances(_)) => {
                let text = "--gpus names a MIG instance here, which only run and daemon take; ask for --mig-profile or --gpus N";
                return Err(CliError::new(Kind::Usage, text));
            }
            None => None,
        };
        let given = [self.gpu.as_ref(), count, self.gpu_memory.as_ref(), self.mig_profile.as_ref()];
        Ok(given.into_iter().flatten().next().cloned())
    }

    /// What to run on: so much of any GPU, or one of the MIG instances that were named.
    pub(crate) fn place(&self) -> Result<(GpuRequest, GpuList), CliError> {
        match &self.gpus {
            Some(Gpus::Instances(list)) => Ok((GpuRequest::Gpus(1), list.clone())),
            _ => Ok((self.request()?.unwrap_or(GpuRequest::Gpus(1)), GpuList::All)),
        }
    }
}
