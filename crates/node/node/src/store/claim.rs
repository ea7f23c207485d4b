//! Keeps two agents from using the same GPU: each would count the other's leases, but not its plans.

use std::collections::BTreeMap;

use cantle_driver::Installation;
use cantle_model::{Gpu, GpuUuid, Holder};
use cantle_runtime::files::{self, Durability};
use serde::{Deserialize, Serialize};

use super::{Locked, NodeStore};
use crate::NodeError;

/// The GPUs of an agent. It ends with the agent, however that ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuClaim {
    /// Worker id of the agent, e.g. `node1:dgpu0-2`.
    pub worker: String,
    /// Its process.
    pub holder: Holder,
    /// Its GPUs.
    pub gpus: Vec<GpuUuid>,
    /// Names of MIG devices: of their GPUs it has only these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instances: BTreeMap<GpuUuid, Vec<String>>,
    /// Whose processes its tasks are, for people; empty if that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task_user: String,
}

impl GpuClaim {
    fn path(&self, node: &NodeStore) -> std::path::PathBuf {
        // One process may run several agents (tests do). The GPU makes the name unique; the worker id is free text.
        let gpu = self.gpus.first().map_or("none", |gpu| gpu.0.as_str());
        let device = self.instances.values().flatten().next().map_or(gpu, String::as_str);
        node.dir().join("agents").join(format!("{}-{device}.json", self.holder.pid))
    }

    /// Does it exclude an agent with `gpu`, or with these instances of it?
    fn excludes(&self, gpu: &GpuUuid, instances: Option<&Vec<String>>) -> bool {
        let apart = match (self.instances.get(gpu), instances) {
            (Some(ours), Some(theirs)) => !ours.iter().any(|device| theirs.contains(device)),
            _ => false,
        };
        self.gpus.contains(gpu) && !apart
    }

    /// Does the agent still run?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        cantle_runtime::alive(&self.holder)
    }

    /// Asks the agent to end; it stops its tasks first.
    pub fn stop(&self) {
        cantle_runtime::terminate(&self.holder);
    }

    /// Asks the agent to close the driver for a while; it does so if it has no task.
    pub fn ask_for_release(&self) {
        cantle_runtime::ask_for_release(&self.holder);
    }

    /// Notes whose processes its tasks are, for people.
    ///
    /// # Errors
    /// Names the file that could not be written.
    pub fn with_task_user(self, node: &NodeStore, task_user: String) -> Result<Self, NodeError> {
        let claim = Self { task_user, ..self };
        files::write_json(&claim.path(node), &claim, Durability::Crash)?;
        Ok(claim)
    }

    /// Gives the GPUs up for another agent.
    ///
    /// # Errors
    /// Names the file that could not be removed.
    pub fn release(&self, node: &NodeStore) -> Result<(), NodeError> {
        Ok(files::remove(&self.path(node))?)
    }
}

/// The agents that run now: those with GPUs of this driver, and those without GPUs.
///
/// # Errors
/// Names the file that cannot be read.
pub fn agents(installation: &Installation) -> Result<Vec<GpuClaim>, NodeError> {
    let mut found = Vec::new();
    for dir in [NodeStore::dir_for(installation), NodeStore::gpuless_dir(installation)] {
        let node = NodeStore::open(&dir)?;
        let _locked = node.lock()?;
        let claims: Vec<GpuClaim> = files::read_all(&node.dir.join("agents"))?;
        found.extend(claims.into_iter().filter(GpuClaim::is_alive));
    }
    Ok(found)
}

impl Locked<'_> {
    /// Claims `gpus` for the agent `worker`; of the GPUs in `instances` only these MIG devices.
    ///
    /// # Errors
    /// [`NodeError::GpuTaken`] names the agent that has one of them already.
    pub fn claim(
        &self,
        worker: &str,
        holder: Holder,
        gpus: &[Gpu],
        instances: BTreeMap<GpuUuid, Vec<String>>,
    ) -> Result<GpuClaim, NodeError> {
        self.check_claims(worker, gpus, &instances)?;
        let gpus = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let claim = GpuClaim { worker: worker.to_owned(), holder, gpus, instances, task_user: String::new() };
        files::write_json(&claim.path(self.node), &claim, Durability::Crash)?;
        Ok(claim)
    }

    /// Is one of `gpus` claimed already, or one of the MIG devices in `instances`, or the worker id in use?
    ///
    /// # Errors
    /// [`NodeError::GpuTaken`] and [`NodeError::WorkerTaken`] name the agent that has it.
    pub fn check_claims(
        &self,
        worker: &str,
        gpus: &[Gpu],
        instances: &BTreeMap<GpuUuid, Vec<String>>,
    ) -> Result<(), NodeError> {
        let claims: Vec<GpuClaim> = files::read_all(&self.node.dir.join("agents"))?;
        for other in claims {
            if !other.is_alive() {
                other.release(self.node)?;
                continue;
            }
            if let Some(gpu) = gpus.iter().find(|gpu| other.excludes(&gpu.uuid, instances.get(&gpu.uuid))) {
                let (index, worker, pid) = (gpu.index, other.worker, other.holder.pid);
                return Err(NodeError::GpuTaken { index, worker, pid });
            }
            if other.worker == worker {
                let (worker, pid) = (other.worker, other.holder.pid);
                return Err(NodeError::WorkerTaken { worker, pid });
            }
        }
        Ok(())
    }
}
