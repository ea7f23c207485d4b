//! One process of a task, and the helper that calls the driver for it.

use std::thread;
use std::time::Duration;

use cantle_driver::{CheckpointState, Checkpoints, Driver, DriverError};
use cantle_model::{GpuUuid, Holder};
use cantle_runtime::alive;

type Result<T> = std::result::Result<T, DriverError>;

/// How often, and how many times, a process is asked whose call another program has begun.
const PAUSE: Duration = Duration::from_millis(100);
const ASKS: u32 = 600;

/// CUDA does not know the process: it has never used a GPU, or has ended.
const INVALID_VALUE: i32 = 1;

/// A process with memory on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub(super) process: Holder,
    /// By the driver's figure.
    pub(super) bytes: u64,
}

/// The state of a process after the thaw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thawed {
    /// It runs, or is ready to, or has ended.
    Runs,
    /// It never runs again.
    Failed,
}

/// The helper, started when it is needed and kept: its start costs seconds.
#[derive(Debug, Default)]
pub struct CheckpointHelper {
    started: Option<Checkpoints>,
    /// A helper has ended with a call under way, here or in a program that has died: the call may still take effect.
    pub(super) is_unsure: bool,
}

impl CheckpointHelper {
    /// Makes a call. A helper that has failed is replaced by the next call.
    fn call<T>(
        &mut self,
        driver: &dyn Driver,
        call: impl FnOnce(&mut Checkpoints) -> Result<T>,
    ) -> Result<T> {
        let helper = match &mut self.started {
            Some(helper) => helper,
            none => none.insert(driver.start_checkpoints()?),
        };
        let done = call(helper);
        if matches!(done, Err(DriverError::CheckpointHelper(_))) {
            self.started = None;
            self.is_unsure = true;
        }
        done
    }

    /// The state of a process; none if it has none, because it has ended.
    fn state(&mut self, driver: &dyn Driver, process: &Holder) -> Result<Option<CheckpointState>> {
        for _ in 0..ASKS {
            if !alive(process) {
                return Ok(None);
            }
            let asked = self.call(driver, |helper| helper.state(process.pid));
            let asked = match asked {
                // Once more with another helper.
                Err(DriverError::CheckpointHelper(_)) => {
                    self.call(driver, |helper| helper.state(process.pid))
                }
                asked => asked,
            };
            match asked {
                Err(DriverError::Checkpoint { code: INVALID_VALUE, .. }) => return Ok(None),
                Ok(CheckpointState::Busy) => thread::sleep(PAUSE),
                state => return state.map(Some),
            }
        }
        Ok(Some(CheckpointState::Busy))
    }

    pub(super) fn lock(&mut self, driver: &dyn Driver, held: &Holding, limit: Duration) -> Result<()> {
        let locked = self.call(driver, |helper| helper.lock(held.process.pid, limit));
        unless_gone(&held.process, locked)
    }

    /// After this, the driver itself says that the process has nothing on a GPU.
    pub(super) fn checkpoint(&mut self, driver: &dyn Driver, held: &Holding) -> Result<()> {
        let pid = held.process.pid;
        let done = self.call(driver, |helper| helper.checkpoint(pid, held.bytes));
        unless_gone(&held.process, done)?;
        match self.state(driver, &held.process)? {
            None | Some(CheckpointState::Checkpointed) => Ok(()),
            Some(state) => {
                Err(DriverError::CheckpointHelper(format!("process {pid} is {state:?} after its checkpoint")))
            }
        }
    }

    /// Lets a process run, from whatever state. A call that a dead helper has begun may still be under way, and changes
    /// the state between two calls: so a call that the driver refuses is no answer, and only the state is.
    pub(super) fn thaw(&mut self, driver: &dyn Driver, process: &Holder, bytes: u64) -> Result<Thawed> {
        let mut refused = None;
        for _ in 0..ASKS {
            let called = match self.state(driver, process)? {
                None | Some(CheckpointState::Running) => return Ok(Thawed::Runs),
                Some(CheckpointState::Failed) => return Ok(Thawed::Failed),
                Some(CheckpointState::Checkpointed) => {
                    self.call(driver, |helper| helper.restore(process.pid, bytes, &[]))
                }
                Some(CheckpointState::Locked) => self.call(driver, |helper| helper.unlock(process.pid)),
                Some(CheckpointState::Busy) => Ok(()),
            };
            if let Err(error) = called {
                refused = Some(error);
                thread::sleep(PAUSE);
            }
        }
        Err(refused.unwrap_or_else(|| stays_busy(process)))
    }

    /// Brings the memory of a process back if it is out; the process stays locked.
    pub(super) fn restore(
        &mut self,
        driver: &dyn Driver,
        process: &Holder,
        bytes: u64,
        moves: &[(GpuUuid, GpuUuid)],
    ) -> Result<Thawed> {
        let mut refused = None;
        // Once more if a dead helper had begun it.
        for _ in 0..2 {
            match self.state(driver, process)? {
                Some(CheckpointState::Checkpointed) => {}
                Some(CheckpointState::Failed) => return Ok(Thawed::Failed),
                Some(CheckpointState::Busy) => return Err(stays_busy(process)),
                _ => return Ok(Thawed::Runs),
            }
            match self.call(driver, |helper| helper.restore(process.pid, bytes, moves)) {
                Ok(()) => return Ok(Thawed::Runs),
                Err(error) => refused = Some(error),
            }
        }
        match self.state(driver, process)? {
            Some(CheckpointState::Failed) => Ok(Thawed::Failed),
            Some(CheckpointState::Checkpointed) => Err(refused.unwrap_or_else(|| stays_busy(process))),
            _ => Ok(Thawed::Runs),
        }
    }

    /// Brings a process that was restored to the host again.
    pub(super) fn checkpoint_again(
        &mut self,
        driver: &dyn Driver,
        process: &Holder,
        bytes: u64,
    ) -> Result<()> {
        match self.state(driver, process)? {
            Some(CheckpointState::Locked) => self.checkpoint(driver, &Holding { process: *process, bytes }),
            _ => Ok(()),
        }
    }
}

fn stays_busy(process: &Holder) -> DriverError {
    DriverError::CheckpointHelper(format!("process {} stays busy", process.pid))
}

/// A process that has ended has nothing on a GPU, which is all that is wanted of it.
fn unless_gone(process: &Holder, done: Result<()>) -> Result<()> {
    match done {
        Err(DriverError::Checkpoint { .. }) if !alive(process) => Ok(()),
        done => done,
    }
}
