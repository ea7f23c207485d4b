//! The balance that a call changes: that of one GPU of the slice.
//!
//! # This process's balance on a GPU
//!
//! The [`Balance`] records what this process holds of one GPU. It has two parts, which change together under one lock:
//!
//! * [`Holdings`], private to the process: how its bytes add up to granules. Most small allocations change nothing else.
//! * [`Account`], in the slice's accounting region: its granules. The region has a *slot* for each process, with a *record* for
//!   each GPU, and for each GPU a *word* with the sum over all processes; the account changes the record and the word so that the
//!   sum never exceeds the limit (`cantle_ledger::protocol`).
//!
//! [`SliceGpu`] names a GPU of the slice and locks its balance. A [`Reservation`](super::reservation::Reservation) is charged to the balance and has no memory
//! yet: it goes back when it is dropped, and becomes a table entry ([`crate::table`]) once the driver has allocated.

use cantle_ledger::{Account, Attachment, Over, Uses};

use super::export;
use super::reservation::Reservation;
use crate::cuda::device::{current, gpu_index};
use crate::cuda::pool::reserved;
use crate::cuda::{Device, OUT_OF_MEMORY};
use crate::function::Status;
use crate::holdings::Holdings;
use crate::lock::Guard;
use crate::process::{Process, process};

/// Charges the current context of a process that has nothing charged yet: NVIDIA's runtime makes contexts through a private table
/// of the driver, which no hook sees. Cheap enough for calls that programs make often: after the first time it is one load.
#[inline]
pub(crate) fn notice_context() {
    if process().is_some_and(|process| process.existing_attachment().is_none()) {
        notice_first_context();
    }
}

#[cold]
fn notice_first_context() {
    if let Some((_, device)) = current()
        && let Ok(gpu) = SliceGpu::of(device)
        && let Some(mut balance) = gpu.lock()
    {
        // It exists. If the limit does not admit it, the agent finds it in the driver's figures and charges it.
        let _refused = balance.reserve_context();
    }
}

/// A GPU of the slice, with this process's slot in the accounting region.
#[derive(Clone, Copy)]
pub(crate) struct SliceGpu {
    process: &'static Process,
    attachment: &'static Attachment,
    /// Index in the slice.
    pub(crate) index: usize,
}

impl SliceGpu {
    /// The GPU that a CUDA device is. An error is the answer to an allocation there: without a ledger, or on a GPU outside the
    /// slice, there is no memory; for an invalid device, it is the driver's own error.
    #[inline]
    pub(crate) fn of(device: Device) -> Result<Self, Status> {
        let process = process().ok_or(OUT_OF_MEMORY)?;
        let attachment = process.attachment().ok_or(OUT_OF_MEMORY)?;
        let index = gpu_index(process, device)?;
        Ok(Self { process, attachment, index })
    }

    /// The GPU that something of this process was charged to. `None` if this process has no slot in the ledger: then nothing of
    /// it is charged, and there is nothing to settle or to give back.
    pub(crate) fn charged(index: usize) -> Option<Self> {
        let process = process()?;
        Some(Self { process, attachment: process.existing_attachment()?, index })
    }

    pub(crate) const fn process(self) -> &'static Process {
        self.process
    }

    /// Notes what this process uses, for the agent.
    pub(crate) fn note_use(self, uses: Uses) {
        self.attachment.note_use(uses);
    }

    /// Granules in use by the whole slice, without those of processes that died more than a moment ago, and its limit.
    pub(crate) fn used_and_limit(self) -> (u32, u32) {
        // The kernel is asked for each process of the slice, which a program that asks in a loop should not pay for each time.
        let ledger = self.attachment.ledger();
        if self.attachment.has_others() && self.process.reaped.is_due() {
            ledger.reap();
        }
        (ledger.used(self.index), ledger.gpus().get(self.index).map_or(0, |gpu| gpu.limit_granules()))
    }

    /// This process's balance on the GPU, locked. `None` if the slice has no GPU of this index.
    #[inline]
    pub(crate) fn lock(self) -> Option<Balance> {
        let holdings = self.process.holdings.get(self.index)?.lock();
        Some(Balance { account: self.attachment.account(self.index)?, holdings, gpu: self })
    }

    /// Reserves what an allocation of `bytes` takes, and the context's memory if that is not charged yet.
    #[inline]
    pub(crate) fn reserve(self, bytes: u64) -> Result<Reservation, Status> {
        self.or_after_trimming(bytes, || self.with_context(|balance| balance.reserve(bytes)))
            .map(|()| Reservation::new(self, bytes))
    }

    /// Reserves what `bytes` of managed memory take.
    pub(crate) fn reserve_managed(self, bytes: u64) -> Result<(), Status> {
        self.or_after_trimming(bytes, || {
            self.with_context(|Balance { holdings, account, .. }| holdings.reserve_managed(account, bytes))
        })
    }

    /// Memory that [`SliceGpu::reserve_managed`] took has been allocated.
    pub(crate) fn keep_managed(self) {
        if let Some(mut balance) = self.lock() {
            balance.holdings.keep_managed();
        }
    }

    /// Gives back what [`SliceGpu::reserve_managed`] took.
    pub(crate) fn release_managed(self, bytes: u64) {
        if let Some(mut balance) = self.lock() {
            let Balance { holdings, account, .. } = &mut balance;
            holdings.release_managed(account, bytes);
        }
    }

    /// Reserves the context's memory if that is not charged yet, and then calls `reserve`.
    #[inline]
    fn with_context(self, reserve: impl FnOnce(&mut Balance) -> Result<(), Over>) -> Result<(), Over> {
        let mut balance = self.lock().ok_or(Over { used: 0, limit: 0, asked: 0 })?;
        balance.reserve_context()?;
        reserve(&mut balance)
    }

    /// Tries again after a refusal, as the driver does before it gives up: pools return what they do not use, and what
    /// closed descriptors have kept is given back. The second one is noted.
    #[inline]
    fn or_after_trimming<T>(self, bytes: u64, attempt: impl Fn() -> Result<T, Over>) -> Result<T, Status> {
        attempt().or_else(|_| {
            export::settle();
            reserved::trim_all();
            attempt().map_err(|over| self.lock().map_or(OUT_OF_MEMORY, |balance| balance.refuse(over, bytes)))
        })
    }

    #[inline]
    pub(super) fn release(self, bytes: u64) {
        if let Some(mut balance) = self.lock() {
            balance.release(bytes);
        }
    }
}

