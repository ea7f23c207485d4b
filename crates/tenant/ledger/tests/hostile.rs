//! A tenant that writes anything to its `usage` file. It may damage its own accounting and its own processes, but never the
//! agent's reports and actions, or its limit.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cantle_ledger::compute::{self, GatePage, GrantTerms, LaunchWatch};
use cantle_ledger::host::{self, GpuLimit, Grown, HostError, Observer};
use cantle_ledger::{Attachment, GRANULE_BYTES, Ledger, OpenError};
use proptest::prelude::*;

const GPU: [u8; 16] = [7; 16];
const LIMIT: u64 = 10;
/// Set in a process that this program starts to be the tenant's.
const HOLDER: &str = "CANTLE_TEST_HOLDER";

struct Slice {
    dir: tempfile::TempDir,
}

impl Slice {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let gpu = GpuLimit { uuid: GPU, limit_bytes: LIMIT * GRANULE_BYTES, context_bytes: 0 };
        host::create(dir.path(), "lease-7", &[gpu]).unwrap();
        Self { dir }
    }

    fn usage(&self) -> PathBuf {
        self.dir.path().join("usage")
    }

    fn c_path(&self) -> CString {
        c_path(self.dir.path())
    }

    fn observer(&self) -> Observer {
        Observer::open(self.dir.path()).unwrap()
    }

    /// Starts a process that holds 4 granules; more on each line that it is sent.
    fn holder(&self) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["a_process_of_the_tenant", "--exact", "--ignored", "--nocapture"]);
        command
            .env(HOLDER, self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let observer = self.observer();
        wait_until("it holds its memory", || {
            observer.snapshot().is_ok_and(|now| now.gpus[0].counted_bytes == 4 * GRANULE_BYTES)
        });
        child
    }
}

