//! Real processes on a real region: killed at random, racing at the limit, forking. `CANTLE_STRESS_KILLS` makes the first longer.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cantle_ledger::host::{self, GpuLimit, Observer};
use cantle_ledger::{Attachment, GRANULE_BYTES, Ledger, Over};

const UUID: [u8; 16] = *b"a GPU for a test";
const LIMIT: u64 = 64;
const PROCESSES: usize = 8;

fn slice(limit: u64) -> (tempfile::TempDir, CString) {
    let dir = tempfile::tempdir().unwrap();
    let gpu = GpuLimit { uuid: UUID, limit_bytes: limit * GRANULE_BYTES, context_bytes: 0 };
    host::create(dir.path(), "a-lease", &[gpu]).unwrap();
    let path = CString::new(dir.path().as_os_str().as_bytes()).unwrap();
    (dir, path)
}

/// The memory of live processes, as the agent sees it.
fn used(dir: &Path) -> u64 {
    Observer::open(dir).unwrap().snapshot().unwrap().gpus[0].used_bytes() / GRANULE_BYTES
}

/// The charge of live and dead processes.
fn charged(dir: &CString) -> u64 {
    Ledger::open(dir).unwrap().used(0).into()
}

fn reap(dir: &CString) -> u64 {
    Ledger::open(dir).unwrap().reap().into()
}

/// Runs `work` in a child process, which must not allocate: the test harness has threads.
fn spawn(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child has a copy of this thread only; `work` neither allocates nor takes locks that another thread may have
    // held (see above), and `_exit` runs nothing of the harness.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            work();
            libc::_exit(0);
        }
        pid
    }
}

fn wait(pid: libc::pid_t) -> libc::c_int {
    let mut status = 0;
    // SAFETY: `waitpid` writes to `status`, a live local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

fn kill(pid: libc::pid_t) {
    // SAFETY: no pointers; `pid` is a child that has not been waited for, so it names no other process.
    unsafe { libc::kill(pid, libc::SIGKILL) };
}

fn stop(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `waitpid` writes to `status`, a live local; `pid` is a child that has not been waited for.
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
        libc::waitpid(pid, &raw mut status, libc::WUNTRACED);
    }
}

/// Memory that children share with the test.
fn shared(count: usize) -> &'static [AtomicU64] {
    // SAFETY: a fresh mapping of `count * 8` zero bytes that begins a page and is never unmapped; zero is a valid `AtomicU64`.
    unsafe {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), count * 8, protection, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        std::slice::from_raw_parts(at.cast(), count)
    }
}

