use std::collections::BTreeMap;

use cantle_ledger::host::GpuLimit;
use cantle_model::{Gpu, GpuUuid, Holder, Milli, Slice, TaskId};

use super::*;
use crate::launch::new_lease;
use crate::own_holder;
use crate::uuid::gpu_uuid_bytes;

const NOBODY: Holder = Holder { pid: u32::MAX, start_ticks: 0 };

fn store() -> (tempfile::TempDir, NodeStore) {
    let root = tempfile::tempdir().unwrap();
    let node = NodeStore::open(&root.path().join("node")).unwrap();
    (root, node)
}

fn lease(gpu: &str) -> Lease {
    let slice = Slice { gpu: gpu.into(), milli: Milli(500), memory_limit_bytes: 20 << 30, mig: None };
    new_lease(TaskId::from("t"), "train".to_owned(), None, vec![slice])
}

/// All of each GPU.
fn whole() -> BTreeMap<GpuUuid, Vec<String>> {
    BTreeMap::new()
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index}").as_str().into(),
        index,
        model: "X".into(),
        memory_bytes: 1 << 35,
        mig: false,
    }
}

#[test]
fn a_lease_is_active_as_long_as_its_owner_or_its_first_process_lives() {
    let (_root, node) = store();
    let owned = lease("GPU-0");
    let led = Lease { owner: NOBODY, leader: Some(own_holder()), ..lease("GPU-1") };
    let left = Lease { owner: NOBODY, leader: Some(NOBODY), ..lease("GPU-2") };
    let locked = node.lock().unwrap();
    for lease in [&owned, &led, &left] {
        locked.put(lease).unwrap();
    }
    let mut active = locked.sweep().unwrap();
    active.sort_by(|a, b| a.slices[0].gpu.cmp(&b.slices[0].gpu));
    assert_eq!(active, [owned.clone(), led]);
    assert_eq!(locked.lease(&left.id).unwrap(), None);
    locked.retire(&owned).unwrap();
    assert_eq!(locked.leases().unwrap().len(), 1);
}

#[test]
fn a_supervisor_that_lives_keeps_a_lease_whose_first_process_is_not_known_yet() {
    let (root, node) = store();
    let orphan = Lease { owner: NOBODY, ..lease("GPU-0") };
    let task_dir = root.path().join("task");
    fs::create_dir(&task_dir).unwrap();
    fs::create_dir_all(node.slice_dir(&orphan.id)).unwrap();
    node.link_task(&orphan.id, &task_dir).unwrap();
    let supervisor = File::create(task_dir.join("lock")).unwrap();
    supervisor.lock().unwrap();
    let locked = node.lock().unwrap();
    locked.put(&orphan).unwrap();
    assert_eq!(locked.sweep().unwrap().len(), 1);
    drop(supervisor);
    assert_eq!(locked.sweep().unwrap(), []);
    assert!(!node.slice_dir(&orphan.id).exists());
    assert!(task_dir.exists(), "the link goes, not what it leads to");
}

#[test]
fn every_change_of_a_lease_shows_at_once() {
    let (_root, node) = store();
    let path = node.dir().join("leases/a.json");
    let put = |name: &str| {
        let changed = Lease { id: LeaseId::from("a"), name: name.to_owned(), ..lease("GPU-0") };
        fs::write(&path, serde_json::to_vec(&changed).unwrap()).unwrap();
    };
    let names = || node.leases().unwrap().into_iter().map(|lease| lease.name).collect::<Vec<_>>();
    let settle = || std::thread::sleep(std::time::Duration::from_millis(150));
    // In place, of one length, and within one step of the clock of the file system.
    for round in 0..200 {
        put(&format!("{round:03}"));
        assert_eq!(names(), [format!("{round:03}")]);
    }
    settle();
    assert_eq!((names(), names()), (vec!["199".to_owned()], vec!["199".to_owned()]));
    put("200");
    assert_eq!(names(), ["200"]);
    settle();
    assert_eq!(names(), ["200"]);
    fs::write(&path, "{").unwrap();
    assert_eq!(names(), ["unreadable lease"]);
    put("201");
    settle();
    assert_eq!(names(), ["201"]);
    fs::remove_file(&path).unwrap();
    assert_eq!(names(), [""; 0]);
}

/// The file is truncated, as after a loss of power on some file systems; the accounting region is intact.
#[test]
fn a_lease_that_cannot_be_read_concerns_its_own_slice_only() {
    const GPU: &str = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f";
    let (root, node) = store();
    let (broken, other) = (Lease { owner: NOBODY, ..lease(GPU) }, lease("GPU-1"));
    let limit =
        GpuLimit { uuid: gpu_uuid_bytes(GPU).unwrap(), limit_bytes: 20 << 30, context_bytes: 1 << 20 };
    let (region, task_dir) = (node.slice_dir(&broken.id), root.path().join("task"));
    fs::create_dir_all(&region).unwrap();
    fs::create_dir(&task_dir).unwrap();
    cantle_ledger::host::create(&region, &broken.id.0, &[limit]).unwrap();
    node.link_task(&broken.id, &task_dir).unwrap();
    let supervisor = File::create(task_dir.join("lock")).unwrap();
    supervisor.lock().unwrap();
    let locked = node.lock().unwrap();
    for lease in [&broken, &other] {
        locked.put(lease).unwrap();
    }
    let path = node.lease_path(&broken.id);
    fs::write(&path, "{\"id\":").unwrap();

    let mut active = locked.sweep().unwrap();
    active.sort_by_key(|lease| lease.id != broken.id);
    assert_eq!(active[1], other);
    let slice = &active[0].slices[0];
    assert_eq!((slice.gpu.0.as_str(), slice.memory_limit_bytes, slice.milli), (GPU, 20 << 30, Milli::ONE));
    assert!(path.exists(), "as long as the task lives");
    assert!(locked.lease(&broken.id).unwrap_err().to_string().contains(path.to_str().unwrap()));

    drop(supervisor);
    assert_eq!(locked.sweep().unwrap(), [other]);
    assert!(!region.exists() && !path.exists());
    assert_eq!(fs::read_to_string(path.with_extension("unreadable")).unwrap(), "{\"id\":");
}

