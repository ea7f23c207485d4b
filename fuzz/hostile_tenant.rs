//! A tenant that reads each of its steps from the input: it writes into `usage`, whose layout it knows, truncates the
//! file, and continues to allocate. Shared by the fuzzer and by the property test in `crates/tenant/ledger/tests/hostile.rs`.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use cantle_ledger::host::{self, GpuLimit, Observer};
use cantle_ledger::{Attachment, GRANULE_BYTES, OpenError};

const GPU: [u8; 16] = [7; 16];
const LIMIT: u32 = 10;
const STEP_BYTES: usize = 12;
/// Parts of `usage`.
const HEAD_BYTES: u64 = 64;
const WORDS_BYTES: u64 = 16 * 64;
const SLOTS_AT: u64 = HEAD_BYTES + WORDS_BYTES + 64 * 64;

/// One slice and its neighbor, each with its agent.
struct Machine {
    _dirs: [tempfile::TempDir; 2],
    path: CString,
    usage: File,
    fresh: Vec<u8>,
    agent: Observer,
    neighbor: Observer,
}

impl Machine {
    fn new() -> Self {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let gpu = GpuLimit { uuid: GPU, limit_bytes: u64::from(LIMIT) * GRANULE_BYTES, context_bytes: 0 };
        dirs.iter().for_each(|dir| host::create(dir.path(), "lease-7", &[gpu]).unwrap());
        let usage = dirs[0].path().join("usage");
        Self {
            path: CString::new(dirs[0].path().as_os_str().as_bytes()).unwrap(),
            fresh: fs::read(&usage).unwrap(),
            usage: OpenOptions::new().write(true).open(&usage).unwrap(),
            agent: Observer::open(dirs[0].path()).unwrap(),
            neighbor: Observer::open(dirs[1].path()).unwrap(),
            _dirs: dirs,
        }
    }

    fn reset(&self) {
        self.usage.set_len(self.fresh.len() as u64).unwrap();
        self.usage.write_all_at(&self.fresh, 0).unwrap();
    }

    /// The agent's periodic work: it must come through, and the limit must stand.
    fn agent_looks_on(&mut self, tenant_lives: bool) {
        self.agent.new_refusals();
        assert!(self.agent.is_in_use() || !tenant_lives, "the lease of a living process would end");
        if let Ok(now) = self.agent.snapshot() {
            assert_eq!((now.lease.as_str(), now.gpus.len()), ("lease-7", 1));
            assert_eq!(now.gpus[0].limit_bytes, u64::from(LIMIT) * GRANULE_BYTES, "the limit was moved");
        }
        let neighbor = self.neighbor.snapshot().unwrap();
        assert_eq!(
            (neighbor.gpus[0].used_bytes(), neighbor.processes.len()),
            (0, 0),
            "the neighbor was hurt"
        );
    }

    /// Somewhere in the file; most places of it are slots that nobody uses, so those that matter have a choice of their own.
    fn place(&self, part: u8, at: u64) -> u64 {
        match part {
            0 => at % HEAD_BYTES,
            1 => HEAD_BYTES + at % WORDS_BYTES,
            2 => SLOTS_AT + at % (4 << 10),
            _ => at % self.fresh.len() as u64,
        }
    }

    /// One step of the tenant. Truncating a mapped file kills the process that has mapped it; so that is done only while
    /// detached.
    fn step(&self, step: &[u8; STEP_BYTES], attached: Option<&Attachment>) {
        let [what, a, b, c, value @ ..] = *step;
        let at = self.place(what >> 6, u64::from(u32::from_le_bytes([a, b, c, 0])));
        match (what % 8, attached.and_then(|attached| attached.account(0))) {
            (0, Some(mut account)) => {
                let asked = u32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                if account.reserve(asked).is_ok() {
                    assert!(asked <= LIMIT, "{asked} granules were reserved at once");
                }
            }
            (1, Some(mut account)) => account.release(u32::from(value[0])),
            (2, Some(mut account)) => account.set_held(u32::from(value[0] % 16)),
            (3, Some(account)) => {
                let returned = attached.map_or(0, |attached| attached.ledger().reap());
                std::hint::black_box((returned, account.held()));
            }
            (4, None) => self.usage.set_len(at).unwrap(),
            (5, _) => self.usage.write_all_at(&[value[0]], at).unwrap(),
            (6, _) => {
                let rest = value.repeat((self.fresh.len() - at as usize) / value.len());
                self.usage.write_all_at(&rest, at).unwrap();
            }
            _ => {
                let at = at.min(self.fresh.len() as u64 - 8);
                self.usage.write_all_at(&value, at / 8 * 8).unwrap();
            }
        }
    }

    fn run(&mut self, steps: &[u8]) {
        self.reset();
        let (before, after) = steps.split_at(steps.len() / STEP_BYTES / 2 * STEP_BYTES);
        before.as_chunks().0.iter().for_each(|step| self.step(step, None));
        self.agent_looks_on(false);
        let attached = match Attachment::new(&self.path) {
            Ok(attached) => attached,
            Err(OpenError::Truncated | OpenError::Unknown | OpenError::Full) => return,
            Err(error) => panic!("{error:?}"),
        };
        assert!(attached.account(0).unwrap().reserve(LIMIT + 1).is_err(), "more than the limit at once");
        for step in after.as_chunks().0 {
            self.step(step, Some(&attached));
        }
        self.agent_looks_on(true);
        assert!(attached.account(0).unwrap().reserve(LIMIT + 1).is_err(), "more than the limit at once");
    }
}

/// Lives through one input. The next one does not find what it leaves behind.
pub(crate) fn live(steps: &[u8]) {
    thread_local! {
        static MACHINE: std::cell::RefCell<Machine> = std::cell::RefCell::new(Machine::new());
    }
    MACHINE.with_borrow_mut(|machine| machine.run(steps));
}
