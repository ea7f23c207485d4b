//! Manages the slices of a node: creates one when a container is about to start, and releases it when its pod has
//! ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use cantle_decide::Offer;
use cantle_model::{GpuUuid, Lease, Slice};
use cantle_node::AllocatableGpus;
use cantle_runtime::cdi;
use cantle_runtime::files::is_no_room;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, ObjectList};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::Mutex;

use super::kubelet::{devices, slots};
use super::record::change;
use crate::node::{Metrics, allocation, blocking};
use crate::{KubeError, NodeConfig};
use cantle_kube_model::classic::record::{NodeRecord, OfferedGpu, PlacedPod, Placements};
use cantle_kube_model::classic::reserve::{Devices, HeldDevice, holder, left_by_others, together};
use cantle_kube_model::classic::slice_decision;
use cantle_kube_model::phase::has_ended;

/// A placement whose pod has not arrived by then belongs to a pod that was not bound.
const BOUND_WITHIN_MS: i64 = 60_000;

/// The data that the node has published.
pub(super) struct Published {
    /// Is there a GPU that answers?
    pub(super) has_gpus: bool,
    /// Pods (`namespace/name`) with a slice of a GPU that does not.
    pub(super) lost_pods: BTreeSet<String>,
}

/// Holds the slices.
pub(super) struct Manager {
    client: Client,
    node: String,
    kubelet_dir: PathBuf,
    cdi_dir: PathBuf,
    grants: Arc<AllocatableGpus>,
    pub(super) metrics: Arc<Metrics>,
    /// NVIDIA's device plugin allocates the GPUs: only those of cantle's own pods are used.
    reservation: bool,
    /// One thing at a time: the compared state must not change meanwhile. It has the pods that were here.
    turn: Mutex<BTreeSet<String>>,
}

impl Manager {
    pub(super) fn new(
        client: Client,
        config: &NodeConfig,
        grants: Arc<AllocatableGpus>,
        metrics: Arc<Metrics>,
        reservation: bool,
    ) -> Self {
        let NodeConfig { node, kubelet_dir, cdi_dir, .. } = config.clone();
        Self { client, node, kubelet_dir, cdi_dir, grants, metrics, reservation, turn: Mutex::default() }
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Creates the missing slices of the allocation of the pod that has this slot.
    pub(super) async fn prepare(&self, slot: &str) -> Result<(), KubeError> {
        let mut turn = self.turn.lock().await;
        let holder = self.holder(slot).await?;
        let full = format!("{}/{}", holder.namespace, holder.pod);
        let wrong = |why: String| KubeError::Slice { pod: full.clone(), why };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &holder.namespace);
        let uid = pods.get(&holder.pod).await?.uid().unwrap_or_default();
        // Pods that have ended are removed first.
        self.take_back(&mut turn).await?;
        let record = NodeRecord::of(&self.nodes().get(&self.node).await?)?;
        let placement = record.placements.get(&uid);
        let placement = placement.ok_or_else(|| {
            wrong(
                "cantle's scheduler has not placed it: leave spec.nodeName and spec.schedulerName away"
                    .to_owned(),
            )
        })?;
        self.check_reserved(placement, &record).await?.map_err(wrong)?;
        let slice = slice_decision(&uid, placement, &record).map_err(wrong)?;
        let (slot, dir) = (slot.to_owned(), self.cdi_dir.clone());
        blocking(&self.grants, move |grants| {
            let lease = grants.allocate(&allocation(&slice))?;
            let device = cdi::CdiDevice { name: slot.clone(), container_edits: grants.edits(&lease)? };
            let written = cdi::Spec::of_slices(vec![device]).write(&dir, &slot);
            written.map_err(|why| KubeError::Cdi { dir, why })?;
            tracing::info!(pod = slice.name, slot, "slice made");
            Ok(())
        })
        .await
    }

    /// The pod that has the slot: the kubelet knows.
    async fn holder(&self, slot: &str) -> Result<HeldDevice, KubeError> {
        let mut holders = slots(&self.kubelet_dir).await?.into_iter().filter(|held| held.id == slot);
        match (holders.next(), holders.next()) {
            (Some(holder), None) => Ok(holder),
            (first, _) => {
                let many = if first.is_none() { "no pod has" } else { "two pods have" };
                let path = self.kubelet_dir.clone();
                Err(KubeError::Kubelet { path, why: format!("it says that {many} {slot}") })
            }
        }
    }

