//! Changes the MIG mode of whole GPUs, on an administrator's decision, when no program uses the GPU.

use cantle_driver::{Activation, Driver};
use cantle_model::{Gpu, GpuList, GpuRequest, Isolation};

use super::stages::Stages;
use super::writer::{Adopt, Writer};
use crate::{NodeError, NodeStore};

/// The handling of a task that requests whole GPUs where some are in MIG mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WholeGpu {
    /// It gets an instance of all of a GPU, if none without MIG is free.
    #[default]
    Instance,
    /// It waits for GPUs without MIG, unless it demands an instance itself.
    Wait,
}

impl WholeGpu {
    /// The isolation of a task with this `request`.
    pub fn isolation(self, request: &GpuRequest, asked: Isolation) -> Isolation {
        match (self, request, asked) {
            (Self::Wait, GpuRequest::Gpus(_), Isolation::Any) => Isolation::Shared,
            _ => asked,
        }
    }
}

/// Puts the GPUs of `wanted` into MIG mode, where that needs no reset and they are unused.
///
/// # Errors
/// [`NodeError::MigMode`] names the steps that an administrator has to take first.
pub fn turn_on(driver: &dyn Driver, gpus: &mut [Gpu], wanted: &GpuList) -> Result<(), NodeError> {
    for chosen in wanted.select(gpus)? {
        let index = chosen.index;
        let error = |why: String| NodeError::MigMode { index, why };
        match driver.set_mig_mode(&chosen.uuid, true) {
            Ok(Activation::Done) => {}
            Ok(Activation::InUse) => {
                let why =
                    "MIG mode cannot be turned on while a program or a monitor uses the GPU; stop it first";
                return Err(error(why.to_owned()));
            }
            Ok(Activation::ResetRequired) => {
                let why = format!(
                    "MIG mode needs a reset of this GPU: nvidia-smi -i {index} -mig 1, then \
                     nvidia-smi -i {index} --gpu-reset or a restart of the machine"
                );
                return Err(error(why));
            }
            Err(refused) if refused.is_not_supported() => return Err(error("it has no MIG mode".to_owned())),
            Err(refused) => return Err(refused.into()),
        }
        for gpu in gpus.iter_mut().filter(|gpu| gpu.index == index) {
            gpu.mig = true;
        }
    }
    Ok(())
}

/// Destroys the free instances on GPUs in MIG mode, except the fixed ones. A GPU that does not answer takes nothing new
/// anyway.
pub fn sweep(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu], adopt: Adopt, stages: &Stages) {
    for gpu in gpus.iter().filter(|gpu| gpu.mig) {
        let given = driver.fixed_devices(&gpu.uuid).is_some();
        let swept = Writer::open(driver, node, gpu, stages)
            .and_then(|mut writer| if given { writer.disown() } else { writer.sweep(adopt) });
        if let Err(error) = swept {
            tracing::warn!(gpu = gpu.index, %error, "its MIG instances are left unchanged");
        }
    }
}
