use cantle_decide::Offer;
use cantle_model::{Gpu, GpuUuid, Milli, Slice};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::cluster::ViewGpu;
use crate::inject::SLICE_LABEL;

const GIB: u64 = 1 << 30;

/// The holders of each GPU, with their eighths.
#[derive(Clone, Debug)]
struct Has {
    node: usize,
    gpu: u32,
    eighths: u32,
    priority: i32,
    is_protected: bool,
}

fn has(node: usize, gpu: u32, eighths: u32, priority: i32) -> Has {
    Has { node, gpu, eighths, priority, is_protected: false }
}

fn uuid(node: usize, gpu: u32) -> GpuUuid {
    GpuUuid(format!("GPU-{node}-{gpu}"))
}

struct World {
    view: ClusterView,
    nodes: Vec<Node>,
    placed: Vec<Pod>,
    budgets: Vec<DisruptionBudget>,
}

fn world(nodes: usize, gpus: u32, all: &[Has], allowed: i32) -> World {
    let gpu = |node, index| {
        let memory_bytes = 40 * GIB;
        let gpu = Gpu { uuid: uuid(node, index), index, model: "A100".to_owned(), memory_bytes, mig: false };
        ViewGpu { offer: Offer::new(gpu), by_plugin: false }
    };
    let view_node = |at| ViewNode {
        name: format!("n{at}"),
        labels: BTreeMap::new(),
        is_open: true,
        gpus: (0..gpus).map(|index| gpu(at, index)).collect(),
    };
    let holding = |(at, each): (usize, &Has)| PodSlices {
        node: format!("n{}", each.node),
        pod: format!("h{at}"),
        name: format!("team/h{at}"),
        slices: vec![Slice {
            gpu: uuid(each.node, each.gpu),
            milli: Milli(each.eighths * 125),
            memory_limit_bytes: u64::from(each.eighths) * 5 * GIB,
            mig: None,
        }],
        by_claim: true,
    };
    let pod = |(at, each): (usize, &Has)| -> Pod {
        let labels = json!({"protected": each.is_protected.to_string()});
        let name = format!("h{at}");
        let spec =
            json!({"nodeName": format!("n{}", each.node), "priority": each.priority, "containers": []});
        let metadata = json!({"name": name, "uid": name, "namespace": "team", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let node = |at| serde_json::from_value(json!({"metadata": {"name": format!("n{at}")}})).unwrap();
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"protected": "true"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    }))
    .unwrap();
    World {
        view: ClusterView {
            nodes: (0..nodes).map(view_node).collect(),
            holdings: all.iter().enumerate().map(holding).collect(),
            ..ClusterView::default()
        },
        nodes: (0..nodes).map(node).collect(),
        placed: all.iter().enumerate().map(pod).collect(),
        budgets: vec![DisruptionBudget::of(&budget)],
    }
}