/// A generator that repeats its sequence.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Takes and gives forever; `progress` counts.
fn work(dir: &CString, seed: u64, progress: &AtomicU64) {
    let Ok(attachment) = Attachment::new(dir) else { return };
    let Some(mut account) = attachment.account(0) else { return };
    let mut random = Numbers(seed);
    loop {
        let granules = random.below(24) as u32 + 1;
        if account.reserve(granules).is_ok() && random.below(4) > 0 {
            account.release(granules);
        } else {
            account.release(account.held());
        }
        progress.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn nothing_is_lost_however_often_processes_are_killed() {
    let kills =
        std::env::var_os("CANTLE_STRESS_KILLS").map_or(300, |kills| kills.to_str().unwrap().parse().unwrap());
    let (dir, path) = slice(LIMIT);
    let progress = shared(PROCESSES);
    let start = |index: usize, seed: u64| spawn(|| work(&path, seed, &progress[index]));
    let mut children: Vec<_> = (0..PROCESSES).map(|index| start(index, index as u64)).collect();
    let mut random = Numbers(42);
    let mut returned = 0;
    for round in 0..kills {
        std::thread::sleep(Duration::from_micros(random.below(2_000)));
        let victim = random.below(PROCESSES as u64) as usize;
        kill(children[victim]);
        wait(children[victim]);
        assert!(charged(&path) <= LIMIT);
        if round % 3 == 0 {
            returned += reap(&path);
        }
        children[victim] = start(victim, round + 100);
    }
    // Every one of them still gets on: no process waits for the dead.
    let before: Vec<u64> = progress.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let hangs = || {
        let at = |index: &usize| progress[*index].load(Ordering::Relaxed) == before[*index];
        (0..PROCESSES).filter(at).collect::<Vec<_>>()
    };
    for _ in 0..6_000 {
        if hangs().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(hangs().is_empty(), "processes that hang: {:?}", hangs());
    // All are stopped before the first dies: a running one would return the memory of the dead.
    for &child in &children {
        stop(child);
    }
    for child in children {
        kill(child);
        wait(child);
    }
    assert_eq!(used(dir.path()), 0, "the agent counts the dead");
    returned += reap(&path);
    assert!(returned > 0, "no dead process held anything, so this test shows nothing");
    assert_eq!(charged(&path), 0, "granules were lost");
}

#[test]
fn sixty_four_processes_racing_do_not_get_past_the_limit() {
    const RACERS: usize = 64;
    let (_dir, path) = slice(LIMIT);
    let tally = shared(3);
    let [holding, highest, go] = tally else { unreachable!() };
    let race = || {
        let Ok(attachment) = Attachment::new(&path) else { return };
        let Some(mut account) = attachment.account(0) else { return };
        while go.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..200 {
            if account.reserve(3).is_ok() {
                // The test's own count, outside the ledger. Others get their turn while this one holds.
                highest.fetch_max(holding.fetch_add(3, Ordering::SeqCst) + 3, Ordering::SeqCst);
                std::thread::yield_now();
                holding.fetch_sub(3, Ordering::SeqCst);
                account.release(3);
            }
        }
    };
    let children: Vec<_> = (0..RACERS).map(|_| spawn(race)).collect();
    go.store(1, Ordering::Release);
    for child in children {
        assert_eq!(wait(child), 0);
    }
    let highest = highest.load(Ordering::SeqCst);
    assert!(highest <= LIMIT, "{highest} of {LIMIT} granules were held at once");
    assert!(highest > LIMIT / 2, "they did not race: at most {highest} were held at once");
    assert_eq!(charged(&path), 0);
}

#[test]
fn a_dead_process_makes_room_for_one_that_asks() {
    let (_dir, path) = slice(LIMIT);
    let dead = spawn(|| {
        let attachment = Attachment::new(&path).unwrap();
        attachment.account(0).unwrap().reserve(LIMIT as u32).unwrap();
    });
    assert_eq!(wait(dead), 0);
    let attachment = Attachment::new(&path).unwrap();
    let mut account = attachment.account(0).unwrap();
    account.reserve(LIMIT as u32).unwrap();
    assert_eq!(account.reserve(1), Err(Over { used: LIMIT as u32, limit: LIMIT as u32, asked: 1 }));
}

#[test]
fn a_process_that_closes_every_descriptor_keeps_what_it_holds() {
    let (_dir, path) = slice(LIMIT);
    let [closed, done] = shared(2) else { unreachable!() };
    let child = spawn(|| {
        let attachment = Attachment::new(&path).unwrap();
        let mut account = attachment.account(0).unwrap();
        account.reserve(10).unwrap();
        for fd in 3..256 {
            // SAFETY: no pointers; the child ends by `_exit` and drops none of the values that own these descriptors.
            unsafe { libc::close(fd) };
        }
        closed.store(1, Ordering::Release);
        while done.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
    });
    while closed.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(reap(&path), 0, "a living process was taken for dead");
    assert_eq!(charged(&path), 10);
    done.store(1, Ordering::Release);
    assert_eq!(wait(child), 0);
    assert_eq!(reap(&path), 10);
}

#[test]
fn exec_ends_what_the_program_before_it_held() {
    let (_dir, path) = slice(LIMIT);
    let child = spawn(|| {
        let attachment = Attachment::new(&path).unwrap();
        attachment.account(0).unwrap().reserve(10).unwrap();
        let program = [c"sleep".as_ptr(), c"600".as_ptr(), std::ptr::null()];
        // SAFETY: `program` is an array of NUL-terminated strings that ends with a null pointer; both outlive the call.
        unsafe { libc::execvp(program[0], program.as_ptr()) };
    });
    let mut returned = 0;
    for _ in 0..12_000 {
        returned += reap(&path);
        if returned > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(returned, 10);
    kill(child);
    wait(child);
}

#[test]
fn a_child_that_outlives_its_parent_does_not_keep_the_parents_memory() {
    let (_dir, path) = slice(LIMIT);
    let [release] = shared(1) else { unreachable!() };
    let parent = spawn(|| {
        let attachment = Attachment::new(&path).unwrap();
        attachment.account(0).unwrap().reserve(10).unwrap();
        // The grandchild: forked after its parent attached, and still there when that is gone.
        // SAFETY: the forking process has one thread, and its child only reads shared memory until it leaves by `_exit`.
        if unsafe { libc::fork() } == 0 {
            while release.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(wait(parent), 0);
    assert_eq!(reap(&path), 10);
    release.store(1, Ordering::Release);
}