    /// Releases what ended pods hold, and removes their records. Where other pods can have GPUs, it records which pod has
    /// which GPU.
    pub(super) async fn settle(&self) -> Result<(), KubeError> {
        self.take_back(&mut *self.turn.lock().await).await?;
        if self.reservation {
            self.publish().await?;
        }
        Ok(())
    }

    /// `were_here`: the pods that this call has found here, and earlier ones.
    async fn take_back(&self, were_here: &mut BTreeSet<String>) -> Result<(), KubeError> {
        let pods = self.pods().await?;
        let known: BTreeMap<String, bool> =
            pods.iter().map(|pod| (pod.uid().unwrap_or_default(), has_ended(pod))).collect();
        let live: BTreeSet<String> =
            known.iter().filter(|(_, ended)| !**ended).map(|(uid, _)| uid.clone()).collect();
        let (held, freed) = self.revoke(live).await?;
        self.remove_specs().await?;
        let now_ms = Timestamp::now().as_millisecond();
        were_here.extend(known.keys().cloned());
        let has_been = |uid: &String| freed.contains(uid) || were_here.contains(uid);
        let is_over = |uid: &String, placed_ms: i64| match known.get(uid) {
            Some(ended) => *ended && !held.contains(uid),
            // One that is not here: it has been, or it never will be.
            None => !held.contains(uid) && (has_been(uid) || now_ms - placed_ms > BOUND_WITHIN_MS),
        };
        let strike_out = |record: &mut NodeRecord| {
            record.placements.retain(|uid, placement| !is_over(uid, placement.placed_ms));
            Ok(())
        };
        change(&self.nodes(), &self.node, strike_out).await?;
        were_here.retain(|uid| known.contains_key(uid) || held.contains(uid));
        Ok(())
    }

    /// Releases the leases of all others; returns the active ones and the released ones. A pod that was deleted by force
    /// is gone from the API server while it still runs: it keeps what it has.
    async fn revoke(
        &self,
        live: BTreeSet<String>,
    ) -> Result<(BTreeSet<String>, BTreeSet<String>), KubeError> {
        blocking(&self.grants, move |grants| {
            let (mut held, mut freed) = (BTreeSet::new(), BTreeSet::new());
            for lease in grants.active()? {
                let uid = lease.id.0.clone();
                if live.contains(&uid) || has_processes(&uid) {
                    held.insert(uid);
                    continue;
                }
                grants.release(&lease.id)?;
                tracing::info!(pod = lease.name, "slice taken back");
                freed.insert(uid);
            }
            Ok((held, freed))
        })
        .await
    }

    /// Unused slots have no meaning.
    async fn remove_specs(&self) -> Result<(), KubeError> {
        let failed = |why| KubeError::Cdi { dir: self.cdi_dir.clone(), why };
        let specs = cdi::ids(&self.cdi_dir).map_err(failed)?;
        if specs.is_empty() {
            return Ok(());
        }
        let held = slots(&self.kubelet_dir).await?;
        for slot in specs.iter().filter(|id| !held.iter().any(|held| held.id == **id)) {
            cdi::remove(&self.cdi_dir, slot).map_err(failed)?;
        }
        Ok(())
    }

    /// The slots that these pods have.
    pub(super) async fn slots_of(&self, pods: &BTreeSet<String>) -> Result<BTreeSet<String>, KubeError> {
        if pods.is_empty() {
            return Ok(BTreeSet::new());
        }
        let held = slots(&self.kubelet_dir).await?.into_iter();
        let theirs = held.filter(|held| pods.contains(&format!("{}/{}", held.namespace, held.pod)));
        Ok(theirs.map(|held| held.id).collect())
    }

    /// Records the node's offers.
    pub(super) async fn publish(&self) -> Result<Published, KubeError> {
        // An older observation must not overwrite a newer one.
        let _turn = self.turn.lock().await;
        let offers = blocking(&self.grants, |grants| Ok(grants.offers()?)).await?;
        let devices = self.devices().await?;
        let offered = |offer: Offer| {
            let table = offer.table.clone().filter(|_| offer.has_instances()).map(Arc::unwrap_or_clone);
            let holder = devices.as_ref().map(|devices| holder(&offer.gpu, devices));
            let together = devices.as_ref().and_then(|devices| together(&offer.gpu, devices));
            OfferedGpu { gpu: offer.gpu, table, switches: offer.switches, holder, together }
        };
        let offered: Vec<OfferedGpu> =
            offers.into_iter().filter(|offer| !offer.closed).map(offered).collect();
        let write = |record: &mut NodeRecord| {
            let has_changed = record.gpus != offered;
            record.gpus.clone_from(&offered);
            let taken = has_changed.then(|| taken_away(&offered, &record.placements));
            Ok((taken, lost(&offered, &record.placements)))
        };
        let (taken, lost_pods) = change(&self.nodes(), &self.node, write).await?;
        if let Some(taken) = taken {
            for (gpu, pod) in taken {
                tracing::warn!(
                    gpu,
                    pod,
                    "another pod was given a GPU with slices on it; nothing more is placed there"
                );
            }
        }
        Ok(Published { has_gpus: !offered.is_empty(), lost_pods })
    }

