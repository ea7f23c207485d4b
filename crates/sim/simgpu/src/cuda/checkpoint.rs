//! Checkpoints of processes: `cuCheckpointProcess*`, as of driver 570, with GPUs that change from 580 on.
//!
//! The caller gives orders (`state::checkpoint`), and a thread of the process carries them out. From the lock to the unlocking, this
//! thread holds the locks of the process, so that all of its calls block, and nothing of this costs a call anything at other times.
//!
//! Where NVIDIA's documentation leaves a case open, the simulation takes the worst one: the caller must have called
//! `cuInit`; what cannot be checkpointed (managed memory, and memory of other processes before 610) is noticed when it
//! is too late, and the process has failed; and a process whose memory found no room on its return never runs again
//! (cuda-checkpoint issue 44). Custom storage is not supported.

use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::address_space::Kind;
use super::session::{Inner, Session, initialized};
use super::timeline::{Lines, timeline};
use super::{CuError, CuResult, driver_api};
use crate::GRANULE_BYTES;
use crate::ffi::{In, Out};
use crate::identity::gpu_uuid_bytes;
use crate::signals::SignalsBlocked;
use crate::spec::MAX_DEVICES;
use crate::state::{Command, ProcessState, Registration, Request, Sim, StateGuard, Unparked, WHOLE_GPU};
use crate::time::now_ns;

/// The first drivers, by their CUDA version: with these functions, with GPUs that change, with memory of other processes.
const FROM: i32 = 12080;
const PAIRS_FROM: i32 = 13000;
const IPC_FROM: i32 = 13030;

const OPERATING_SYSTEM: CuError = CuError(304);
const NOT_PERMITTED: CuError = CuError(800);

/// How often a lock is tried while calls or work are under way.
const LOOK: Duration = Duration::from_micros(200);
const STACK_BYTES: usize = 256 << 10;

/// This process is locked, or is about to be: calls that take no lock wait here too.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);
/// It has shared memory or events with another process.
static HAS_SHARED: AtomicBool = AtomicBool::new(false);

/// Whether calls have to wait.
#[inline]
pub(super) fn is_locked() -> bool {
    IS_LOCKED.load(Relaxed)
}

/// The process shares something with another one.
pub(super) fn shares() {
    HAS_SHARED.store(true, Relaxed);
}

/// A thread for the orders to this process, which has the slot.
pub(super) fn serve(session: &'static Session, slot: usize) {
    let _signals = SignalsBlocked::new();
    let serving = move || Service { session, held: None, is_broken: false }.run(slot);
    // Without it, orders stay without an answer until the process ends, as with a driver that hangs.
    let _ =
        std::thread::Builder::new().name("cuda-checkpoint".to_owned()).stack_size(STACK_BYTES).spawn(serving);
}

struct Service {
    session: &'static Session,
    /// The locks of the process, while it is not running.
    held: Option<(MutexGuard<'static, Inner>, Option<MutexGuard<'static, Lines>>)>,
    /// Its memory found no room when it was to come back.
    is_broken: bool,
}

impl Service {
    fn run(mut self, slot: usize) {
        let orders = self.session.sim.orders_of(slot);
        // SAFETY: `gettid` takes no arguments and has no preconditions.
        orders.thread.store(unsafe { libc::syscall(libc::SYS_gettid) } as u32, Release);
        loop {
            let request = orders.next();
            orders.finish(super::code(self.carry_out(&request)));
        }
    }

    fn carry_out(&mut self, request: &Request) -> CuResult {
        let state = self.state();
        match request.command {
            Command::Lock if state == ProcessState::RUNNING => self.lock(request.timeout_ms),
            Command::Checkpoint if state == ProcessState::LOCKED => self.checkpoint(request),
            Command::Restore if state == ProcessState::CHECKPOINTED => self.restore(request),
            Command::Restore if self.is_broken => Err(OPERATING_SYSTEM),
            Command::Unlock if state == ProcessState::LOCKED => {
                self.set_state(ProcessState::RUNNING);
                IS_LOCKED.store(false, Release);
                self.held = None;
                Ok(())
            }
            _ => Err(CuError::ILLEGAL_STATE),
        }
    }

    fn state(&self) -> ProcessState {
        let registration = self.held.as_ref().and_then(|(inner, _)| inner.registration());
        registration.map_or(ProcessState::RUNNING, Registration::process_state)
    }

    fn set_state(&self, state: ProcessState) {
        if let Some(registration) = self.held.as_ref().and_then(|(inner, _)| inner.registration()) {
            registration.set_process_state(state);
        }
    }

