//! A daemon answers for its GPUs alone: two on one GPU would each count only the other's leases, not its plans.

use std::collections::BTreeMap;

use cantle_driver::Installation;
use cantle_model::{Gpu, GpuUuid, Holder};
use serde::{Deserialize, Serialize};

use super::{Locked, Node, files};
use crate::AgentError;

/// Which GPUs a daemon answers for. It ends with the daemon, however that ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Worker id of the daemon, e.g. `node1:dgpu0-2`.
    pub worker: String,
    /// Its process.
    pub holder: Holder,
    /// Its GPUs.
    pub gpus: Vec<GpuUuid>,
    /// Names of MIG devices, on the GPUs of which it has only these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instances: BTreeMap<GpuUuid, Vec<String>>,
}

impl Claim {
    fn path(&self, node: &Node) -> std::path::PathBuf {
        // One process may run several daemons (tests do); the GPU makes the name unique, the worker id is free text.
        let gpu = self.gpus.first().map_or("none", |gpu| gpu.0.as_str());
        let device = self.instances.values().flatten().next().map_or(gpu, String::as_str);
        node.dir().join("agents").join(format!("{}-{device}.json", self.holder.pid))
    }

    /// Would a daemon with `gpu`, or with these instances of it, get in this one's way?
    fn has(&self, gpu: &GpuUuid, instances: Option<&Vec<String>>) -> bool {
        let apart = match (self.instances.get(gpu), instances) {
            (Some(ours), Some(theirs)) => !ours.iter().any(|device| theirs.contains(device)),
            _ => false,
        };
        self.gpus.contains(gpu) && !apart
    }

    /// Does the daemon still run?
    #[must_use]
    pub fn is_alive(&self) -> bool {
        cantle_runtime::alive(&self.holder)
    }

    /// Asks the daemon to end; it stops its tasks first.
    pub fn stop(&self) {
        cantle_runtime::terminate(&self.holder);
    }

    /// Gives the GPUs up, for another daemon to take.
    ///
    /// # Errors
    /// Names the file that could not be removed.
    pub fn release(&self, node: &Node) -> Result<(), AgentError> {
        files::remove(&self.path(node))
    }
}

/// The daemons that answer for GPUs of this driver now, and those that give none.
///
/// # Errors
/// Names the file that can't be read.
pub fn agents(installation: &Installation) -> Result<Vec<Claim>, AgentError> {
    let mut found = Vec::new();
    for dir in [Node::dir_for(installation), Node::gpuless_dir(installation)] {
        let node = Node::open(&dir)?;
        let _locked = node.lock()?;
        let claims: Vec<Claim> = files::read_all(&node.dir.join("agents"))?;
        found.extend(claims.into_iter().filter(Claim::is_alive));
    }
    Ok(found)
}

impl Locked<'_> {
    /// Claims `gpus` for the daemon `worker`; of those that `instances` names only these MIG devices.
    ///
    /// # Errors
    /// [`AgentError::GpuTaken`] names the daemon that has one of them already.
    pub fn claim(
        &self,
        worker: &str,
        holder: Holder,
        gpus: &[Gpu],
        instances: BTreeMap<GpuUuid, Vec<String>>,
    ) -> Result<Claim, AgentError> {
        self.check_claims(worker, gpus, &instances)?;
        let gpus = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let claim = Claim { worker: worker.to_owned(), holder, gpus, instances };
        files::write_json(&claim.path(self.node), &claim, files::Keep::UntilBoot)?;
        Ok(claim)
    }

    /// Is one of `gpus` claimed already, or one of the MIG devices in `instances`, or the worker id in use?
    ///
    /// # Errors
    /// [`AgentError::GpuTaken`] and [`AgentError::WorkerTaken`] name the daemon that has it.
    pub fn check_claims(
        &self,
        worker: &str,
        gpus: &[Gpu],
        instances: &BTreeMap<GpuUuid, Vec<String>>,
    ) -> Result<(), AgentError> {
        let standing: Vec<Claim> = files::read_all(&self.node.dir.join("agents"))?;
        for other in standing {
            if !other.is_alive() {
                other.release(self.node)?;
                continue;
            }
            if let Some(gpu) = gpus.iter().find(|gpu| other.has(&gpu.uuid, instances.get(&gpu.uuid))) {
                let (index, worker, pid) = (gpu.index, other.worker, other.holder.pid);
                return Err(AgentError::GpuTaken { index, worker, pid });
            }
            if other.worker == worker {
                let (worker, pid) = (other.worker, other.holder.pid);
                return Err(AgentError::WorkerTaken { worker, pid });
            }
        }
        Ok(())
    }
}
