//! Quotas of namespaces on GPUs. The injector removes `nvidia.com/gpu` from pods with slices before Kubernetes counts it. So
//! this module applies a ResourceQuota's limit on `requests.nvidia.com/gpu`, counted in GPUs: half of one counts as 0.5. A
//! pod beyond the quota keeps its scheduling gate. Pure.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cantle_decide::Offer;
use cantle_model::{GpuRequest, Milli, Slice};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::classic::record::{NodeRecord, OfferedGpu, PlacedPod};
use crate::cluster::{ClusterView, PodSlices};
use crate::dra::claim::bytes;
use crate::names::QUOTA_RESOURCE;
use crate::nominate::{has_gate, is_held, preempt::priority, slice_of};
use crate::phase::has_ended;
use crate::{ObjectExt as _, PARTS, SliceName};

/// Of a whole GPU, in [`PARTS`].
const WHOLE: u64 = PARTS as u64;

/// A quota, in GPUs of [`PARTS`] each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuQuota {
    /// Name of the ResourceQuota.
    pub name: String,
    /// Its limit.
    pub hard: u64,
    /// The use by pods of its namespace: by slices, and by `nvidia.com/gpu` as Kubernetes counts it.
    pub used: u64,
}

/// Does a quota limit GPUs in a way that is counted here? One with scopes is for some pods only, which Kubernetes alone tells apart.
#[must_use]
pub fn is_counted(quota: &ResourceQuota) -> bool {
    limits_gpus(quota)
        && quota.spec.as_ref().is_some_and(|spec| {
            spec.scopes.as_ref().is_none_or(Vec::is_empty) && spec.scope_selector.is_none()
        })
}

/// Does a quota limit GPUs?
#[must_use]
pub fn limits_gpus(quota: &ResourceQuota) -> bool {
    let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    hard.is_some_and(|hard| hard.contains_key(QUOTA_RESOURCE))
}

/// The quotas by namespace, with what `pods` use of them. `let_go` are pods whose gate has been removed, even if the watch
/// still shows it.
#[must_use]
pub fn quotas(
    view: &ClusterView,
    quotas: &[impl Borrow<ResourceQuota>],
    pods: &[impl Borrow<Pod>],
    let_go: &BTreeSet<String>,
) -> BTreeMap<String, Vec<GpuQuota>> {
    let mut all: BTreeMap<String, Vec<GpuQuota>> = BTreeMap::new();
    for quota in quotas.iter().map(Borrow::borrow).filter(|quota| is_counted(quota)) {
        let of = |amounts: Option<&BTreeMap<String, Quantity>>| amounts?.get(QUOTA_RESOURCE).map(parts);
        let hard = of(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref())).unwrap_or(0);
        let used = of(quota.status.as_ref().and_then(|status| status.used.as_ref())).unwrap_or(0);
        let name = quota.metadata.name.clone().unwrap_or_default();
        let namespace = quota.metadata.namespace.clone().unwrap_or_default();
        all.entry(namespace).or_default().push(GpuQuota { name, hard, used });
    }
    if all.is_empty() {
        return all;
    }
    let mut seen = BTreeSet::new();
    for pod in pods.iter().map(Borrow::borrow).filter(|pod| is_using(pod, let_go)) {
        let Some(quotas) = all.get_mut(&pod.namespace().unwrap_or_default()) else { continue };
        // The GPUs of its claims, if that is more than the injector's one: the name of a slice is not all of it.
        let counted = counted(view, pod).max(held(view, pod).unwrap_or(0));
        quotas.iter_mut().for_each(|quota| quota.used += counted);
        seen.extend(pod.uid());
    }
    // Allocated claims of pods without the injector's label, and those of no pod.
    for holding in view.holdings.iter().filter(|holding| holding.by_claim && !seen.contains(&holding.pod)) {
        let namespace = holding.name.split('/').next().unwrap_or_default();
        let Some(quotas) = all.get_mut(namespace) else { continue };
        let counted = parts_of(&holding.slices).unwrap_or(0);
        quotas.iter_mut().for_each(|quota| quota.used += counted);
    }
    all
}

