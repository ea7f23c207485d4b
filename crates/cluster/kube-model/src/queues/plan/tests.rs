use std::sync::Arc;

use cantle_clearml::quotas::{HeldTask, QuotaView, Stopping};
use cantle_decide::Offer;
use cantle_mig::{Profile, Table};
use cantle_model::{Cause, Fraction, Gpu, MigInstance, Milli, PoolQuota, Preempt, ProjectQuota, Quota};

use super::*;

const GIB: u64 = 1 << 30;

fn view(gpus: u32, table: Option<Table>) -> ClusterView {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{index}").as_str().into(),
        index,
        model: "H100".to_owned(),
        memory_bytes: 80 * GIB,
        mig: false,
    };
    let table = table.map(Arc::new);
    let gpus = (0..gpus).map(|index| {
        let (table, switches) = (table.clone(), table.is_some());
        ViewGpu { offer: Offer { table, switches, ..Offer::new(gpu(index)) }, by_plugin: false }
    });
    let node =
        ViewNode { name: "n".to_owned(), labels: BTreeMap::new(), is_open: true, gpus: gpus.collect() };
    ClusterView { nodes: vec![node], ..ClusterView::default() }
}

fn part(gpu: u32, milli: u32) -> Slice {
    let memory_limit_bytes = Fraction::from(Milli(milli)).of_bytes(80 * GIB);
    Slice { gpu: format!("GPU-{gpu}").as_str().into(), milli: Milli(milli), memory_limit_bytes, mig: None }
}

fn request(gpu: &str) -> PodRequest {
    PodRequest { gpu: Some(gpu.parse().unwrap()), ..PodRequest::default() }
}

/// One of our pods with half a GPU, and its placement.
fn pod(view: &mut ClusterView, task: &str, gpu: Option<u32>) -> OwnPod {
    let slices: Vec<Slice> = vec![part(gpu.unwrap_or(0), 500)];
    if gpu.is_some() {
        let (node, pod, name) = ("n".to_owned(), format!("u-{task}"), format!("jobs/{task}"));
        view.holdings.push(PodSlices { node, pod, name, slices: slices.clone(), by_claim: true });
    }
    OwnPod {
        uid: format!("u-{task}"),
        task: task.to_owned(),
        queue: "q".to_owned(),
        request: request("cantle-fraction-5000"),
        admitted: AdmittedSlices { slices, project: None },
        ..OwnPod::default()
    }
}

fn foreign(view: &mut ClusterView, slice: Slice) {
    let (node, name) = ("n".to_owned(), "other/pod".to_owned());
    view.holdings.push(PodSlices {
        node,
        pod: "somebody".to_owned(),
        name,
        slices: vec![slice],
        by_claim: true,
    });
}

fn waits(project: &str, task: &str, gpu: &str) -> TaskCandidate {
    let waiting =
        WaitingTask { task: task.to_owned(), project: Some(project.to_owned()), ..WaitingTask::default() };
    TaskCandidate { queue: "q".to_owned(), request: request(gpu), waiting, ..TaskCandidate::default() }
}

fn held(project: &str, own: &OwnPod) -> HeldTask {
    HeldTask {
        task: own.task.clone(),
        lease: own.uid.clone(),
        cpu_milli: 0,
        memory_bytes: 0,
        project: Some(project.to_owned()),
        priority: 0,
        preemptible: true,
        started_ms: 0,
        stopping: None,
    }
}

/// Projects with what they are granted, and tasks that hold something.
fn fleet(granted: &[(&str, u64, Option<u64>)], held: Vec<HeldTask>) -> Fleet {
    let projects = granted.iter().map(|&(project, deserved, limit)| {
        let gpu = Quota { deserved: Some(deserved), limit, weight: 1 };
        QuotaView { project: project.to_owned(), quota: ProjectQuota { gpu, ..ProjectQuota::default() } }
    });
    Fleet { projects: projects.collect(), held, ..Fleet::default() }
}