/// The holdings of this process on one GPU, locked: see the module's documentation.
pub(crate) struct Balance {
    pub(crate) holdings: Guard<'static, Holdings>,
    /// Made under the lock, so there is never more than one for this process and GPU.
    pub(crate) account: Account<'static>,
    gpu: SliceGpu,
}

impl Balance {
    #[inline]
    fn reserve(&mut self, bytes: u64) -> Result<(), Over> {
        self.holdings.reserve(&mut self.account, bytes)
    }

    #[inline]
    fn release(&mut self, bytes: u64) {
        self.holdings.release(&mut self.account, bytes);
    }

    /// Charges the context if that has not been done: the driver's private tables make contexts without calling a hook.
    /// `asked_bytes` is what the program asks for, for the note about a refusal.
    #[inline]
    pub(crate) fn charge_context(&mut self, asked_bytes: u64) -> Result<(), Status> {
        self.reserve_context().map_err(|over| self.refuse(over, asked_bytes))
    }

    #[inline]
    fn reserve_context(&mut self) -> Result<(), Over> {
        self.reserve_contexts(1)
    }

    /// Charges contexts until `contexts` of them are charged.
    #[inline]
    pub(crate) fn reserve_contexts(&mut self, contexts: u32) -> Result<(), Over> {
        let granules = self.context_granules();
        self.holdings.reserve_contexts(&mut self.account, contexts, granules)
    }

    /// Gives the memory of contexts back, but for `left` of them.
    pub(crate) fn release_contexts(&mut self, left: u32) {
        let granules = self.context_granules();
        self.holdings.release_contexts(&mut self.account, left, granules);
    }

    /// The memory of one context.
    #[inline]
    fn context_granules(&self) -> u32 {
        let gpu = self.gpu.attachment.ledger().gpus().get(self.gpu.index);
        gpu.map_or(0, |gpu| gpu.context_granules())
    }

    /// Changes the charge for something from `before` to `now` granules. An error is growth that exceeds the limit: it is
    /// charged all the same, because it has happened.
    pub(crate) fn account_for(&mut self, before: u32, now: u32) -> Result<(), Over> {
        if now <= before {
            self.account.release(before - now);
            return Ok(());
        }
        self.account.reserve(now - before).inspect_err(|_| {
            let held = self.account.held();
            self.account.set_held(held.saturating_add(now - before));
        })
    }

    pub(crate) const fn process(&self) -> &'static Process {
        self.gpu.process
    }

    /// The granules that the slice may still take.
    pub(crate) fn room_granules(&self) -> u32 {
        let (ledger, index) = (self.gpu.attachment.ledger(), self.gpu.index);
        let limit = ledger.gpus().get(index).map_or(0, |gpu| gpu.limit_granules());
        limit.saturating_sub(ledger.used(index))
    }

    /// Index of the GPU in the slice.
    pub(crate) const fn gpu(&self) -> usize {
        self.gpu.index
    }

    /// Notes a refusal for the agent, and returns the answer for the program.
    #[cold]
    pub(crate) fn refuse(&self, over: Over, asked_bytes: u64) -> Status {
        self.account.refused(over, asked_bytes);
        OUT_OF_MEMORY
    }
}