    /// The GPUs without what other pods have of them, and the slices on them.
    pub(super) async fn held(&self) -> Result<(Vec<Offer>, Vec<Lease>), KubeError> {
        let (offers, leases) =
            blocking(&self.grants, |grants| Ok((grants.offers()?, grants.active()?))).await?;
        let offers = match self.devices().await? {
            Some(devices) => left_by_others(offers, &devices),
            None => offers,
        };
        Ok((offers, leases))
    }

    /// The allocations of NVIDIA's device plugin, by pod; none where the GPUs belong to cantle alone.
    async fn devices(&self) -> Result<Option<Devices>, KubeError> {
        if !self.reservation {
            return Ok(None);
        }
        let mut devices = devices(&self.kubelet_dir).await?;
        if !devices.held.is_empty() {
            // Older kubelets name pods too that have ended.
            let pods = self.pods().await?;
            let has_ended = |held: &HeldDevice| {
                let is = |pod: &&Pod| {
                    pod.name_any() == held.pod && pod.namespace().as_deref() == Some(&held.namespace)
                };
                pods.iter().find(is).is_some_and(has_ended)
            };
            devices.held.retain(|held| !has_ended(held));
        }
        Ok(Some(devices))
    }

    /// The record may be old: no container starts on a GPU that another pod has just got.
    async fn check_reserved(
        &self,
        placement: &PlacedPod,
        record: &NodeRecord,
    ) -> Result<Result<(), String>, KubeError> {
        if !self.reservation {
            return Ok(Ok(()));
        }
        let devices = devices(&self.kubelet_dir).await?;
        let is_placed = |of: &&OfferedGpu| placement.slices.iter().any(|slice| slice.gpu == of.gpu.uuid);
        let lost =
            record.gpus.iter().filter(is_placed).find(|of| !holder(&of.gpu, &devices).is_reservation());
        Ok(lost.map_or(Ok(()), |of| {
            Err(format!(
                "GPU {} is not reserved for cantle at the moment; it starts when it is again",
                of.gpu.index
            ))
        }))
    }

    async fn pods(&self) -> Result<ObjectList<Pod>, KubeError> {
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        Ok(Api::<Pod>::all(self.client.clone()).list(&here).await?)
    }
}

/// GPUs with slices that other pods have, and those pods.
fn taken_away(offered: &[OfferedGpu], placements: &Placements) -> Vec<(u32, String)> {
    let slices: BTreeSet<&GpuUuid> =
        placements.values().flat_map(|p| &p.slices).map(|slice| &slice.gpu).collect();
    let taken = offered.iter().filter(|of| slices.contains(&of.gpu.uuid));
    taken.filter_map(|of| Some((of.gpu.index, of.holder.as_ref()?.stranger()?.to_owned()))).collect()
}

/// The pods with slices of GPUs that are not offered any more.
fn lost(offered: &[OfferedGpu], placements: &Placements) -> BTreeSet<String> {
    let is_there = |slice: &Slice| offered.iter().any(|of| of.gpu.uuid == slice.gpu);
    let lost = placements.values().filter(|placement| !placement.slices.iter().all(is_there));
    lost.map(|placement| placement.pod.clone()).collect()
}

/// Does a process run in a cgroup of this pod? Its name has the UID, with `_` where systemd makes it.
fn has_processes(uid: &str) -> bool {
    let names = [uid.to_owned(), uid.replace('-', "_")];
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    processes.flatten().any(|process| match fs::read_to_string(process.path().join("cgroup")) {
        Ok(cgroups) => names.iter().any(|name| cgroups.contains(name)),
        // It has ended, or is no process. A program without a free file descriptor cannot tell, and must not release a GPU in use.
        Err(why) => is_no_room(&why),
    })
}