fn decided(
    view: &ClusterView,
    fleet: &Fleet,
    own: &[OwnPod],
    candidates: &[TaskCandidate],
) -> ClusterDecision {
    plan(&ClusterQuestion { view, fleet, own, candidates }, 1_000_000).unwrap()
}

fn starts(decided: &ClusterDecision) -> Vec<&str> {
    decided.starts.iter().map(|(task, _)| task.as_str()).collect()
}

fn why(decided: &ClusterDecision, task: &str) -> String {
    decided.waits.iter().find(|wait| wait.task.0 == task).unwrap().reason.to_string()
}

const HALF: &str = "cantle-fraction-5000";

#[test]
fn what_is_idle_is_lent_and_taken_back_by_its_owner() {
    let mut view = view(2, None);
    let granted = [("a", 1000, None), ("b", 1000, None)];
    let many: Vec<TaskCandidate> = (0..5).map(|n| waits("a", &format!("a{n}"), HALF)).collect();
    let first = decided(&view, &fleet(&granted, vec![]), &[], &many);
    assert_eq!(starts(&first), ["a0", "a1", "a2", "a3"]);
    assert_eq!(first.starts[0].1.project.as_deref(), Some("a"));
    assert!(why(&first, "a4").contains("project a holds 2 GPUs"), "{}", why(&first, "a4"));

    let own: Vec<OwnPod> = (0..4).map(|n| pod(&mut view, &format!("a{n}"), Some(n / 2))).collect();
    let mut fleet = fleet(&granted, own.iter().map(|own| held("a", own)).collect());
    let owner = [waits("b", "b0", HALF)];
    let back = decided(&view, &fleet, &own, &owner);
    let [victim] = back.evictions.as_slice() else { panic!("{back:?}") };
    assert_eq!((victim.for_task.0.as_str(), victim.cause), ("b0", Cause::Reclaim));
    assert!(why(&back, "b0").contains("being freed by"), "{}", why(&back, "b0"));

    // After that task was asked to stop, no other is.
    let stopping = Some(Stopping {
        cause: Cause::Reclaim,
        reason: "reclaimed".to_owned(),
        for_task: None,
        preempt: Preempt::Requeue,
    });
    let asked = fleet.held.iter_mut().find(|held| held.lease == victim.lease.0).unwrap();
    asked.stopping = stopping;
    assert!(decided(&view, &fleet, &own, &owner).evictions.is_empty());
    // Nor when its pod was deleted anyway.
    asked_again(&view, &granted, own, &owner);
}

fn asked_again(
    view: &ClusterView,
    granted: &[(&str, u64, Option<u64>)],
    mut own: Vec<OwnPod>,
    owner: &[TaskCandidate],
) {
    let fleet = fleet(granted, own.iter().map(|own| held("a", own)).collect());
    own[0].is_ending = true;
    assert!(decided(view, &fleet, &own, owner).evictions.is_empty());
}

#[test]
fn a_limit_holds_for_pods_that_have_no_place_yet() {
    let mut view = view(2, None);
    let own = [pod(&mut view, "a0", None)];
    let fleet = fleet(&[("a", 0, Some(500))], vec![held("a", &own[0])]);
    let decided = decided(&view, &fleet, &own, &[waits("a", "a1", HALF)]);
    assert!(decided.starts.is_empty());
    assert!(why(&decided, "a1").contains("its limit is 0.5 GPU"), "{}", why(&decided, "a1"));
}

#[test]
fn what_others_hold_is_gone_and_counts_against_nobody() {
    let mut view = view(2, None);
    foreign(&mut view, part(0, 1000));
    let granted = [("a", 1000, None), ("b", 1000, None)];
    let two = [waits("a", "a0", "cantle-whole-1"), waits("b", "b0", "cantle-whole-1")];
    let decided = decided(&view, &fleet(&granted, vec![]), &[], &two);
    assert_eq!(starts(&decided), ["a0"]);
    assert!(decided.evictions.is_empty(), "a stranger is never stopped");
    assert_eq!(decided.waits.len(), 1);
}

