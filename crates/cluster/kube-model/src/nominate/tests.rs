use cantle_decide::Offer;
use cantle_model::{Gpu, GpuUuid, Milli, Slice};
use serde_json::{Value, json};

use super::*;
use crate::cluster::{PodSlices, ViewGpu};

pub(crate) fn view(nodes: &[&str], gpus: u32) -> ClusterView {
    let gpu = |node: &str, index| {
        let uuid = GpuUuid(format!("GPU-{node}-{index}"));
        let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 << 30, mig: false };
        ViewGpu { offer: Offer::new(gpu), by_plugin: false }
    };
    let node = |name: &&str| ViewNode {
        name: (*name).to_owned(),
        labels: BTreeMap::from([("kubernetes.io/hostname".to_owned(), (*name).to_owned())]),
        is_open: true,
        gpus: (0..gpus).map(|index| gpu(name, index)).collect(),
    };
    ClusterView { nodes: nodes.iter().map(node).collect(), ..ClusterView::default() }
}

fn nodes(names: &[&str], spec: &Value, cpu: &str) -> Vec<Node> {
    let status = json!({"allocatable": {"cpu": cpu, "memory": "64Gi"}});
    let node = |name: &&str| json!({"metadata": {"name": name}, "spec": spec, "status": status});
    names.iter().map(|name| serde_json::from_value(node(name)).unwrap()).collect()
}

fn pod(uid: &str, slice: &str, spec: Value) -> Pod {
    let mut spec = spec;
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "main"}]);
    }
    let metadata = json!({"name": uid, "uid": uid, "labels": {SLICE_LABEL: slice}});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))
        .unwrap()
}

fn eighths(count: usize) -> Vec<Pod> {
    (0..count).map(|at| pod(&format!("p{at:02}"), "cantle-fraction-1250", json!({}))).collect()
}

fn chosen(view: &ClusterView, nodes: &[Node], pods: &[Pod]) -> Vec<String> {
    let none: [Pod; 0] = [];
    let nominator = Nominator::new(view, nodes, &none);
    nominator.advise(pods, &BTreeMap::new()).nominations.into_values().map(|each| each.node).collect()
}

#[test]
fn a_node_is_filled_before_another_is_begun() {
    let (view, nodes) = (view(&["a", "b", "c"], 2), nodes(&["a", "b", "c"], &json!({}), "32"));
    let sixteen = chosen(&view, &nodes, &eighths(16));
    assert_eq!((sixteen.len(), sixteen.iter().all(|node| *node == sixteen[0])), (16, true), "{sixteen:?}");
    let more = chosen(&view, &nodes, &eighths(17));
    let others = more.iter().filter(|node| **node != more[0]).count();
    assert_eq!((more.len(), others), (17, 1), "{more:?}");
    let none: [Pod; 0] = [];
    let too_many = Nominator::new(&view, &nodes, &none).advise(&eighths(49), &BTreeMap::new());
    let (uid, why) = too_many.lacking.first_key_value().unwrap();
    assert_eq!((too_many.nominations.len(), too_many.lacking.len(), uid.as_str()), (48, 1, "p48"));
    assert!(why.contains("0.125"), "{why}");
}

#[test]
fn what_is_under_way_counts() {
    let (view, nodes) = (view(&["a", "b"], 1), nodes(&["a", "b"], &json!({}), "32"));
    let none: [Pod; 0] = [];
    let nominator = Nominator::new(&view, &nodes, &none);
    let first = nominator.advise(&eighths(8), &BTreeMap::new()).nominations;
    let all = eighths(9);
    let next = nominator.advise(&all, &first).nominations;
    assert_eq!(next.keys().collect::<Vec<_>>(), ["p08"], "each once");
    assert_ne!(next["p08"].node, first["p00"].node, "that one is full");
}