    /// Waits for the calls that are under way, and for the work.
    fn lock(&mut self, timeout_ms: u32) -> CuResult {
        let end_ns = now_ns() + u64::from(timeout_ms) * 1_000_000;
        let is_over = || timeout_ms > 0 && now_ns() >= end_ns;
        let inner = loop {
            if let Some(inner) = self.session.try_lock() {
                break inner;
            }
            if is_over() {
                return Err(CuError::NOT_READY);
            }
            std::thread::sleep(LOOK);
        };
        if inner.accounts.iter().any(|account| account.domain != WHOLE_GPU) {
            return Err(CuError::NOT_SUPPORTED);
        }
        IS_LOCKED.store(true, Release);
        loop {
            let lines = match timeline() {
                None => Some(None),
                Some(timeline) => timeline.lock_idle().map(Some),
            };
            if let Some(lines) = lines {
                self.held = Some((inner, lines));
                self.set_state(ProcessState::LOCKED);
                return Ok(());
            }
            if is_over() {
                IS_LOCKED.store(false, Release);
                return Err(CuError::NOT_READY);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn checkpoint(&mut self, request: &Request) -> CuResult {
        let Some((inner, _)) = &self.held else { return Err(CuError::ILLEGAL_STATE) };
        let Some(registration) = inner.registration() else { return Err(CuError::ILLEGAL_STATE) };
        let shares = HAS_SHARED.load(Relaxed) && self.session.sim.lock().cuda_version() < IPC_FROM;
        if shares || inner.addresses.has(Kind::Managed) {
            registration.set_process_state(ProcessState::FAILED);
            return Err(CuError::NOT_SUPPORTED);
        }
        transfer(registration.granules_to_park(), request);
        let host = if request.host_mib == 0 {
            u64::MAX
        } else {
            (u64::from(request.host_mib) << 20) / GRANULE_BYTES
        };
        registration.park(host).map_err(|error| {
            registration.set_process_state(ProcessState::FAILED);
            error.into()
        })
    }

    fn restore(&mut self, request: &Request) -> CuResult {
        let Some((inner, lines)) = &mut self.held else { return Err(CuError::ILLEGAL_STATE) };
        let Some(registration) = inner.registration() else { return Err(CuError::ILLEGAL_STATE) };
        if registration.unpark(&request.places)? == Unparked::OutOfMemory {
            registration.set_process_state(ProcessState::FAILED);
            self.is_broken = true;
            return Err(CuError::OUT_OF_MEMORY);
        }
        transfer(registration.granules_to_park(), request);
        let mut moved = false;
        for (account, device) in inner.accounts.iter_mut().zip(&self.session.devices) {
            let to = usize::from(request.places[account.device]);
            moved |= to != account.device;
            account.device = to;
            device.is_at(to);
        }
        if let (true, Some(timeline), Some(lines)) = (moved, timeline(), lines) {
            timeline.end_lines(lines);
        }
        Ok(())
    }
}

/// Takes the time of a transfer of this much memory from one side to the other.
fn transfer(granules: u64, request: &Request) {
    if request.mib_per_s > 0 {
        let bytes = granules * GRANULE_BYTES;
        std::thread::sleep(Duration::from_micros(bytes / u64::from(request.mib_per_s)));
    }
}

/// `CUcheckpointGpuPair`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Pair {
    old: [u8; 16],
    new: [u8; 16],
}

/// `CUcheckpointLockArgs`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct LockArguments {
    timeout_ms: u32,
    reserved: u32,
    more: [u64; 7],
}

/// `CUcheckpointRestoreArgs`; before CUDA 13, and for the other calls, all of it is reserved.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    pairs: u64,
    count: u64,
    reserved: [u64; 6],
}

impl Arguments {
    const NONE: Self = Self { pairs: 0, count: 0, reserved: [0; 6] };

    fn of(given: In<Self>) -> CuResult<Self> {
        let arguments = given.get().unwrap_or(Self::NONE);
        if arguments.reserved == [0; 6] { Ok(arguments) } else { Err(CuError::INVALID_VALUE) }
    }