/// The reasons why held pods may not continue, by their UIDs. Those of higher priority are counted first, then those that
/// came first; a smaller one may pass a larger one that does not fit.
#[must_use]
pub fn beyond(
    view: &ClusterView,
    resource_quotas: &[impl Borrow<ResourceQuota>],
    pods: &[impl Borrow<Pod>],
    let_go: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut all = quotas(view, resource_quotas, pods, let_go);
    if all.is_empty() {
        return BTreeMap::new();
    }
    let asks = |pod: &&Pod| is_held(pod) && !is_using(pod, let_go) && slice_of(pod).is_some();
    let mut held: Vec<&Pod> = pods.iter().map(Borrow::borrow).filter(asks).collect();
    held.sort_by_key(|pod| (Reverse(priority(pod)), pod.creation_timestamp(), pod.uid()));
    let mut beyond = BTreeMap::new();
    for pod in held {
        let namespace = pod.namespace().unwrap_or_default();
        let (Some(quotas), Some(uid)) = (all.get_mut(&namespace), pod.uid()) else { continue };
        let needs = counted(view, pod);
        match quotas.iter().find(|quota| quota.used + needs > quota.hard) {
            Some(quota) => drop(beyond.insert(uid, words(&namespace, quota, needs))),
            None => quotas.iter_mut().for_each(|quota| quota.used += needs),
        }
    }
    beyond
}

/// The reason why a pod may not be placed on the classic path. There, a pod counts from its placement on, which its node records.
#[must_use]
pub fn refusal(
    records: &[NodeRecord],
    resource_quotas: &[impl Borrow<ResourceQuota>],
    namespace: &str,
    uid: &str,
    slice_name: &SliceName,
) -> Option<String> {
    let no_pods: [&Pod; 0] = [];
    let quotas = quotas(&ClusterView::default(), resource_quotas, &no_pods, &BTreeSet::new());
    let quotas = quotas.get(namespace)?;
    let offers = || records.iter().flat_map(|record| &record.gpus).map(OfferedGpu::offer).collect();
    let needs = amount(slice_name, None, offers);
    let is_here = |placed: &PlacedPod| placed.pod.split('/').next() == Some(namespace);
    let has =
        |placed: &PlacedPod| Some(amount(&placed.slice_name.parse().ok()?, parts_of(&placed.slices), offers));
    let placements = records.iter().flat_map(|record| &record.placements);
    let others = placements.filter(|(of, placed)| of.as_str() != uid && is_here(placed));
    let used: u64 = others.filter_map(|(_, placed)| has(placed)).sum();
    let with_slices = |quota: &GpuQuota| GpuQuota { used: quota.used + used, ..quota.clone() };
    let full = quotas.iter().map(with_slices).find(|quota| quota.used + needs > quota.hard)?;
    Some(words(namespace, &full, needs))
}

fn words(namespace: &str, GpuQuota { name, hard, used }: &GpuQuota, needs: u64) -> String {
    let (needs, used, hard) = (gpus(needs), gpus(*used), gpus(*hard));
    format!(
        "needs {needs} GPU; namespace {namespace} has {used} of the {hard} that ResourceQuota {name} allows"
    )
}

/// Whether the pod counts already. A pod without our gate counts on every node.
fn is_using(pod: &Pod, let_go: &BTreeSet<String>) -> bool {
    let is_free = !has_gate(pod) || pod.uid().is_some_and(|uid| let_go.contains(&uid));
    is_free && slice_of(pod).is_some() && !has_ended(pod)
}

/// The amount that a pod counts.
fn counted(view: &ClusterView, pod: &Pod) -> u64 {
    let Some(slice_name) = slice_of(pod) else { return 0 };
    let offers = || view.nodes.iter().flat_map(|node| &node.gpus).map(|gpu| gpu.offer.clone()).collect();
    amount(&slice_name, held(view, pod), offers)
}