#[test]
fn leases_of_a_former_boot_are_forgotten() {
    let (_root, node) = store();
    node.lock().unwrap().put(&lease("GPU-0")).unwrap();
    assert_eq!(node.lock().unwrap().leases().unwrap().len(), 1);
    fs::write(node.dir().join("boot"), "another boot\n").unwrap();
    assert_eq!(node.lock().unwrap().leases().unwrap(), []);
}

#[test]
fn only_one_holds_the_lock() {
    let (_root, node) = store();
    let locked = node.lock().unwrap();
    let second = OpenOptions::new().write(true).open(node.dir().join("lock")).unwrap();
    assert!(second.try_lock().is_err());
    drop(locked);
    assert!(second.try_lock().is_ok());
}

#[test]
fn the_second_agent_on_a_gpu_is_refused_and_hears_who_was_first() {
    let (_root, node) = store();
    let (one, two, three) = (gpu(0), gpu(1), gpu(2));
    let locked = node.lock().unwrap();
    let first = locked.claim("node1:dgpu0-1", own_holder(), &[one.clone(), two.clone()], whole()).unwrap();
    let error =
        locked.claim("node1:dgpu1-2", own_holder(), &[two.clone(), three.clone()], whole()).unwrap_err();
    let pid = std::process::id();
    assert_eq!(error.to_string(), format!("GPU 1 is taken by agent node1:dgpu0-1 (pid {pid})"));
    assert_eq!(error.hints(), ["stop it first or choose other GPUs with --gpus"]);
    assert_eq!(error.exit_code(), 8);
    assert!(locked.check_claims("node1:dgpu2", &[three], &whole()).is_ok());
    let error = locked.claim("node1:dgpu0-1", own_holder(), &[], whole()).unwrap_err();
    assert!(error.to_string().starts_with("agent node1:dgpu0-1 runs here already (pid "), "{error}");
    assert_eq!(error.exit_code(), 8);
    first.release(&node).unwrap();
    locked.claim("node1:dgpu1", own_holder(), &[two], whole()).unwrap();
}

#[test]
fn agents_on_instances_of_their_own_share_a_gpu() {
    let (_root, node) = store();
    let locked = node.lock().unwrap();
    let only = |device: &str| BTreeMap::from([(gpu(0).uuid, vec![device.to_owned()])]);
    let claim = |worker: &str, instances| locked.claim(worker, own_holder(), &[gpu(0)], instances);
    claim("node1:gpu0.0", only("MIG-a")).unwrap();
    claim("node1:gpu0.1", only("MIG-b")).unwrap();
    assert!(claim("node1:gpu0.0", only("MIG-a")).unwrap_err().to_string().contains("node1:gpu0.0"));
    assert!(claim("node1:dgpu0", whole()).is_err(), "all of a GPU of which others have a part");
}

#[test]
fn a_claim_ends_with_its_agent() {
    let (_root, node) = store();
    let locked = node.lock().unwrap();
    locked.claim("node1:dgpu0", NOBODY, &[gpu(0)], whole()).unwrap();
    locked.claim("node1:dgpu0", own_holder(), &[gpu(0)], whole()).unwrap();
}

/// The first ones after a restart of the machine come at once; one of them empties the store.
#[test]
fn many_open_a_store_of_a_former_boot_at_once() {
    let root = tempfile::tempdir().unwrap();
    for round in 0..40 {
        let dir = root.path().join(round.to_string());
        std::thread::scope(|scope| {
            let opened: Vec<_> = (0..8).map(|_| scope.spawn(|| NodeStore::open(&dir).map(drop))).collect();
            opened.into_iter().for_each(|opened| opened.join().unwrap().unwrap());
        });
    }
}

/// As a `cantle run` leaves it that is killed while it writes its lease.
#[test]
fn what_was_left_unfinished_goes_at_the_next_start() {
    let (root, node) = store();
    let unfinished = node.lease_path(&LeaseId::from("a")).with_extension("new");
    std::fs::write(&unfinished, "{").unwrap();
    let kept = lease("GPU-a");
    node.lock().unwrap().put(&kept).unwrap();
    let node = NodeStore::open(&root.path().join("node")).unwrap();
    assert!(!unfinished.exists());
    assert_eq!(node.leases().unwrap(), [kept]);
}
