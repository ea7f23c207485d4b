//! MIG instances that an administrator names (`--gpus 0:0,0:1`): used as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_driver::{Driver, FixedInstances, GpuInstance, LostGpu};
use cantle_model::{Gpu, GpuList, GpuListError, GpuUuid, MigName, Slice};

use crate::NodeError;

/// Names of MIG devices by GPU.
pub(crate) type Devices = BTreeMap<GpuUuid, Vec<String>>;

/// The GPUs that `list` names, and the driver that shows only the part of them that `list` names.
///
/// # Errors
/// Names the GPU or the instance that is not there, or cannot be used separately.
pub fn chosen(driver: Arc<dyn Driver>, list: &GpuList) -> Result<(Arc<dyn Driver>, Vec<Gpu>), NodeError> {
    let gpus = driver.gpus()?;
    let lost = report_lost(driver.as_ref());
    let GpuList::Instances(names) = list else {
        return match list.select(&gpus) {
            Ok(chosen) => Ok((driver, chosen)),
            Err(GpuListError::Absent(index, count)) => {
                match lost.into_iter().find(|lost| lost.index == index) {
                    Some(LostGpu { index, why }) => Err(NodeError::LostGpu { index, why }),
                    None => Err(GpuListError::Absent(index, count).into()),
                }
            }
            Err(error) => Err(error.into()),
        };
    };
    let mut devices = Devices::new();
    for name in names {
        let (gpu, device) = find(driver.as_ref(), &gpus, name)?;
        let of_gpu = devices.entry(gpu).or_default();
        if !of_gpu.contains(&device) {
            of_gpu.push(device);
        }
    }
    let gpus = gpus.into_iter().filter(|gpu| devices.contains_key(&gpu.uuid)).collect();
    Ok((Arc::new(FixedInstances::new(driver, devices)), gpus))
}

/// Names the GPUs that could not be opened in the log, and returns them.
pub(crate) fn report_lost(driver: &dyn Driver) -> Vec<LostGpu> {
    let lost = driver.lost_gpus();
    for LostGpu { index, why } in &lost {
        tracing::warn!(gpu = index, %why, "GPU is lost; the others serve");
    }
    lost
}

/// GPU and device of the instance that is called `name`.
fn find(driver: &dyn Driver, gpus: &[Gpu], name: &MigName) -> Result<(GpuUuid, String), NodeError> {
    let meant: Vec<&Gpu> = match name {
        MigName::Uuid(_) => gpus.iter().collect(),
        MigName::Number { gpu, .. } => gpus.iter().filter(|known| known.index == *gpu).collect(),
    };
    if let (MigName::Number { gpu, .. }, []) = (name, meant.as_slice()) {
        return Err(GpuListError::Absent(*gpu, gpus.len()).into());
    }
    let mut there = Vec::new();
    for gpu in meant {
        for (number, device) in driver.mig_devices(&gpu.uuid)? {
            let is_it = match name {
                MigName::Number { device, .. } => *device == number,
                MigName::Uuid(uuid) => *uuid == device,
            };
            if is_it {
                stands_alone(&driver.gpu_instances(&gpu.uuid)?, name, &device)?;
                return Ok((gpu.uuid.clone(), device));
            }
            there.push(format!("{}:{number} ({device})", gpu.index));
        }
    }
    Err(NodeError::NoInstance { name: name.clone(), there: there.join(", ") })
}

/// Compute instances of one GPU instance share its memory: nothing would keep their tasks apart.
fn stands_alone(instances: &[GpuInstance], name: &MigName, device: &str) -> Result<(), NodeError> {
    let holds = |instance: &&GpuInstance| instance.devices.iter().any(|known| known == device);
    match instances.iter().find(holds).map_or(0, |instance| instance.devices.len()) {
        0 | 1 => Ok(()),
        count => Err(NodeError::SharedInstance { name: name.clone(), count }),
    }
}

/// The instances that this driver uses as they are.
pub fn fixed_by_gpu(driver: &dyn Driver, gpus: &[Gpu]) -> Devices {
    let of = |gpu: &Gpu| Some((gpu.uuid.clone(), driver.fixed_devices(&gpu.uuid)?.to_vec()));
    gpus.iter().filter_map(of).collect()
}

/// Puts the names of existing instances into slices that were planned on them, so that other planners of the GPU see at once
/// that they are taken.
///
/// # Errors
/// If the driver cannot say.
pub fn name_given(driver: &dyn Driver, slices: &mut [Slice]) -> Result<(), NodeError> {
    for slice in slices {
        let Some(mig) = &mut slice.mig else { continue };
        if driver.fixed_devices(&slice.gpu).is_none() {
            continue;
        }
        let existing = driver.recent_instances(&slice.gpu, 0)?;
        if let Some([device]) =
            existing.iter().find(|one| one.start == mig.start).map(|one| one.devices.as_slice())
        {
            mig.uuid.clone_from(device);
        }
    }
    Ok(())
}