/// The amount that a request counts. An amount of memory, or an instance, is a part of the GPU that it is on (`held`); until there is
/// one, of the smallest of `offers`.
fn amount(slice_name: &SliceName, held: Option<u64>, offers: impl FnOnce() -> Vec<Offer>) -> u64 {
    let each = match slice_name.request([]) {
        GpuRequest::Fraction(part) => u64::from(part.ten_thousandths()),
        GpuRequest::Gpus(_) => WHOLE,
        GpuRequest::Memory(_) | GpuRequest::MigProfile(_) => match held {
            Some(held) => return held,
            None => most(&offers(), slice_name),
        },
    };
    each * u64::from(slice_name.gpus())
}

fn held(view: &ClusterView, pod: &Pod) -> Option<u64> {
    let uid = pod.uid()?;
    let holdings = view.holdings.iter().filter(|holding: &&PodSlices| holding.pod == uid);
    parts_of(holdings.flat_map(|holding| &holding.slices))
}

/// None if there are no slices.
fn parts_of<'a>(slices: impl IntoIterator<Item = &'a Slice>) -> Option<u64> {
    let milli: u64 = slices.into_iter().map(|slice| u64::from(slice.milli.0)).sum();
    (milli > 0).then_some(milli * WHOLE / 1000)
}

/// The greatest part of one of these GPUs that such a request can be: all of it where no GPU is known.
fn most(offers: &[Offer], slice_name: &SliceName) -> u64 {
    let request = slice_name.request(offers.iter().filter_map(|offer| offer.table.as_deref()));
    let part = |offer: &Offer| -> Option<Milli> {
        match (&request, offer.table.as_deref()) {
            (GpuRequest::MigProfile(_), Some(table)) => {
                Some(cantle_mig::grant(table, &request).ok()?.milli())
            }
            (GpuRequest::MigProfile(_), None) => None,
            _ => request.share_of(offer.gpu.memory_bytes).map(|share| share.milli),
        }
    };
    offers.iter().filter_map(part).max().map_or(WHOLE, |milli| u64::from(milli.0) * WHOLE / 1000)
}

/// `4`, `2500m`, `2.5`. An unreadable amount allows nothing.
fn parts(amount: &Quantity) -> u64 {
    let milli = match amount.0.strip_suffix('m') {
        Some(milli) => milli.parse().ok(),
        None if amount.0.contains('.') => amount.0.parse::<Milli>().ok().map(|milli| u64::from(milli.0)),
        None => bytes(amount).map(|whole| whole.saturating_mul(1000)),
    };
    milli.unwrap_or(0).saturating_mul(WHOLE / 1000)
}

