//! The files: what the agent writes and reads, random use against a simple model, and bytes that cantle did not write.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cantle_ledger::host::{self, GpuLimit, HostError, Observer};
use cantle_ledger::{
    ANY_GPU, Attachment, GRANULE_BYTES, Ledger, OpenError, Over, granules_holding, granules_within,
};
use proptest::prelude::*;

const FIRST: [u8; 16] = [1; 16];
const SECOND: [u8; 16] = [2; 16];

fn slice() -> (tempfile::TempDir, CString) {
    let dir = tempfile::tempdir().unwrap();
    let gpu =
        |uuid, granules: u64| GpuLimit { uuid, limit_bytes: granules * GRANULE_BYTES + 1, context_bytes: 3 };
    host::create(dir.path(), "lease-7", &[gpu(FIRST, 100), gpu(SECOND, 10)]).unwrap();
    let path = c_path(dir.path());
    (dir, path)
}

fn c_path(dir: &Path) -> CString {
    CString::new(dir.as_os_str().as_bytes()).unwrap()
}

#[test]
fn amounts_become_granules() {
    assert_eq!((granules_within(GRANULE_BYTES * 3 - 1), granules_holding(GRANULE_BYTES * 3 - 1)), (2, 3));
    assert_eq!((granules_within(0), granules_holding(0)), (0, 0));
    assert!(granules_holding(u64::MAX) > granules_within(u64::MAX), "no limit admits what cannot be counted");
}

#[test]
fn the_agent_sees_what_processes_hold() {
    let (dir, path) = slice();
    let attachment = Attachment::new(&path).unwrap();
    attachment.account(0).unwrap().reserve(7).unwrap();
    attachment.account(1).unwrap().reserve(2).unwrap();
    let snapshot = Observer::open(dir.path()).unwrap().snapshot().unwrap();
    assert_eq!(snapshot.lease, "lease-7");
    let gpus: Vec<_> =
        snapshot.gpus.iter().map(|gpu| (gpu.uuid, gpu.limit_bytes, gpu.used_bytes())).collect();
    assert_eq!(
        gpus,
        [(FIRST, 100 * GRANULE_BYTES, 7 * GRANULE_BYTES), (SECOND, 10 * GRANULE_BYTES, 2 * GRANULE_BYTES)]
    );
    let [process] = snapshot.processes.as_slice() else {
        panic!("one process, not {}", snapshot.processes.len())
    };
    assert!(process.alive && process.pid == std::process::id());
    assert_eq!(process.held_bytes, [7 * GRANULE_BYTES, 2 * GRANULE_BYTES]);
}

#[test]
fn limits_for_any_gpu_go_to_those_that_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let any = GpuLimit { uuid: ANY_GPU, limit_bytes: 10 * GRANULE_BYTES, context_bytes: 0 };
    let named = GpuLimit { uuid: FIRST, ..any };
    host::create(dir.path(), "image", &[any, named, any]).unwrap();
    let path = c_path(dir.path());
    let (one, other) = (Ledger::open(&path).unwrap(), Ledger::open(&path).unwrap());
    assert_eq!(one.gpu_index(&SECOND), Some(0));
    assert_eq!(other.gpu_index(&[3; 16]), Some(2), "another mapping has taken the first place");
    assert_eq!((other.gpu_index(&SECOND), one.gpu_index(&[3; 16])), (Some(0), Some(2)));
    assert_eq!(one.gpu_index(&FIRST), Some(1), "its own place");
    assert_eq!(one.gpu_index(&[4; 16]), None, "no place is left");
}

#[test]
fn a_limit_can_be_changed_under_a_running_process() {
    let (dir, path) = slice();
    let attachment = Attachment::new(&path).unwrap();
    let mut account = attachment.account(1).unwrap();
    account.reserve(10).unwrap();
    let observer = Observer::open(dir.path()).unwrap();
    observer.set_limit(&SECOND, 12 * GRANULE_BYTES).unwrap();
    account.reserve(2).unwrap();
    observer.set_limit(&SECOND, 4 * GRANULE_BYTES).unwrap();
    assert!(account.reserve(1).is_err());
    account.release(8);
    assert!(account.reserve(1).is_err());
    account.release(1);
    account.reserve(1).unwrap();
    assert!(matches!(observer.set_limit(&[9; 16], 1), Err(HostError::UnknownGpu(_))));
}