fn c_path(dir: &Path) -> CString {
    CString::new(dir.as_os_str().as_bytes()).unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

#[test]
#[ignore = "no test: the process that Slice::holder starts"]
fn a_process_of_the_tenant() {
    let Some(dir) = std::env::var_os(HOLDER) else { return };
    let attachment = Attachment::new(&c_path(Path::new(&dir))).unwrap();
    let mut account = attachment.account(0).unwrap();
    account.reserve(4).unwrap();
    for _ in std::io::stdin().lines() {
        let _ = account.reserve(1);
    }
}

/// The attacks of a tenant on its file while its process uses it.
fn spoil(how: &str, usage: &Path) {
    let file = OpenOptions::new().write(true).open(usage).unwrap();
    let length = file.metadata().unwrap().len();
    match how {
        "truncated" => file.set_len(0).unwrap(),
        "shortened" => file.set_len(4096).unwrap(),
        "zeroed" => file.write_all_at(&vec![0; length as usize], 0).unwrap(),
        "all ones" => file.write_all_at(&vec![0xFF; length as usize], 0).unwrap(),
        "an old version" => file.write_all_at(&1_u32.to_ne_bytes(), 8).unwrap(),
        "cut and stretched" => {
            file.set_len(0).unwrap();
            file.set_len(length).unwrap();
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_spoiled_file_hurts_only_its_owner() {
    for how in ["truncated", "shortened", "zeroed", "all ones", "an old version", "cut and stretched"] {
        let slice = Slice::new();
        let (mut tenant, mut agent) = (slice.holder(), slice.observer());
        spoil(how, &slice.usage());
        // The region is not accepted as valid, unless only numbers in it are wrong; and the limit holds.
        if let Ok(now) = agent.snapshot() {
            assert_eq!(now.gpus[0].limit_bytes, LIMIT * GRANULE_BYTES, "{how}");
        }
        agent.new_refusals();
        agent.set_hidden(&GPU, 0).unwrap();
        let newcomer = Attachment::new(&slice.c_path());
        assert!(matches!(newcomer, Err(OpenError::Truncated | OpenError::Unknown)), "{how}: {newcomer:?}");
        // The lease lasts as long as its process, and no longer.
        assert!(agent.is_in_use(), "{how}: its process lives");
        drop(tenant.stdin.take());
        let status = tenant.wait().unwrap();
        assert!(status.success() || status.signal() == Some(libc::SIGBUS), "{how}: {status}");
        assert!(!agent.is_in_use(), "{how}: its process is gone");
        agent.set_limit(&GPU, 0).unwrap();
    }
}

#[test]
fn a_process_whose_file_is_cut_short_ends_alone() {
    let (slice, neighbor) = (Slice::new(), Slice::new());
    let (mut tenant, mut honest) = (slice.holder(), neighbor.holder());
    spoil("truncated", &slice.usage());
    std::io::Write::write_all(&mut tenant.stdin.take().unwrap(), b"more\n").unwrap();
    assert_eq!(tenant.wait().unwrap().signal(), Some(libc::SIGBUS));
    assert!(honest.try_wait().unwrap().is_none());
    assert_eq!(neighbor.observer().snapshot().unwrap().gpus[0].counted_bytes, 4 * GRANULE_BYTES);
    drop(honest.stdin.take());
    assert!(honest.wait().unwrap().success());
}

#[test]
fn a_replaced_or_deleted_file_leads_nowhere() {
    let slice = Slice::new();
    let mut tenant = slice.holder();
    let agent = slice.observer();
    // The file without a protecting mount: the agent keeps to the file that it made.
    fs::remove_file(slice.usage()).unwrap();
    assert!(agent.is_in_use());
    assert_eq!(Ledger::open(&slice.c_path()).err(), Some(OpenError::Io(libc::ENOENT)));
    fs::write(slice.usage(), b"not a region").unwrap();
    assert_eq!(Ledger::open(&slice.c_path()).err(), Some(OpenError::Truncated));
    assert!(matches!(slice.observer().snapshot(), Err(HostError::Open(_, OpenError::Truncated))));
    drop(tenant.stdin.take());
    assert!(tenant.wait().unwrap().success());
    assert!(!agent.is_in_use());
}

/// Offsets in the file: `slots_touched` in the head, and the first two fields of slot 0 behind it.
const SLOTS_TOUCHED: u64 = 12;
const SLOT_0: u64 = 64 + 16 * 64 + 64 * 64;

#[test]
fn a_forged_slot_does_not_keep_a_lease() {
    let slice = Slice::new();
    // Process 1 lives forever; so the tenant enters it as the owner of a slot.
    let stat = fs::read_to_string("/proc/1/stat").unwrap();
    let start_ticks: u64 =
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let file = OpenOptions::new().write(true).open(slice.usage()).unwrap();
    file.write_all_at(&1_u32.to_ne_bytes(), SLOTS_TOUCHED).unwrap();
    file.write_all_at(&1_u64.to_ne_bytes(), SLOT_0).unwrap();
    file.write_all_at(&start_ticks.to_ne_bytes(), SLOT_0 + 8).unwrap();
    let now = slice.observer().snapshot().unwrap();
    let [forged] = now.processes.as_slice() else { panic!("the forgery must be seen: {now:?}") };
    assert_eq!((forged.pid, forged.alive), (1, false));
    assert!(!slice.observer().is_in_use());
}

#[test]
fn the_region_is_laid_out_as_these_tests_think() {
    let slice = Slice::new();
    let _attached = Attachment::new(&slice.c_path()).unwrap();
    let bytes = fs::read(slice.usage()).unwrap();
    let at = |offset: u64| u32::from_ne_bytes(bytes[offset as usize..][..4].try_into().unwrap());
    assert_eq!((at(SLOTS_TOUCHED), at(SLOT_0)), (1, std::process::id()));
}

#[path = "../../../../fuzz/hostile_tenant.rs"]
mod hostile_tenant;

/// Steps of the tenant, with a liking for values that matter.
fn steps() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![any::<[u8; 8]>(), (0..64_u64).prop_map(u64::to_le_bytes), Just([0xFF; 8])];
    let step =
        (any::<[u8; 4]>(), value).prop_map(|(what_and_where, value)| [&what_and_where[..], &value].concat());
    prop::collection::vec(step, 0..100).prop_map(|steps| steps.concat())
}

proptest! {
    /// The short form of `fuzz/run.sh`: nothing crashes, hangs, moves a limit, or admits more than the limit at once.
    #[test]
    fn hostile_steps_do_no_harm(steps in steps()) {
        hostile_tenant::live(&steps);
    }
}

/// A lease of this process on a file, by a descriptor that stays open.
fn lease_on(path: &Path) -> std::io::Result<fs::File> {
    let file = fs::File::open(path)?;
    // SAFETY: no pointers. The break of a lease sends SIGIO, which would end the test.
    let status = unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLEASE, libc::F_RDLCK)
    };
    if status == 0 { Ok(file) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn a_file_lease_delays_nobody() {
    let slice = Slice::new();
    let limits = slice.dir.path().join("limits");
    {
        // A program that has the slice open for writing blocks the leases.
        let agent = slice.observer();
        assert_eq!(lease_on(&limits).unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        agent.set_hidden(&GPU, GRANULE_BYTES).unwrap();
    }
    let _lease = lease_on(&limits).unwrap();
    let mut control = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(control.write(true), libc::O_NONBLOCK);
    assert_eq!(control.open(&limits).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the lease counts");
    let agent = slice.observer();
    assert_eq!(agent.snapshot().unwrap().gpus[0].hidden_bytes, GRANULE_BYTES);
    assert!(agent.set_hidden(&GPU, 0).is_err(), "one that waits until the lease ends can write");
}

#[test]
fn limits_that_an_accomplice_cuts_short_end_no_agent() {
    let slice = Slice::new();
    let agent = slice.observer();
    spoil("truncated", &slice.dir.path().join("limits"));
    assert!(matches!(agent.snapshot(), Err(HostError::Open(_, OpenError::Truncated))));
    assert!(agent.set_hidden(&GPU, 0).is_err() && !agent.is_in_use());
}

#[test]
fn a_region_whose_files_were_changed_is_not_intact() {
    for name in ["usage", "limits"] {
        let slice = Slice::new();
        let (path, known) = (slice.dir.path().join(name), slice.observer());
        let length = fs::metadata(&path).unwrap().len();
        let set_len = |bytes| OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        assert!(known.is_intact());
        for wrong in [length + 1, length - 1] {
            set_len(wrong);
            assert!(!known.is_intact(), "{name} has {wrong} bytes");
            set_len(length);
        }
        assert!(known.is_intact());
        let other = slice.dir.path().join("other");
        fs::copy(&path, &other).unwrap();
        fs::rename(&other, &path).unwrap();
        assert!(!known.is_intact(), "another file has taken the place of {name}");
        let known = slice.observer();
        assert!(known.is_intact());
        fs::remove_file(&path).unwrap();
        assert!(!known.is_intact(), "{name} is gone");
    }
}

#[test]
fn a_file_that_grows_is_cut_back() {
    let slice = Slice::new();
    let _arbiter = with_compute(&slice);
    assert_eq!(host::cut_back(slice.dir.path()), Grown::default());
    for (name, is_tasks) in [("limits", false), ("usage", true), ("grant", false), ("launches", true)] {
        let path = slice.dir.path().join(name);
        let length = fs::metadata(&path).unwrap().len();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[1; 4096], length + (1 << 20)).unwrap();
        let grown = Some(length + (1 << 20) + 4096);
        let (by_task_bytes, by_others_bytes) = if is_tasks { (grown, None) } else { (None, grown) };
        assert_eq!(host::cut_back(slice.dir.path()), Grown { by_task_bytes, by_others_bytes }, "{name}");
        assert_eq!(fs::metadata(&path).unwrap().len(), length, "{name}");
    }
    assert!(slice.observer().snapshot().is_ok(), "its accounting is as it was");
}

const TERMS: GrantTerms = GrantTerms { uuid: GPU, mode: 1, request_milli: 500, limit_milli: None };

fn with_compute(slice: &Slice) -> LaunchWatch {
    compute::create_grant(slice.dir.path(), &TERMS).unwrap();
    LaunchWatch::open(slice.dir.path(), TERMS).unwrap()
}

#[test]
fn an_arbiter_that_finds_spoiled_pages_writes_them_again() {
    for file in ["grant", "launches"] {
        for how in ["truncated", "shortened", "zeroed", "all ones", "cut and stretched"] {
            let slice = Slice::new();
            compute::create_grant(slice.dir.path(), &TERMS).unwrap();
            spoil(how, &slice.dir.path().join(file));
            let mut arbiter = LaunchWatch::open(slice.dir.path(), TERMS).unwrap();
            arbiter.observe(1_000);
            arbiter.reap();
            arbiter.announce(1_000_000, true, 200_000, 5, false);
            let (terms, granted_ns, ..) = compute::read_grant(slice.dir.path()).unwrap();
            assert_eq!((terms, granted_ns), (TERMS, 5), "{file} {how}");
        }
    }
}

#[test]
fn nothing_that_happens_to_its_pages_ends_an_arbiter() {
    for file in ["grant", "launches"] {
        for how in ["truncated", "shortened", "zeroed", "all ones", "cut and stretched"] {
            let slice = Slice::new();
            let mut arbiter = with_compute(&slice);
            spoil(how, &slice.dir.path().join(file));
            arbiter.observe(1_000);
            arbiter.reap();
            arbiter.announce(1_000_000, true, 200_000, 5, false);
            let (terms, granted_ns, ..) = compute::read_grant(slice.dir.path()).unwrap();
            assert_eq!((terms.request_milli, granted_ns), (500, 5), "{how}: its own words are there again");
        }
    }
}

#[test]
fn a_thread_that_waits_at_a_gate_is_woken() {
    let slice = Slice::new();
    let mut arbiter = with_compute(&slice);
    arbiter.announce(1_000_000, false, 200_000, 0, false);
    let page = GatePage::open(&c_path(slice.dir.path())).unwrap();
    let closed = page.word();
    let waiter = std::thread::spawn(move || {
        let a_minute = libc::timespec { tv_sec: 60, tv_nsec: 0 };
        // SAFETY: the word is in the mapping of `page`, which lives until the thread ends; the time is a live local.
        let status = unsafe {
            libc::syscall(
                libc::SYS_futex,
                page.word_cell().as_ptr(),
                libc::FUTEX_WAIT,
                closed,
                &raw const a_minute,
            )
        };
        (status, page.word())
    });
    std::thread::sleep(std::time::Duration::from_millis(200));
    arbiter.announce(2_000_000, true, 200_000, 0, false);
    assert_eq!(waiter.join().unwrap(), (0, closed + 1));
}

#[test]
fn a_link_in_the_place_of_a_file_leads_nowhere() {
    let (slice, elsewhere) = (Slice::new(), Slice::new());
    for file in ["limits", "usage"] {
        let path = slice.dir.path().join(file);
        fs::rename(&path, path.with_extension("away")).unwrap();
        std::os::unix::fs::symlink(elsewhere.dir.path().join(file), &path).unwrap();
        let opened = Observer::open(slice.dir.path());
        assert!(matches!(opened, Err(HostError::Open(_, OpenError::Io(libc::ELOOP)))), "{file}: {opened:?}");
        fs::rename(path.with_extension("away"), &path).unwrap();
    }
}