/// For people: `0.5`, `2`.
#[must_use]
pub fn gpus(parts: u64) -> String {
    let text = format!("{}.{:04}", parts / WHOLE, parts % WHOLE);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use cantle_model::GpuUuid;
    use serde_json::{Value, json};

    use super::*;
    use crate::inject::tests::CALL;
    use crate::inject::{LABEL, Rules, inject};
    use crate::names::PACKING_GATE;

    fn pod(name: &str, asks: &Value, made: &str) -> Pod {
        let mut metadata = asks.clone();
        metadata["name"] = json!(name);
        metadata["namespace"] = json!("team");
        metadata["uid"] = json!(name);
        metadata["creationTimestamp"] = json!(format!("2026-01-01T00:00:{made}Z"));
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Pending"}});
        let rules = Rules { packs: true, ..Rules::default() };
        serde_json::from_value(inject(&pod, &rules, CALL).unwrap()).unwrap()
    }

    fn share(name: &str, fraction: &str, made: &str) -> Pod {
        pod(name, &json!({"labels": {LABEL: fraction}}), made)
    }

    fn free(mut pod: Pod) -> Pod {
        pod.spec.as_mut().unwrap().scheduling_gates = None;
        pod
    }

    fn quota(name: &str, hard: &str, used: &str) -> ResourceQuota {
        let of = |amount: &str| json!({QUOTA_RESOURCE: amount});
        let quota = json!({
            "metadata": {"name": name, "namespace": "team"},
            "spec": {"hard": of(hard)},
            "status": {"hard": of(hard), "used": of(used)},
        });
        serde_json::from_value(quota).unwrap()
    }

    fn held_of(quotas: &[ResourceQuota], pods: &[Pod], let_go: &[&str]) -> Vec<String> {
        let let_go = let_go.iter().map(|uid| (*uid).to_owned()).collect();
        beyond(&ClusterView::default(), quotas, pods, &let_go).into_keys().collect()
    }

    #[test]
    fn slices_count_as_parts_of_gpus_beside_what_kubernetes_counts() {
        let quotas = [quota("gpus", "2", "1")];
        let pods = [free(share("runs", "0.500", "01")), share("a", "0.250", "03"), share("b", "0.500", "02")];
        assert_eq!(held_of(&quotas, &pods, &[]), ["a"], "b came first, and then the quota is full");
        let beyond = beyond(&ClusterView::default(), &quotas, &pods, &BTreeSet::new());
        assert_eq!(
            beyond["a"],
            "needs 0.25 GPU; namespace team has 2 of the 2 that ResourceQuota gpus allows"
        );
        let mut ended = pods;
        ended[0].status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        assert_eq!(held_of(&quotas, &ended, &[]), [""; 0]);
    }

    /// The watched state of a pod is late: one whose gate has been taken away counts, even if another one would go before it
    /// now.
    #[test]
    fn who_was_let_go_counts() {
        let quotas = [quota("gpus", "500m", "0")];
        let mut urgent = share("urgent", "0.500", "09");
        urgent.spec.as_mut().unwrap().priority = Some(10);
        let pods = [share("first", "0.500", "01"), urgent];
        assert_eq!(held_of(&quotas, &pods, &[]), ["first"], "the higher priority goes first");
        assert_eq!(held_of(&quotas, &pods, &["first"]), ["urgent"]);
    }

    #[test]
    fn the_tightest_quota_holds_and_others_hold_nobody() {
        let pods = [share("a", "1", "01"), share("b", "0.0625", "02")];
        assert_eq!(held_of(&[], &pods, &[]), [""; 0]);
        let mut elsewhere = quota("gpus", "0", "0");
        elsewhere.metadata.namespace = Some("others".to_owned());
        assert_eq!(held_of(&[elsewhere], &pods, &[]), [""; 0]);
        assert_eq!(held_of(&[quota("wide", "8", "0"), quota("none", "0", "0")], &pods, &[]), ["a", "b"]);
        assert_eq!(held_of(&[quota("wide", "8", "0"), quota("small", "0.5", "0")], &pods, &[]), ["a"]);
        let mut scoped = quota("scoped", "0", "0");
        scoped.spec.as_mut().unwrap().scopes = Some(vec!["NotTerminating".to_owned()]);
        assert!(limits_gpus(&scoped) && !is_counted(&scoped));
        assert_eq!(held_of(&[scoped], &pods, &[]), [""; 0]);
        let mut gated = share("gated", "1", "00");
        let gates = gated.spec.as_mut().unwrap().scheduling_gates.as_mut().unwrap();
        assert_eq!(gates[0].name, PACKING_GATE);
        gates.push(serde_json::from_value(json!({"name": "kueue.x-k8s.io/admission"})).unwrap());
        assert_eq!(
            held_of(&[quota("one", "1", "0")], &[gated, share("a", "1", "01")], &[]),
            [""; 0],
            "others hold it"
        );
    }

    #[test]
    fn on_the_classic_path_a_pod_counts_from_its_placement_on() {
        let placed = |pod: &str, slice_name: &str| {
            let slices = Vec::new();
            PlacedPod { pod: pod.to_owned(), slice_name: slice_name.to_owned(), slices, placed_ms: 0 }
        };
        let placements = [
            ("a", placed("team/a", "cantle-fraction-0625")),
            ("b", placed("team/b", "cantle-fraction-5000")),
            ("c", placed("others/c", "cantle-whole-4")),
        ];
        let placements = placements.map(|(uid, placement)| (uid.to_owned(), placement)).into();
        let records = [NodeRecord { placements, ..NodeRecord::default() }];
        let refused = |uid: &str, slice_name: &str| {
            let quotas = [quota("gpus", "1", "0"), quota("wide", "8", "0")];
            refusal(&records, &quotas, "team", uid, &slice_name.parse().unwrap())
        };
        assert_eq!(refused("d", "cantle-fraction-4375"), None);
        assert_eq!(refused("b", "cantle-fraction-9375"), None, "what it has itself does not count");
        assert_eq!(
            refused("d", "cantle-fraction-5000").unwrap(),
            "needs 0.5 GPU; namespace team has 0.5625 of the 1 that ResourceQuota gpus allows"
        );
        let others =
            refusal(&records, &[quota("gpus", "1", "0")], "others", "d", &SliceName::Whole { gpus: 9 });
        assert_eq!(others, None, "it has no quota");
    }

    /// A label can be taken from a pod, and a user can write a claim: what was allocated counts.
    #[test]
    fn allocated_claims_count_without_a_label() {
        let quotas = [quota("gpus", "1", "0")];
        let waits = [share("waits", "0.500", "09")];
        let held = |holdings: &[(&str, &str, u32)]| {
            let slice = |milli| Slice {
                gpu: GpuUuid("GPU-0".to_owned()),
                milli: Milli(milli),
                memory_limit_bytes: 1 << 30,
                mig: None,
            };
            let holding = |(pod, name, milli): &(&str, &str, u32)| PodSlices {
                node: "n".to_owned(),
                pod: (*pod).to_owned(),
                name: (*name).to_owned(),
                slices: vec![slice(*milli)],
                by_claim: true,
            };
            let view =
                ClusterView { holdings: holdings.iter().map(holding).collect(), ..ClusterView::default() };
            beyond(&view, &quotas, &waits, &BTreeSet::new()).into_values().next()
        };
        assert_eq!(held(&[]), None);
        assert_eq!(held(&[("x", "others/x", 1000)]), None, "another namespace's");
        let why = "needs 0.5 GPU; namespace team has 0.75 of the 1 that ResourceQuota gpus allows";
        assert_eq!(held(&[("x", "team/x", 750)]).as_deref(), Some(why));
        assert!(held(&[("", "team/nobody", 1000)]).is_some(), "of no pod");
        // A claim that says that it is another pod's is not a part of that pod's slice.
        let small = [free(share("small", "0.0625", "01"))];
        let view = ClusterView {
            holdings: vec![PodSlices {
                node: "n".to_owned(),
                pod: "small".to_owned(),
                name: "team/small".to_owned(),
                slices: vec![Slice {
                    gpu: GpuUuid("GPU-0".to_owned()),
                    milli: Milli(1000),
                    memory_limit_bytes: 1 << 30,
                    mig: None,
                }],
                by_claim: true,
            }],
            ..ClusterView::default()
        };
        let counted = super::quotas(&view, &quotas, &small, &BTreeSet::new());
        assert_eq!(gpus(counted["team"][0].used), "1");
    }

    /// On the smallest GPU that can serve it; all of one where there is none.
    #[test]
    fn memory_counts_as_the_part_that_it_can_be_at_most() {
        let pods = [pod(
            "m",
            &json!({"annotations": {"gpu-memory": "10240", "gpu-fraction-num-devices": "2"}}),
            "01",
        )];
        let with = |hard: &str, view: &ClusterView| {
            beyond(view, &[quota("gpus", hard, "0")], &pods, &BTreeSet::new()).len()
        };
        assert_eq!((with("2", &ClusterView::default()), with("1.9", &ClusterView::default())), (0, 1));
        let view = crate::nominate::tests::view(&["n"], 1);
        assert_eq!((with("500m", &view), with("400m", &view)), (0, 1), "a quarter of 40 GiB, twice");
    }

    #[test]
    fn amounts_as_the_api_server_writes_them() {
        let parts = |text: &str| parts(&Quantity(text.to_owned()));
        assert_eq!(
            [parts("4"), parts("2500m"), parts("0.5"), parts("1k"), parts("x")].map(gpus),
            ["4", "2.5", "0.5", "1000", "0"]
        );
        assert_eq!(gpus(625), "0.0625");
    }
}