#[test]
fn refusals_are_told_once_with_their_figures() {
    let (dir, path) = slice();
    let mut observer = Observer::open(dir.path()).unwrap();
    let attachment = Attachment::new(&path).unwrap();
    let mut account = attachment.account(1).unwrap();
    account.reserve(4).unwrap();
    let over = account.reserve(7).unwrap_err();
    account.refused(over, 7 * GRANULE_BYTES - 5);
    let [refusal] = observer.new_refusals().try_into().unwrap();
    assert_eq!((refusal.number, refusal.pid, refusal.gpu), (1, std::process::id(), 1));
    assert_eq!(
        (refusal.asked_bytes, refusal.used_bytes, refusal.limit_bytes),
        (7 * GRANULE_BYTES - 5, 4 * GRANULE_BYTES, 10 * GRANULE_BYTES)
    );
    assert!(observer.new_refusals().is_empty());
    for _ in 0..100 {
        account.refused(over, 1);
    }
    let numbers: Vec<u64> = observer.new_refusals().iter().map(|refusal| refusal.number).collect();
    assert_eq!(numbers, (38..=101).collect::<Vec<_>>(), "the newest are kept, and gaps show");
}

#[test]
fn memory_that_is_there_already_can_be_charged_over_the_limit() {
    let (_dir, path) = slice();
    let attachment = Attachment::new(&path).unwrap();
    let mut account = attachment.account(1).unwrap();
    account.reserve(9).unwrap();
    account.set_held(15);
    assert_eq!((account.held(), attachment.ledger().used(1)), (15, 15));
    assert!(account.reserve(1).is_err());
    account.set_held(3);
    account.reserve(7).unwrap();
}

#[test]
fn hidden_memory_keeps_others_out_and_shows() {
    let (dir, path) = slice();
    let attachment = Attachment::new(&path).unwrap();
    let mut account = attachment.account(1).unwrap();
    account.reserve(4).unwrap();
    let observer = Observer::open(dir.path()).unwrap();
    observer.set_hidden(&SECOND, 3 * GRANULE_BYTES - 5).unwrap();
    assert_eq!(account.reserve(4), Err(Over { used: 7, limit: 10, asked: 4 }));
    account.reserve(3).unwrap();
    assert_eq!(attachment.ledger().used(1), 10);
    let seen = observer.snapshot().unwrap().gpus[1].clone();
    assert_eq!((seen.counted_bytes, seen.hidden_bytes), (7 * GRANULE_BYTES, 3 * GRANULE_BYTES));
    // More than there is room for: nothing new, and nothing is taken from those who have it.
    observer.set_hidden(&SECOND, u64::MAX).unwrap();
    assert!(account.reserve(1).is_err());
    account.release(7);
    observer.set_hidden(&SECOND, 0).unwrap();
    account.reserve(10).unwrap();
}

#[test]
fn no_look_of_the_agent_opens_a_slice_that_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = c_path(dir.path());
    let limit = GpuLimit { uuid: FIRST, limit_bytes: 10 * GRANULE_BYTES, context_bytes: 0 };
    host::create(dir.path(), "lease-7", &[limit]).unwrap();
    let attachment = Attachment::new(&path).unwrap();
    let (agent, command) = (Observer::open(dir.path()).unwrap(), Observer::open(dir.path()).unwrap());
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for granules in (0..5).cycle().take_while(|_| !is_done.load(Ordering::Relaxed)) {
                agent.set_hidden(&FIRST, granules * GRANULE_BYTES).unwrap();
            }
        });
        let opened = (0..20_000).filter(|_| {
            command.close().unwrap();
            let opened = (0..3).any(|_| !command.is_closed().unwrap());
            command.reopen().unwrap();
            opened
        });
        let opened = opened.count();
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(opened, 0);
    });
    agent.set_hidden(&FIRST, GRANULE_BYTES).unwrap();
    assert_eq!(attachment.account(0).unwrap().reserve(10), Err(Over { used: 1, limit: 10, asked: 10 }));
    attachment.account(0).unwrap().reserve(9).unwrap();
}