fn waiting(uid: &str, slice: &str, priority: i32) -> Pod {
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let metadata = json!({"name": uid, "uid": uid, "namespace": "team", "labels": {SLICE_LABEL: slice}});
    let spec = json!({"priority": priority, "containers": [{"name": "main"}]});
    let status = json!({"phase": "Pending", "conditions": [condition]});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn eighths(count: u32) -> String {
    format!("cantle-fraction-{:04}", count * 1250)
}

fn decide(world: &World, pods: &[Pod]) -> BTreeMap<String, Preemption> {
    let nominator = Nominator::new(&world.view, &world.nodes, &world.placed);
    Preemptor::new(&nominator, &world.placed, &world.budgets, &BTreeSet::new()).decide(pods, &BTreeMap::new())
}

fn names(preemption: &Preemption) -> (&str, Vec<&str>) {
    let Preemption::Evict { node, victims, .. } = preemption else { panic!("{preemption:?}") };
    (node, victims.iter().map(|victim| victim.uid.as_str()).collect())
}

#[test]
fn as_few_and_as_unimportant_ones_as_will_do() {
    let all = [has(0, 0, 4, 5), has(0, 0, 4, 1), has(1, 0, 4, 2), has(1, 0, 4, 2)];
    let world = world(2, 1, &all, 0);
    let half = decide(&world, &[waiting("p", &eighths(4), 9)]);
    assert_eq!(names(&half["p"]), ("n0", vec!["h1"]), "one of priority 1 and none of 2");
    let whole = decide(&world, &[waiting("p", "cantle-whole-1", 9)]);
    assert_eq!(names(&whole["p"]), ("n1", vec!["h3", "h2"]), "two of 2, and none of 5");
    assert_eq!(decide(&world, &[waiting("p", &eighths(4), 1)])["p"], Preemption::InVain, "none is lower");
    let two = decide(&world, &[waiting("p", &eighths(4), 9), waiting("q", &eighths(4), 8)]);
    assert_eq!((names(&two["p"]).1, names(&two["q"]).1), (vec!["h1"], vec!["h3"]), "each has its own victim");
}

#[test]
fn who_may_not_preempt_does_not() {
    let world = world(1, 1, &[has(0, 0, 8, 0)], 0);
    let with = |spec: &str, value: serde_json::Value| {
        let mut pod = serde_json::to_value(waiting("p", &eighths(4), 9)).unwrap();
        pod["spec"][spec] = value;
        decide(&world, &[serde_json::from_value(pod).unwrap()])
    };
    assert_eq!(names(&with("nodeSelector", json!({}))["p"]).1, ["h0"]);
    assert!(with("preemptionPolicy", json!("Never")).is_empty());
    assert!(
        with("affinity", json!({"podAntiAffinity": {}})).is_empty(),
        "it is unknown here whether it would help"
    );
    assert!(with("schedulingGates", json!([{"name": "g"}])).is_empty());
    assert_eq!(with("nodeSelector", json!({"zone": "b"}))["p"], Preemption::InVain);
    let mut untried = waiting("p", &eighths(4), 9);
    untried.status.as_mut().unwrap().conditions = None;
    assert!(decide(&world, &[untried]).is_empty(), "kube-scheduler has not tried it yet");
}

#[test]
fn nobody_goes_while_others_are_leaving() {
    let mut world = world(1, 1, &[has(0, 0, 4, 0), has(0, 0, 4, 0)], 0);
    let leaving = |world: &World, uid: &str| {
        let nominator = Nominator::new(&world.view, &world.nodes, &world.placed);
        Preemptor::new(&nominator, &world.placed, &world.budgets, &BTreeSet::from([uid.to_owned()]))
            .decide(&[waiting("p", &eighths(4), 9), waiting("q", &eighths(4), 8)], &BTreeMap::new())
    };
    let decided = leaving(&world, "h0");
    let awaited = Preemption::Awaited { node: "n0".to_owned() };
    assert_eq!((&decided["p"], names(&decided["q"]).1), (&awaited, vec!["h1"]));
    world.placed[1].metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(leaving(&world, "h0").into_values().collect::<Vec<_>>(), [awaited.clone(), awaited]);
}

/// Kubernetes frees a claim some time after its pod has gone.
#[test]
fn nobody_goes_while_a_claim_is_being_freed() {
    let mut world = world(1, 1, &[has(0, 0, 4, 0), has(0, 0, 4, 0)], 0);
    world.placed.remove(0);
    assert_eq!(
        decide(&world, &[waiting("p", &eighths(4), 9)])["p"],
        Preemption::Awaited { node: "n0".to_owned() }
    );
}

#[test]
fn most_clusters_are_never_asked() {
    let world = world(1, 1, &[has(0, 0, 8, 0)], 0);
    let asked = |priority| is_asked(&world.view, &world.placed, &[waiting("p", &eighths(4), priority)]);
    assert_eq!((asked(0), asked(1)), (false, true));
}

/// A pod that replaces an evicted one must not take its place.
#[test]
fn lower_pods_wait_while_room_is_made() {
    let pod = waiting("p", &eighths(4), 5);
    let nomination = |node: &str| Nomination {
        node: node.to_owned(),
        slice_name: slice_of(&pod).unwrap(),
        host: host_of(&pod),
    };
    let there =
        |node: &str, preempting: (i32, &'static str)| is_to_wait(&pod, Some(&nomination(node)), [preempting]);
    assert!(is_to_wait(&pod, None, [(1, "n0"), (6, "n1")]));
    assert!(!is_to_wait(&pod, None, [(5, "n0")]), "it is as important");
    assert!(there("n1", (6, "n1")));
    assert!(!there("n2", (6, "n1")), "there is room for it elsewhere");
}

/// kube-scheduler preempts for CPU; and a pod that is evicted returns its CPU too.
#[test]
fn cpu_alone_is_no_reason() {
    let mut world = world(1, 1, &[has(0, 0, 4, 0)], 0);
    world.nodes[0].status =
        serde_json::from_value(json!({"allocatable": {"cpu": "2", "memory": "8Gi"}})).unwrap();
    let with_cpu = |mut pod: Pod, cpu: &str| {
        let container = json!({"name": "main", "resources": {"requests": {"cpu": cpu}}});
        pod.spec.as_mut().unwrap().containers = vec![serde_json::from_value(container).unwrap()];
        pod
    };
    world.placed[0] = with_cpu(world.placed[0].clone(), "1500m");
    let asks = |slice: u32, cpu: &str| decide(&world, &[with_cpu(waiting("p", &eighths(slice), 9), cpu)]);
    assert_eq!(asks(4, "1")["p"], Preemption::InVain, "there is half a GPU, and no CPU");
    assert_eq!(names(&asks(6, "1")["p"]).1, ["h0"]);
    assert_eq!(asks(6, "3")["p"], Preemption::InVain, "it would not help");
}

#[test]
fn a_claim_that_its_pod_does_not_own_stays() {
    let mut world = world(1, 1, &[has(0, 0, 8, 0)], 0);
    let shared = json!([{"name": "gpu", "resourceClaimName": "everybodys"}]);
    world.placed[0].spec.as_mut().unwrap().resource_claims = serde_json::from_value(shared).unwrap();
    assert_eq!(decide(&world, &[waiting("p", &eighths(4), 9)])["p"], Preemption::InVain);
}

/// The free eighths of each GPU without the pods of `gone`.
fn free(all: &[Has], node: usize, gpus: u32, gone: &dyn Fn(usize) -> bool) -> Vec<u32> {
    let used = |gpu| {
        let here =
            all.iter().enumerate().filter(|(at, each)| each.node == node && each.gpu == gpu && !gone(*at));
        here.map(|(_, each)| each.eighths).sum::<u32>()
    };
    (0..gpus).map(|gpu| 8 - used(gpu)).collect()
}

/// Distinguished independently of the code under test: a part of one GPU, or a number of whole ones.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Eighths(u32),
    Whole(usize),
}

impl Ask {
    fn fits(self, free: &[u32]) -> bool {
        match self {
            Self::Eighths(count) => free.iter().any(|free| *free >= count),
            Self::Whole(count) => free.iter().filter(|free| **free == 8).count() >= count,
        }
    }

    fn label(self) -> String {
        match self {
            Self::Eighths(count) => eighths(count),
            Self::Whole(count) => format!("cantle-whole-{count}"),
        }
    }
}

fn cluster() -> impl Strategy<Value = (usize, u32, Vec<Has>)> {
    let one = |nodes, gpus| {
        (0..nodes, 0..gpus, 1u32..=8, 0i32..4, any::<bool>()).prop_map(
            |(node, gpu, eighths, priority, is_protected)| Has { node, gpu, eighths, priority, is_protected },
        )
    };
    let all = move |(nodes, gpus): (usize, u32)| {
        (Just(nodes), Just(gpus), prop::collection::vec(one(nodes, gpus), 0..9))
    };
    (1usize..4, 1u32..3).prop_flat_map(all).prop_map(|(nodes, gpus, wanted)| {
        let mut all: Vec<Has> = Vec::new();
        for each in wanted {
            if free(&all, each.node, gpus, &|_| false)[each.gpu as usize] >= each.eighths {
                all.push(each);
            }
        }
        (nodes, gpus, all)
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![(1u32..8).prop_map(Ask::Eighths), (1usize..3).prop_map(Ask::Whole)]
}

proptest! {
    /// Against all sets of pods that could go.
    #[test]
    fn no_better_set_would_do((nodes, gpus, all) in cluster(), ask in ask(), priority in 0i32..5) {
        let world = world(nodes, gpus, &all, 0);
        let decided = decide(&world, &[waiting("p", &ask.label(), priority)]);
        let may_go = |at: usize| all[at].priority < priority && !all[at].is_protected;
        // For each node, the highest priority of the set that does best.
        let best = |node: usize| {
            let lower: Vec<usize> = (0..all.len()).filter(|at| all[*at].node == node && may_go(*at)).collect();
            let sets = (0u32..1 << lower.len()).map(|bits| {
                lower.iter().enumerate().filter(|(bit, _)| bits >> bit & 1 == 1).map(|(_, at)| *at).collect::<BTreeSet<_>>()
            });
            let will_do = sets.filter(|set| ask.fits(&free(&all, node, gpus, &|at| set.contains(&at))));
            will_do.map(|set| set.iter().map(|at| all[*at].priority).max()).min()
        };
        let has_room = (0..nodes).any(|node| ask.fits(&free(&all, node, gpus, &|_| false)));
        match decided.get("p") {
            None => prop_assert!(has_room),
            Some(Preemption::Evict { node, victims, .. }) => {
                prop_assert!(!has_room);
                let at: usize = node[1..].parse().unwrap();
                let gone: BTreeSet<usize> = victims.iter().map(|victim| victim.uid[1..].parse().unwrap()).collect();
                prop_assert!(gone.iter().all(|each| may_go(*each) && all[*each].node == at));
                prop_assert!(ask.fits(&free(&all, at, gpus, &|each| gone.contains(&each))));
                for spared in &gone {
                    let others = free(&all, at, gpus, &|each| each != *spared && gone.contains(&each));
                    prop_assert!(!ask.fits(&others), "h{spared} need not go");
                }
                let highest = gone.iter().map(|each| all[*each].priority).max();
                prop_assert_eq!(Some(highest), (0..nodes).filter_map(best).min());
            }
            Some(Preemption::Protected) => {
                prop_assert!((0..nodes).all(|node| best(node).is_none()));
                let is_lower = |at: usize| all[at].priority < priority;
                prop_assert!((0..nodes).any(|node| ask.fits(&free(&all, node, gpus, &is_lower))));
            }
            Some(Preemption::InVain) => {
                let is_lower = |at: usize| all[at].priority < priority;
                prop_assert!(!(0..nodes).any(|node| ask.fits(&free(&all, node, gpus, &is_lower))));
            }
            Some(Preemption::Awaited { .. }) => prop_assert!(false, "no pod is leaving"),
        }
    }

    /// For any evictions, a budget is never exceeded, and no pod is evicted twice.
    #[test]
    fn budgets_are_never_overdrawn(
        (nodes, gpus, all) in cluster(),
        asks in prop::collection::vec((ask(), 0i32..5), 1..4),
        allowed in 0i32..3,
    ) {
        let world = world(nodes, gpus, &all, allowed);
        let pods: Vec<Pod> =
            asks.iter().enumerate().map(|(at, (ask, priority))| waiting(&format!("p{at}"), &ask.label(), *priority)).collect();
        let decided = decide(&world, &pods);
        let victims = decided.values().flat_map(|each| match each {
            Preemption::Evict { victims, .. } => victims.as_slice(),
            _ => &[],
        });
        let gone: Vec<usize> = victims.map(|victim| victim.uid[1..].parse().unwrap()).collect();
        let distinct: BTreeSet<usize> = gone.iter().copied().collect();
        prop_assert_eq!(gone.len(), distinct.len());
        let protected = gone.iter().filter(|at| all[**at].is_protected).count();
        prop_assert!(i32::try_from(protected).unwrap() <= allowed);
    }
}