    /// For a call that has none.
    fn refuse_any(given: In<Self>) -> CuResult {
        let Self { pairs, count, .. } = Self::of(given)?;
        if pairs | count == 0 { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }
}

/// The slot of the process that a caller means, if the functions are there for it.
fn find(state: &StateGuard, pid: i32) -> CuResult<usize> {
    if state.cuda_version() < FROM {
        return Err(CuError::NOT_SUPPORTED);
    }
    let pid = u32::try_from(pid).map_err(|_| CuError::INVALID_VALUE)?;
    let found =
        state.processes().find(|(slot, _)| state.pid_of(*slot) == pid && state.sim().is_slot_held(*slot));
    let (slot, _) = found.ok_or(CuError::INVALID_VALUE)?;
    // SAFETY: signal 0 is none; the kernel only looks whether this process may send one.
    let may = unsafe { libc::kill(pid as libc::pid_t, 0) } == 0;
    if may { Ok(slot) } else { Err(NOT_PERMITTED) }
}

/// Has an order carried out.
fn order(pid: i32, command: Command, timeout_ms: u32, places: [u8; MAX_DEVICES]) -> CuResult {
    let sim = initialized()?.sim;
    let setting = |name| setting(sim, name);
    if setting("mps") != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    let (mib_per_s, host_mib) = (setting("checkpoint_mib_per_s"), setting("checkpoint_host_mib"));
    let request = Request { command, timeout_ms, mib_per_s, host_mib, places };
    let (slot, generation, number) = loop {
        let state = sim.swept();
        let slot = find(&state, pid)?;
        if let Some(number) = sim.orders_of(slot).give(&request) {
            break (slot, state.slots[slot].generation, number);
        }
        drop(state);
        std::thread::sleep(LOOK);
    };
    loop {
        match sim.orders_of(slot).answer(number) {
            Some(0) => return Ok(()),
            Some(code) => return Err(CuError(code)),
            None if !sim.is_alive(slot, generation) => return Err(CuError::INVALID_VALUE),
            None => {}
        }
    }
}

const STAY: [u8; MAX_DEVICES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Where the memory of each GPU comes back. All GPUs that the process had memory on must be named, and be replaced by GPUs of their kind.
fn places(pid: i32, pairs: &[Pair]) -> CuResult<[u8; MAX_DEVICES]> {
    let sim = initialized()?.sim;
    let state = sim.lock();
    let slot = find(&state, pid)?;
    if pairs.is_empty() {
        return Ok(STAY);
    }
    if state.cuda_version() < PAIRS_FROM {
        return Err(CuError::INVALID_VALUE);
    }
    let gpus = state.devices();
    let named =
        |uuid: [u8; 16]| (0..gpus.len()).find(|gpu| gpu_uuid_bytes(*gpu, gpus[*gpu].model()).0 == uuid);
    let (mut places, mut are_named) = (STAY, [false; MAX_DEVICES]);
    for pair in pairs {
        let (old, new) = named(pair.old).zip(named(pair.new)).ok_or(CuError::INVALID_VALUE)?;
        if gpus[old].model != gpus[new].model
            || gpus[new].mig_enabled != 0
            || std::mem::replace(&mut are_named[old], true)
        {
            return Err(CuError::INVALID_VALUE);
        }
        places[old] = new as u8;
    }
    let was_on = state.slots[slot].was_on();
    if was_on.iter().zip(are_named).any(|(was, named)| *was && !named) {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(places)
}

/// A row of the driver's model (`nvml::settings` has the table), as it is now.
fn setting(sim: &Sim, name: &str) -> u32 {
    let text = std::fs::read_to_string(sim.home().join("model")).unwrap_or_default();
    let rows = text.lines().filter_map(|line| line.split_once('='));
    rows.filter(|(row, _)| row.trim() == name).find_map(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

driver_api! {
    fn cuCheckpointProcessLock(pid: i32, arguments: In<LockArguments>) {
        let given = arguments.get().unwrap_or(LockArguments { timeout_ms: 0, reserved: 0, more: [0; 7] });
        if given.reserved != 0 || given.more != [0; 7] {
            return Err(CuError::INVALID_VALUE);
        }
        order(pid, Command::Lock, given.timeout_ms, STAY)
    }

    fn cuCheckpointProcessCheckpoint(pid: i32, arguments: In<Arguments>) {
        Arguments::refuse_any(arguments)?;
        order(pid, Command::Checkpoint, 0, STAY)
    }

    fn cuCheckpointProcessRestore(pid: i32, arguments: In<Arguments>) {
        let Arguments { pairs, count, .. } = Arguments::of(arguments)?;
        // The count is a 32-bit number.
        let pairs = In(pairs as *const Pair).get_all(count as u32 as usize)?;
        order(pid, Command::Restore, 0, places(pid, &pairs)?)
    }

    fn cuCheckpointProcessUnlock(pid: i32, arguments: In<Arguments>) {
        Arguments::refuse_any(arguments)?;
        order(pid, Command::Unlock, 0, STAY)
    }

    fn cuCheckpointProcessGetState(pid: i32, out: Out<u32>) {
        let state = initialized()?.sim.swept();
        let slot = find(&state, pid)?;
        Ok(out.set(state.slots[slot].process_state.0)?)
    }

    fn cuCheckpointProcessGetRestoreThreadId(pid: i32, thread: Out<i32>) {
        let sim = initialized()?.sim;
        let state = sim.swept();
        let slot = find(&state, pid)?;
        Ok(thread.set(sim.orders_of(slot).thread.load(Acquire) as i32)?)
    }
}