#[test]
fn the_peak_of_all_processes_stays_after_they_ended() {
    let (dir, path) = slice();
    let observer = Observer::open(dir.path()).unwrap();
    let peaks = || -> Vec<u64> {
        observer.snapshot().unwrap().gpus.iter().map(|gpu| gpu.peak_bytes / GRANULE_BYTES).collect()
    };
    assert_eq!(peaks(), [0, 0]);
    let (one, other) = (Attachment::new(&path).unwrap(), Attachment::new(&path).unwrap());
    let (mut first, mut second) = (one.account(1).unwrap(), other.account(1).unwrap());
    first.reserve(4).unwrap();
    second.reserve(3).unwrap();
    observer.set_hidden(&SECOND, GRANULE_BYTES).unwrap();
    first.release(2);
    assert!(second.reserve(9).is_err());
    assert_eq!(peaks(), [0, 7], "what was refused was never in use");
    second.reserve(2).unwrap();
    assert_eq!(peaks(), [0, 8], "5 + 2 and the hidden one");
    drop((one, other));
    assert_eq!(peaks(), [0, 8]);
}

#[test]
fn files_that_are_not_ours_are_refused() {
    let (dir, path) = slice();
    let file = |name: &str| dir.path().join(name);
    let good = std::fs::read(file("limits")).unwrap();
    let open = |limits: &[u8]| {
        std::fs::write(file("limits"), limits).unwrap();
        Ledger::open(&path).err()
    };
    assert_eq!(open(&good), None);
    assert_eq!(open(b""), Some(OpenError::Truncated));
    assert_eq!(open(&good[..good.len() - 1]), Some(OpenError::Truncated));
    assert_eq!(open(&vec![0; good.len()]), Some(OpenError::Unknown));
    let mut newer = good.clone();
    newer[8] += 1;
    assert_eq!(open(&newer), Some(OpenError::Unknown));
    let mut too_many = good.clone();
    too_many[12] = 17;
    assert_eq!(open(&too_many), Some(OpenError::Unknown));
    std::fs::remove_file(file("limits")).unwrap();
    assert_eq!(Ledger::open(&path).err(), Some(OpenError::Io(libc::ENOENT)));
}

#[test]
fn what_can_not_be_written_down_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let gpu = GpuLimit { uuid: FIRST, limit_bytes: 0, context_bytes: 0 };
    assert!(matches!(host::create(dir.path(), "x", &[gpu; 17]), Err(HostError::TooManyGpus(17))));
    assert!(matches!(host::create(dir.path(), &"x".repeat(65), &[gpu]), Err(HostError::LeaseTooLong(_))));
    assert!(matches!(host::create(Path::new("/no/such/place"), "x", &[gpu]), Err(HostError::Io(..))));
    assert_eq!(host::parse_uuid("GPU-01010101-0101-0101-0101-010101010101"), Some(FIRST));
    assert_eq!(host::parse_uuid("MIG-01010101-0101-0101-0101-0101010101"), None);
    assert_eq!(host::parse_uuid("GPU-0101010101010101010101010101010101"), None);
}

proptest! {
    /// One process's operations in any order: the region agrees with plain arithmetic.
    #[test]
    fn agrees_with_arithmetic(operations in prop::collection::vec((any::<bool>(), 0_u32..60), 1..200)) {
        let (_dir, path) = slice();
        let attachment = Attachment::new(&path).unwrap();
        let mut account = attachment.account(0).unwrap();
        let mut held = 0;
        for (take, granules) in operations {
            if take {
                let fits = held + granules <= 100;
                prop_assert_eq!(account.reserve(granules).is_ok(), fits);
                held += if fits { granules } else { 0 };
            } else {
                account.release(granules);
                held -= granules.min(held);
            }
            prop_assert_eq!((account.held(), attachment.ledger().used(0)), (held, held));
        }
    }
}