/// kube-scheduler gave the first pod that came to it GPU 0, although it was meant for GPU 1.
#[test]
fn a_node_is_full_whichever_gpu_a_pod_got() {
    let (mut view, nodes) = (view(&["a", "b"], 2), nodes(&["a", "b"], &json!({}), "32"));
    let none: [Pod; 0] = [];
    let pods = eighths(16);
    let mut made = Nominator::new(&view, &nodes, &none).advise(&pods, &BTreeMap::new()).nominations;
    let node = made["p15"].node.clone();
    made.remove("p15");
    let gpu = GpuUuid(format!("GPU-{node}-0"));
    let slice = Slice { gpu, milli: Milli(125), memory_limit_bytes: 5 << 30, mig: None };
    let holding = PodSlices {
        node: node.clone(),
        pod: "p15".into(),
        name: "team/p15".into(),
        slices: vec![slice],
        by_claim: true,
    };
    view.holdings.push(holding);
    let next = Nominator::new(&view, &nodes, &none)
        .advise(&[pod("next", "cantle-fraction-1250", json!({}))], &made)
        .nominations;
    assert_ne!(next["next"].node, node);
}

fn requests(view: &ClusterView, slices: &[&str], count: usize) -> Requests {
    let mut requests = Requests::default();
    let pods: Vec<Pod> =
        (0..count).map(|at| pod(&format!("old{at}"), slices[at % slices.len()], json!({}))).collect();
    // Twice, and then without those that have ended.
    requests.see(view, &pods);
    requests.see(view, &pods);
    requests.see(view, &[] as &[Pod]);
    requests
}

/// 0.4 of the GPU of node a is taken. Half of all pods request 0.6, and half 0.4.
#[test]
fn what_came_before_decides_which_gpu_is_filled() {
    let (mut view, nodes) = (view(&["a", "b"], 1), nodes(&["a", "b"], &json!({}), "32"));
    let slice = Slice { gpu: "GPU-a-0".into(), milli: Milli(400), memory_limit_bytes: 16 << 30, mig: None };
    view.holdings.push(PodSlices {
        node: "a".into(),
        pod: "held".into(),
        name: "team/held".into(),
        slices: vec![slice],
        by_claim: true,
    });
    let none: [Pod; 0] = [];
    let next = pod("next", "cantle-fraction-3000", json!({}));
    let node = |requests: &Requests| {
        let nominator = Nominator::new(&view, &nodes, &none).expecting(requests.mix());
        nominator.advise(std::slice::from_ref(&next), &BTreeMap::new()).nominations["next"].node.clone()
    };
    let slices = ["cantle-fraction-6000", "cantle-fraction-4000"];
    assert_eq!(node(&requests(&view, &slices, 99)), "a", "too few are known: the fullest GPU");
    assert_eq!(node(&requests(&view, &slices, 100)), "b", "0.6 is kept for one that needs it");
    assert!(requests(&view, &["cantle-mig-1g.10gb"], 100).mix().is_empty());
}

#[test]
fn nodes_that_will_not_do_are_left_out() {
    let gpus = view(&["a", "b"], 1);
    let open = nodes(&["a", "b"], &json!({}), "32");
    let on_b = pod("p", "cantle-fraction-5000", json!({"nodeSelector": {"kubernetes.io/hostname": "b"}}));
    assert_eq!(chosen(&gpus, &open, &[on_b]), ["b"]);
    let tainted = nodes(&["a", "b"], &json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}), "32");
    assert!(chosen(&gpus, &tainted, &eighths(1)).is_empty());
    let tolerant =
        pod("p", "cantle-memory-4096", json!({"tolerations": [{"key": "k", "operator": "Exists"}]}));
    assert_eq!(chosen(&gpus, &tainted, &[tolerant]).len(), 1);
    let requests = json!({"resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}, "name": "main"});
    let heavy = pod("p", "cantle-fraction-1250", json!({"containers": [requests]}));
    assert!(chosen(&gpus, &nodes(&["a", "b"], &json!({}), "1"), std::slice::from_ref(&heavy)).is_empty());
    assert_eq!(chosen(&gpus, &open, &[heavy]).len(), 1);
}

#[test]
fn pods_with_preferences_are_left_to_the_scheduler() {
    let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}]);
    let affinity = json!({"podAntiAffinity": {}});
    for spec in [
        json!({"topologySpreadConstraints": spread}),
        json!({"affinity": affinity}),
        json!({"schedulingGates": [{"name": "g"}]}),
        json!({"nodeName": "a"}),
    ] {
        assert!(!may_be_nominated(&pod("p", "cantle-fraction-5000", spec.clone())), "{spec}");
    }
    assert!(!may_be_nominated(&pod("p", "cantle-mig-1g.10gb", json!({}))));
}

