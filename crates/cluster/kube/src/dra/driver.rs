//! Prepares and unprepares claims.
//!
//! A lease has the name of its claim. So after a crash at any moment, the same claim finds the same lease again, and
//! the name identifies a lease whose claim is gone.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use cantle_model::LeaseId;
use cantle_node::{AllocatableGpus, NodeError};
use cantle_runtime::cdi;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::Mutex;

use super::proto::dra::{Claim, Device};
use crate::node::{Metrics, allocation, blocking};
use crate::{KubeError, Version};
use cantle_kube_model::ClaimError;
use cantle_kube_model::dra::claim::{self, DecidedRequest};
use cantle_kube_model::dra::devices::Inventory;

/// The driver of a node.
#[derive(Clone)]
pub(super) struct Driver {
    client: Client,
    node: String,
    version: Version,
    cdi_dir: PathBuf,
    grants: Arc<AllocatableGpus>,
    pub(super) metrics: Arc<Metrics>,
    /// One claim at a time: to prepare one may change the mode of a GPU.
    turn: Arc<Mutex<()>>,
}

impl Driver {
    pub(super) fn new(
        client: Client,
        node: &str,
        version: Version,
        cdi_dir: PathBuf,
        grants: Arc<AllocatableGpus>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { client, node: node.to_owned(), version, cdi_dir, grants, metrics, turn: Arc::default() }
    }

    /// The pool of the node's devices; it has the node's name.
    pub(super) fn pool(&self) -> &str {
        &self.node
    }

    /// The GPUs, as devices.
    pub(super) async fn inventory(&self) -> Result<Inventory, KubeError> {
        let version = self.version;
        blocking(&self.grants, move |grants| {
            Ok(Inventory::of(&grants.offers()?, version).connected(&grants.topology()))
        })
        .await
    }

    /// Puts GPUs into MIG mode that can be now; see [`AllocatableGpus::turn_mig_on`].
    pub(super) async fn turn_mig_on(&self) -> Result<(), KubeError> {
        let _turn = self.turn.lock().await;
        blocking(&self.grants, |grants| Ok(grants.turn_mig_on()?)).await
    }

    /// Creates the missing slices of a claim's allocation.
    pub(super) async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>, KubeError> {
        let api: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &asked.namespace);
        let claim = api.get(&asked.name).await?;
        if claim.uid().as_deref() != Some(asked.uid.as_str()) {
            let why = "it was deleted and created again since the pod was placed".to_owned();
            return Err(ClaimError { claim: format!("{}/{}", asked.namespace, asked.name), why }.into());
        }
        let _turn = self.turn.lock().await;
        let inventory = self.inventory().await?;
        let decided = claim::decided(&claim, &self.node, &inventory)?;
        let (uid, dir) = (asked.uid.clone(), self.cdi_dir.clone());
        blocking(&self.grants, move |grants| {
            let mut devices = Vec::new();
            for one in &decided {
                let lease = grants.allocate(&allocation(&one.slice))?;
                devices.push(cdi::CdiDevice {
                    name: lease.id.0.clone(),
                    container_edits: grants.edits(&lease)?,
                });
            }
            let written = cdi::Spec::of_slices(devices).write(&dir, &uid);
            written.map_err(|why| KubeError::Cdi { dir, why })?;
            tracing::info!(%uid, requests = decided.len(), "claim prepared");
            Ok(decided.iter().flat_map(answer).collect())
        })
        .await
    }

    /// Takes back what a claim was given; its pod has ended.
    pub(super) async fn unprepare(&self, uid: &str) -> Result<(), KubeError> {
        self.take_back(uid, AllocatableGpus::release).await
    }

    async fn take_back(
        &self,
        uid: &str,
        how: fn(&AllocatableGpus, &LeaseId) -> Result<(), NodeError>,
    ) -> Result<(), KubeError> {
        let _turn = self.turn.lock().await;
        let (uid, dir) = (uid.to_owned(), self.cdi_dir.clone());
        blocking(&self.grants, move |grants| {
            cdi::remove(&dir, &uid).map_err(|why| KubeError::Cdi { dir, why })?;
            for lease in grants.active()? {
                if claim::claim_of(&lease.id) == Some(uid.as_str()) {
                    how(grants, &lease.id)?;
                    tracing::info!(%uid, task = lease.name, "claim taken back");
                }
            }
            Ok(())
        })
        .await
    }

    /// Ends the slices of deleted claims, which the kubelet will not unprepare any more. The pod may still run: the policies of the
    /// chart keep its user from deleting the claim, and an administrator can. Its memory counts nowhere then, so its processes on
    /// GPUs are killed.
    pub(super) async fn sweep(&self) -> Result<(), KubeError> {
        let standing = blocking(&self.grants, |grants| Ok(grants.active()?)).await?;
        let specs = cdi::ids(&self.cdi_dir);
        let specs = specs.map_err(|why| KubeError::Cdi { dir: self.cdi_dir.clone(), why })?;
        let leased = standing.iter().filter_map(|lease| claim::claim_of(&lease.id).map(str::to_owned));
        let held: BTreeSet<String> = leased.chain(specs).collect();
        if held.is_empty() {
            return Ok(());
        }
        let api: Api<ResourceClaim> = Api::all(self.client.clone());
        let claims = api.list(&ListParams::default()).await?;
        let known: BTreeSet<String> = claims.iter().filter_map(kube::ResourceExt::uid).collect();
        for uid in held.difference(&known) {
            tracing::warn!(%uid, "the claim was deleted and the kubelet never unprepared it: ending its processes and slices");
            self.take_back(uid, AllocatableGpus::end).await?;
        }
        Ok(())
    }
}

/// The devices of one request. Its slice is one CDI device, however many GPUs it has, and is named once.
fn answer(decided: &DecidedRequest) -> Vec<Device> {
    let device =
        |(at, result): (usize, &k8s_openapi::api::resource::v1::DeviceRequestAllocationResult)| Device {
            request_names: vec![result.request.clone()],
            pool_name: result.pool.clone(),
            device_name: result.device.clone(),
            cdi_device_ids: if at == 0 { vec![cdi::qualified(&decided.slice.lease.0)] } else { Vec::new() },
            share_id: result.share_id.clone(),
        };
    decided.results.iter().enumerate().map(device).collect()
}