#[test]
fn a_pod_whose_room_somebody_else_took_is_taken_back() {
    let mut view = view(1, None);
    foreign(&mut view, part(0, 1000));
    let mut own = [pod(&mut view, "a0", None)];
    let fleet = fleet(&[("a", 1000, None)], vec![held("a", &own[0])]);
    assert!(decided(&view, &fleet, &own, &[]).stuck.is_empty(), "the scheduler has not reported it");
    own[0].is_unschedulable = true;
    assert_eq!(decided(&view, &fleet, &own, &[]).stuck, ["u-a0"]);
    view.holdings.clear();
    assert!(decided(&view, &fleet, &own, &[]).stuck.is_empty(), "there is room; it lacks something else");
}

#[test]
fn the_weight_is_what_counts() {
    let view = view(2, None);
    let heavy = |task| {
        let mut heavy = waits("a", task, HALF);
        heavy.request.quota_milli = Some(1000);
        heavy
    };
    let granted = fleet(&[("a", 0, Some(1000))], vec![]);
    let decided = decided(&view, &granted, &[], &[heavy("a0"), heavy("a1")]);
    assert_eq!(starts(&decided), ["a0"]);
    assert!(why(&decided, "a1").contains("holds 1 GPU and its limit is 1 GPU"), "{}", why(&decided, "a1"));
}

#[test]
fn instances_count_by_slices_and_are_taken_back() {
    let profile = |name: &str, size, starts: &[u32]| Profile {
        name: name.to_owned(),
        id: size,
        compute_slices: size,
        size,
        starts: starts.to_vec(),
        max_instances: 8,
        engines: cantle_mig::Engines::default(),
        memory_bytes: u64::from(size) * 10 * GIB,
    };
    let profiles = vec![profile("1g.10gb", 1, &[0, 1, 2, 3, 4, 5, 6]), profile("3g.40gb", 4, &[0, 4])];
    let mut view = view(1, Some(Table { units: 8, profiles, fixed: false }));
    let granted = [("a", 500, None), ("b", 500, None)];
    let instance = |project: &str, task: &str| waits(project, task, "cantle-mig-3g.40gb");
    let all = [instance("a", "a0"), instance("a", "a1"), instance("a", "a2")];
    let first = decided(&view, &fleet(&granted, vec![]), &[], &all);
    assert_eq!(starts(&first), ["a0", "a1"]);
    let slices: Vec<Slice> = first.starts.iter().flat_map(|(_, room)| room.slices.clone()).collect();
    assert!(slices.iter().all(|slice| slice.milli == Milli(500)), "4 of 8 memory slices");
    let mut own = Vec::new();
    for (at, slice) in slices.into_iter().enumerate() {
        let mut pod = pod(&mut view, &format!("a{at}"), Some(0));
        pod.request = request("cantle-mig-3g.40gb");
        assert!(matches!(&slice.mig, Some(MigInstance { profile, .. }) if profile == "3g.40gb"));
        view.holdings.last_mut().unwrap().slices = vec![slice];
        own.push(pod);
    }
    let fleet = fleet(&granted, own.iter().map(|own| held("a", own)).collect());
    assert_eq!(decided(&view, &fleet, &own, &[instance("b", "b0")]).evictions.len(), 1);
    let share = decided(&view, &fleet, &own, &[waits("b", "b1", HALF)]);
    assert!(share.starts.is_empty() && share.evictions.is_empty(), "a share is not made of instances");
}

#[test]
fn a_task_without_a_gpu_starts_where_all_gpus_are_taken() {
    let mut view = view(1, None);
    foreign(&mut view, part(0, 1000));
    let mut plain = waits("a", "a0", HALF);
    plain.request = PodRequest::default();
    let decided = decided(&view, &fleet(&[("a", 0, None)], vec![]), &[], &[plain]);
    assert_eq!(starts(&decided), ["a0"]);
    assert!(decided.starts[0].1.slices.is_empty());
}