/// A replica that begins knows no nominations but those that pods show.
#[test]
fn nominations_of_a_former_replica_count() {
    let (view, nodes) = (view(&["a", "b"], 1), nodes(&["a", "b"], &json!({}), "32"));
    let mut all = eighths(9);
    for pod in &mut all[..8] {
        pod.status.as_mut().unwrap().nominated_node_name = Some("b".to_owned());
    }
    let none: [Pod; 0] = [];
    let all = Nominator::new(&view, &nodes, &none).advise(&all, &BTreeMap::new()).nominations;
    let on = |uid: &str| all[uid].node.as_str();
    assert_eq!((all.len(), on("p00"), on("p07"), on("p08")), (9, "b", "b", "a"));
}

#[test]
fn a_pod_is_held_for_its_nomination_and_not_for_other_gates() {
    let gated = |gates: &[&str]| {
        let gates: Vec<Value> = gates.iter().map(|name| json!({"name": name})).collect();
        pod("p", "cantle-fraction-5000", json!({"schedulingGates": gates}))
    };
    let of = |pod: &Pod| (is_held(pod), may_be_nominated(pod));
    assert_eq!(of(&gated(&[])), (false, true));
    assert_eq!(of(&gated(&[PACKING_GATE])), (true, true));
    assert_eq!(of(&gated(&["kueue.x-k8s.io/admission", PACKING_GATE])), (false, false), "not yet");
}

/// kube-scheduler places such pods together or not at all.
#[test]
fn pods_of_a_group_are_nominated_together_or_not_at_all() {
    let (view, nodes) = (view(&["a"], 4), nodes(&["a"], &json!({}), "32"));
    let of_group = |group: &str, count: usize| {
        let spec = json!({"schedulingGroup": {"podGroupName": group}});
        (0..count).map(|at| pod(&format!("{group}{at}"), "cantle-whole-1", spec.clone())).collect::<Vec<_>>()
    };
    let two = [of_group("x", 3), of_group("y", 3)].concat();
    let none: [Pod; 0] = [];
    let advice = Nominator::new(&view, &nodes, &none).advise(&two, &BTreeMap::new());
    assert_eq!(advice.nominations.into_keys().collect::<Vec<_>>(), ["x0", "x1", "x2"]);
    assert_eq!(advice.lacking.keys().collect::<Vec<_>>(), ["y0", "y1", "y2"]);
    assert!(advice.lacking["y0"].contains("for each of 3 tasks at once"), "{:?}", advice.lacking);
    assert_eq!(chosen(&view, &nodes, &of_group("z", 5)), Vec::<String>::new(), "one has no place");
}

/// On machines a part of such a GPU is an instance. Claims on parts are for shared GPUs only.
#[test]
fn a_share_has_no_place_on_a_gpu_in_mig_mode() {
    let mut mixed = view(&["m", "s"], 1);
    let offered = crate::dra::devices::tests::offers(1, true, false).remove(0);
    mixed.nodes[0].gpus[0].offer = offered;
    let nodes = nodes(&["m", "s"], &json!({}), "32");
    let shares: Vec<Pod> =
        (0..5).map(|at| pod(&format!("p{at}"), "cantle-fraction-2500", json!({}))).collect();
    assert_eq!(chosen(&mixed, &nodes, &shares), ["s"; 4]);
    let none: [Pod; 0] = [];
    let nominator = Nominator::new(&mixed, &nodes, &none);
    let advice = nominator.advise(&shares, &BTreeMap::new());
    assert_eq!(advice.lacking["p4"], "needs 0.25 GPU, nothing free (1 of 1 in use)");
    let instance = pod("i", "cantle-mig-1g.10gb", json!({}));
    assert_eq!(nominator.lacks(&instance, &BTreeMap::new(), None), None);
}
