//! Records the GPUs whose driver has reported a fault. They get no new slice until an administrator has handled the
//! fault.
//!
//! The record is on disk, because every process that allocates the GPU must know it, and the driver reports it once. A
//! restart of the machine clears it, because it resets the GPU; so does an agent that was asked to close the driver
//! (`cantle daemon --release-gpus`), which a reset by hand needs.

use std::fmt;
use std::path::PathBuf;

use cantle_driver::{Driver, Xid};
use cantle_model::{Gpu, GpuUuid};
use cantle_runtime::files::{self, Durability};
use serde::{Deserialize, Serialize};

use crate::NodeError;
use crate::clock::now_ms;
use crate::store::{HEALTH, NodeStore};

/// The fault of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFault {
    xid: u64,
    since_ms: i64,
}

/// `Xid 79 (GPU has fallen off the bus)`
impl fmt::Display for GpuFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Xid(self.xid).fmt(f)
    }
}

impl NodeStore {
    /// The driver's report about a GPU, if it is a fault of the GPU.
    #[must_use]
    pub fn gpu_fault(&self, gpu: &GpuUuid) -> Option<GpuFault> {
        files::read_json(&self.fault_path(gpu)).unwrap_or_else(|error| {
            tracing::error!(%error, "the record of a failed GPU cannot be read; the GPU counts as failed");
            Some(GpuFault { xid: 0, since_ms: 0 })
        })
    }

    fn note_fault(&self, gpu: &GpuUuid, xid: Xid) -> Result<(), NodeError> {
        let fault = GpuFault { xid: xid.0, since_ms: now_ms() };
        Ok(files::write_json(&self.fault_path(gpu), &fault, Durability::Crash)?)
    }

    /// All GPUs serve again: they have been reset, or their administrator has released them.
    ///
    /// # Errors
    /// Names what cannot be removed.
    pub fn forget_gpu_faults(&self, gpus: &[Gpu]) -> Result<(), NodeError> {
        gpus.iter().try_for_each(|gpu| Ok(files::remove(&self.fault_path(&gpu.uuid))?))
    }

    fn fault_path(&self, gpu: &GpuUuid) -> PathBuf {
        self.dir().join(HEALTH).join(format!("{}.json", gpu.0))
    }
}

/// Asks the driver what it has to report. Returns the GPUs that are found faulty now, which are noted as such, and why.
pub(crate) fn new_faults(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu]) -> Vec<(GpuUuid, String)> {
    let mut faults = Vec::new();
    for gpu in gpus {
        // One that does not answer is handled where its processes are queried.
        for xid in driver.xids(&gpu.uuid).unwrap_or_default() {
            let index = gpu.index;
            if xid.is_of_a_program() {
                tracing::warn!(gpu = index, %xid, "a program's fault; the GPU serves on");
                continue;
            }
            if let Err(error) = node.note_fault(&gpu.uuid, xid) {
                tracing::error!(%error, gpu = index, "the failure of a GPU cannot be recorded");
            }
            let text =
                format!("GPU {index} takes no new task: its driver reports {xid} (cantle explain gpu-fault)");
            tracing::error!("{text}");
            faults.push((gpu.uuid.clone(), text));
        }
    }
    faults
}
