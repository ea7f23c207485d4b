use cantle_model::Milli;

use super::*;

const GIB: u64 = 1 << 30;

fn processes(processes: &[(u32, u64)]) -> Vec<ProcessMemory> {
    let process = |&(pid, bytes): &_| ProcessMemory { pid, used_bytes: Some(bytes), instance: None };
    processes.iter().map(process).collect()
}

fn slice(limit_bytes: u64) -> Slice {
    Slice { gpu: "GPU-a".into(), milli: Milli(250), memory_limit_bytes: limit_bytes, mig: None }
}

fn on_gpu(held: &[(u32, u64)], attached: &[u32], has_slice: bool, is_crowded: bool) -> Option<String> {
    let slice = slice(10 * GIB);
    let on_gpu = TaskOnGpu {
        index: 2,
        slice: has_slice.then_some(&slice),
        per_context_bytes: 0,
        counted_bytes: [0; 2],
        charged_bytes: 0,
        processes: &processes(held),
        attached: &attached.iter().copied().collect(),
        is_crowded,
    };
    on_gpu.wrong()
}

#[test]
fn what_the_driver_takes_for_a_context_hides_nothing_else() {
    // Both contexts are charged with what the driver takes for them, and 10 MiB are in use that no call requested.
    assert_eq!(hidden(&[(7, GIB), (8, GIB)], 6 << 20, [2 * GIB + (2 << 20); 2], 0), 10 << 20);
}

fn hidden(held: &[(u32, u64)], per_context_bytes: u64, counted_bytes: [u64; 2], charged_bytes: u64) -> u64 {
    let (slice, processes) = (slice(10 * GIB), processes(held));
    let on_gpu = TaskOnGpu {
        index: 2,
        slice: Some(&slice),
        per_context_bytes,
        counted_bytes,
        charged_bytes,
        processes: &processes,
        attached: &BTreeSet::new(),
        is_crowded: false,
    };
    on_gpu.hidden_bytes()
}

#[test]
fn what_is_allocated_during_a_look_is_not_taken_off_the_hidden() {
    let mib = 1 << 20;
    let look = |actual, counted, charged| hidden(&[(7, actual)], 0, counted, charged) / mib;
    // 40 MiB are hidden. The driver was asked when 1 GiB was counted, and the program goes on to fill its slice.
    assert_eq!(look(GIB + 40 * mib, [GIB, 3 * GIB], 40 * mib), 40);
    assert_eq!(look(2 * GIB + 40 * mib, [GIB, 3 * GIB], 40 * mib), 40);
    assert_eq!(look(2 * GIB + 40 * mib, [3 * GIB, GIB], 40 * mib), 40, "it frees");
    // An impossible charge is changed, and a look without a change of the count is exact.
    assert_eq!(look(GIB + 40 * mib, [GIB, GIB + 8 * mib], 0), 32);
    assert_eq!(look(GIB + 40 * mib, [GIB, GIB + 8 * mib], 600 * mib), 40);
    assert_eq!(look(GIB + 40 * mib, [GIB, GIB], 600 * mib), 40);
}

#[test]
fn honest_tasks_are_left_alone() {
    assert_eq!(on_gpu(&[(7, 6 * GIB), (8, 4 * GIB)], &[7, 8], true, true), None);
    assert_eq!(on_gpu(&[(7, 10 * GIB + (32 << 20))], &[7], true, true), None, "a module was loaded");
    assert_eq!(on_gpu(&[(7, 10 * GIB + (600 << 20))], &[7], true, false), None, "cuDNN, without a crowd");
    assert_eq!(
        on_gpu(&[(7, 4 * GIB), (9, GIB)], &[7], true, true),
        None,
        "a context or OpenCL, within the slice"
    );
    assert_eq!(on_gpu(&[(9, 1 << 20)], &[], true, true), None, "nothing but a context");
}

#[test]
fn who_takes_more_is_reported() {
    let said = on_gpu(&[(7, 9 * GIB), (9, 4 * GIB)], &[7], true, false).unwrap();
    let held = "it holds 13 GiB of GPU 2, its limit is 10 GiB";
    assert_eq!(
        said,
        format!(
            "process 9 reached GPU 2 past the slice's accounting and holds 4 GiB of it; the task: {held}"
        )
    );
    assert_eq!(on_gpu(&[(7, 13 * GIB)], &[7], true, false).unwrap(), held);
    let said = on_gpu(&[(7, 10 * GIB + GIB / 2)], &[7], true, true).unwrap();
    assert_eq!(said, "it holds 10.5 GiB of GPU 2, its limit is 10 GiB", "a neighbor would be hurt");
    let said = on_gpu(&[(7, GIB)], &[7], false, false).unwrap();
    assert_eq!(said, "process 7 holds 1 GiB of GPU 2, of which it has no slice");
}

#[test]
fn more_processes_do_not_bear_more_and_more() {
    let with = |count: u32, over: u64, is_crowded| {
        let mut held: Vec<(u32, u64)> = (0..count).map(|pid| (pid, 0)).collect();
        held[0].1 = 10 * GIB + over;
        on_gpu(&held, &(0..count).collect::<Vec<_>>(), true, is_crowded)
    };
    let mib = 1 << 20;
    assert_eq!(with(4, 256 * mib, true), None);
    assert!(with(4, 257 * mib, true).is_some());
    assert_eq!(with(64, 512 * mib, true), None);
    assert!(with(64, 513 * mib, true).is_some(), "a neighbor's memory is not 64 processes' to take");
    assert_eq!(with(64, 8 * GIB, false), None);
    assert!(with(64, 8 * GIB + mib, false).is_some());
}

#[test]
fn a_task_on_an_instance_of_an_unreadable_lease_is_not_judged() {
    let gpu = |uuid: &str| Gpu {
        uuid: uuid.into(),
        index: 0,
        model: String::new(),
        memory_bytes: 40 * GIB,
        mig: true,
    };
    let lease = members::tests::lease_of("a", 1, vec![slice(10 * GIB)]);
    assert!(is_known(&lease, &[gpu("GPU-a"), gpu("GPU-b")]));
    assert!(!is_known(&lease, &[gpu("GPU-b")]));
    let without_gpu = members::tests::lease_of("b", 1, Vec::new());
    assert!(is_known(&without_gpu, &[gpu("GPU-b")]), "a task without a GPU is judged");
}

#[test]
fn what_is_spoken_for_is_the_larger_of_limit_and_use() {
    let gpu =
        Gpu { uuid: "GPU-a".into(), index: 0, model: String::new(), memory_bytes: 40 * GIB, mig: false };
    let lease = |id: &str| members::tests::lease_of(id, 1, vec![slice(10 * GIB)]);
    let leases = [lease("a"), lease("b")];
    let mut everybody = Everybody::default();
    assert_eq!(everybody.claims_bytes(&gpu, leases.iter()), 20 * GIB);
    let held = |bytes| Held::from([("GPU-a".into(), processes(&[(7, bytes)]))]);
    everybody.held.insert("a".into(), held(2 * GIB));
    everybody.held.insert("b".into(), held(12 * GIB));
    everybody.foreign_bytes.insert("GPU-a".into(), 3 * GIB);
    assert_eq!(everybody.claims_bytes(&gpu, leases.iter()), 25 * GIB - (64 << 20));
}