#[test]
fn what_only_nvidias_plugin_gives_out_is_for_the_clusters_scheduler_to_find() {
    let mut view = view(1, None);
    let fleet = fleet(&[("a", 1000, Some(1000))], vec![]);
    let mut by_resource = waits("a", "a0", "cantle-whole-1");
    by_resource.request.by_resource = true;
    let mut instance = waits("a", "a1", "cantle-mig-1g.10gb");
    instance.request.quota_milli = Some(1000);
    let more = TaskCandidate {
        waiting: WaitingTask { task: "a2".to_owned(), ..instance.waiting.clone() },
        ..instance.clone()
    };
    let all = [by_resource.clone(), instance, more];
    let unseen = decided(&view, &fleet, &[], &all);
    assert_eq!(starts(&unseen), ["a0", "a1"]);
    assert!(unseen.starts.iter().all(|(_, room)| room.slices.is_empty()));
    assert!(why(&unseen, "a2").contains("its limit is 1 GPU"), "their weight counts: {}", why(&unseen, "a2"));
    view.gpu_is_claimed = true;
    let seen = decided(&view, &fleet, &[], &[by_resource]);
    assert_eq!(seen.starts[0].1.slices[0].milli, Milli::ONE);
}

#[test]
fn a_queue_that_selects_nodes_gets_no_other_kind_of_gpu() {
    let mut view = view(1, None);
    let mut other = self::view(1, None).nodes.remove(0);
    other.name = "m".to_owned();
    other.labels.insert("pool".to_owned(), "small".to_owned());
    other.gpus[0].offer.gpu.model = "T4".to_owned();
    other.gpus[0].offer.gpu.uuid = "GPU-t4".into();
    view.nodes.push(other);
    let selects = |value: &str| {
        let mut task = waits("a", "a0", HALF);
        task.request.selector.insert("pool".to_owned(), value.to_owned());
        task
    };
    let fleet = fleet(&[("a", 1000, None)], vec![]);
    let small = decided(&view, &fleet, &[], &[selects("small")]);
    assert_eq!(small.starts[0].1.slices[0].gpu.0, "GPU-t4");
    let none = decided(&view, &fleet, &[], &[selects("huge")]);
    assert!(why(&none, "a0").contains("pool=huge"), "{}", why(&none, "a0"));
}

#[test]
fn tasks_wait_if_a_quota_above_them_names_pools() {
    let view = view(2, None);
    let mut fleet = fleet(&[("a", 1000, None), ("a/b", 1000, None), ("c", 1000, None)], vec![]);
    let candidates = [waits("a/b", "1", HALF), waits("c", "2", HALF), without_gpu("a", "3")];
    let free = decided(&view, &fleet, &[], &candidates);
    assert_eq!(BTreeSet::from_iter(starts(&free)), BTreeSet::from(["1", "2", "3"]), "nothing names a pool");
    fleet.projects[0].quota.pools = vec!["fast".to_owned()];
    for _ in 0..2 {
        let held = decided(&view, &fleet, &[], &candidates);
        assert_eq!(BTreeSet::from_iter(starts(&held)), BTreeSet::from(["2", "3"]));
        assert_eq!(
            why(&held, "1"),
            "the quota of project a names pools, which queues on Kubernetes do not place by"
        );
        fleet.projects[0].quota.pools = Vec::new();
        let part = PoolQuota { deserved: 0, limit: Some(1) };
        fleet.projects[0].quota.by_pool = [("fast".to_owned(), part)].into();
    }
}

fn without_gpu(project: &str, task: &str) -> TaskCandidate {
    TaskCandidate { request: PodRequest::default(), ..waits(project, task, HALF) }
}
