//! From a call to the account it is charged to: which GPU of the slice, and the reservation that an allocation needs.

use cantle_ledger::{Account, Attachment, Over};

use super::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver, pool};
use crate::book::Book;
use crate::function::Status;
use crate::lock::Guard;
use crate::process::{Process, process};

/// The context that is current in the calling thread, and its device. `None` if there is none: the driver says what is wrong.
pub(super) fn current() -> Option<(Context, Device)> {
    let (mut context, mut device) = (core::ptr::null_mut(), 0);
    // SAFETY: both write to where they are told.
    let found = unsafe {
        driver::cuCtxGetDevice.get().ok()?(&raw mut device) == SUCCESS
            && driver::cuCtxGetCurrent.get().ok()?(&raw mut context) == SUCCESS
    };
    (found && !context.is_null()).then_some((context, device))
}

/// A GPU of the slice as this process sees it.
#[derive(Clone, Copy)]
pub(super) struct Place {
    process: &'static Process,
    attachment: &'static Attachment,
    pub(super) gpu: usize,
}

impl Place {
    /// The place of a device. An error is what to answer to an allocation: without a ledger, or on a GPU outside the slice,
    /// there is no memory.
    #[inline]
    pub(super) fn of(device: Device) -> Result<Self, Status> {
        let process = process().ok_or(OUT_OF_MEMORY)?;
        let attachment = process.attachment().ok_or(OUT_OF_MEMORY)?;
        let gpu = gpu_index(process, device).ok_or(OUT_OF_MEMORY)?;
        Ok(Self { process, attachment, gpu })
    }

    /// The place of an address that was charged: `None` cannot happen while this process lives.
    pub(super) fn charged(gpu: usize) -> Option<Self> {
        let process = process()?;
        Some(Self { process, attachment: process.attachment()?, gpu })
    }

    pub(super) const fn process(self) -> &'static Process {
        self.process
    }

    /// Granules in use by the whole slice, and its limit.
    pub(super) fn used_and_limit(self) -> (u32, u32) {
        let ledger = self.attachment.ledger();
        (ledger.used(self.gpu), ledger.gpus().get(self.gpu).map_or(0, |gpu| gpu.limit_granules()))
    }

    /// This process's book and account of the GPU, locked.
    #[inline]
    pub(super) fn open(self) -> Option<Opened> {
        let book = self.process.books.get(self.gpu)?.lock();
        Some(Opened { account: self.attachment.account(self.gpu)?, book, place: self })
    }

    /// Reserves what an allocation of `bytes` takes, and the context's memory if that is not charged yet.
    #[inline]
    pub(super) fn reserve(self, bytes: u64) -> Result<Reservation, Status> {
        if self.try_reserve(bytes).is_err() {
            // As the driver does before it gives up: pools let go of what they don't use.
            pool::trim_all();
            let refused = self.try_reserve(bytes);
            refused.map_err(|over| self.open().map_or(OUT_OF_MEMORY, |opened| opened.refuse(over, bytes)))?;
        }
        Ok(Reservation { place: self, bytes })
    }

    #[inline]
    fn try_reserve(self, bytes: u64) -> Result<(), Over> {
        // No account is no room at all.
        let mut opened = self.open().ok_or(Over { used: 0, limit: 0, asked: 0 })?;
        opened.reserve_context()?;
        let Opened { book, account, .. } = &mut opened;
        book.reserve(account, bytes)
    }
}

/// A GPU's book and account while they are locked.
pub(super) struct Opened {
    pub(super) book: Guard<'static, Book>,
    pub(super) account: Account<'static>,
    place: Place,
}

impl Opened {
    /// Charges the context if that has not been done: contexts also come to be through the driver's private tables, unseen.
    /// `asked_bytes` is what the program is after, for the note if there is no room.
    #[inline]
    pub(super) fn charge_context(&mut self, asked_bytes: u64) -> Result<(), Status> {
        self.reserve_context().map_err(|over| self.refuse(over, asked_bytes))
    }

    #[inline]
    fn reserve_context(&mut self) -> Result<(), Over> {
        let gpu = self.place.attachment.ledger().gpus().get(self.place.gpu);
        self.book.reserve_context(&mut self.account, gpu.map_or(0, |gpu| gpu.context_granules()))
    }

    /// Brings what is charged for something from `before` to `now` granules. An error is growth that does not fit: it is
    /// charged all the same, because it has happened.
    pub(super) fn account_for(&mut self, before: u32, now: u32) -> Result<(), Over> {
        if now <= before {
            self.account.release(before - now);
            return Ok(());
        }
        self.account.reserve(now - before).inspect_err(|_| {
            let held = self.account.held();
            self.account.set_held(held.saturating_add(now - before));
        })
    }

    pub(super) const fn process(&self) -> &'static Process {
        self.place.process
    }

    /// Notes a refusal for the agent; gives the answer for the program.
    #[cold]
    pub(super) fn refuse(&self, over: Over, asked_bytes: u64) -> Status {
        self.account.refused(over, asked_bytes);
        OUT_OF_MEMORY
    }
}

/// Memory that is charged and not allocated yet. Given back on drop, unless it was kept.
pub(super) struct Reservation {
    place: Place,
    bytes: u64,
}

impl Reservation {
    /// Brings the reservation to what the driver really took.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<(), Status> {
        let mut opened = self.place.open().ok_or(OUT_OF_MEMORY)?;
        let Opened { book, account, .. } = &mut opened;
        let resized = book.resize(account, self.bytes, bytes);
        resized.map_err(|over| opened.refuse(over, bytes))?;
        self.bytes = bytes;
        Ok(())
    }

    pub(super) const fn gpu(&self) -> usize {
        self.place.gpu
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The allocation has been made: from now on it is charged until it is freed.
    pub(super) fn keep(self) -> (usize, u64) {
        let kept = (self.place.gpu, self.bytes);
        core::mem::forget(self);
        kept
    }
}

impl Drop for Reservation {
    #[inline]
    fn drop(&mut self) {
        release(self.place.gpu, self.bytes);
    }
}

/// Gives back what an allocation of `bytes` on a GPU of the slice took.
#[inline]
pub(super) fn release(gpu: usize, bytes: u64) {
    if let Some(mut opened) = Place::charged(gpu).and_then(Place::open) {
        let opened = &mut opened;
        opened.book.release(&mut opened.account, bytes);
    }
}

/// Index of a device in the slice, by its UUID: ordinals depend on the program's environment.
#[inline]
fn gpu_index(process: &Process, device: Device) -> Option<usize> {
    let slot = process.devices.get(usize::try_from(device).ok()?)?;
    slot.get_or(|| {
        let ledger = process.ledger()?;
        // A MIG instance has a UUID of its own, which only the newer function tells.
        let newer = uuid(device, &driver::cuDeviceGetUuid_v2).and_then(|uuid| ledger.gpu_index(&uuid));
        Some(
            newer.or_else(|| uuid(device, &driver::cuDeviceGetUuid).and_then(|uuid| ledger.gpu_index(&uuid))),
        )
    })
}

type UuidFunction = crate::function::Function<unsafe extern "C" fn(*mut [u8; 16], Device) -> Status>;

fn uuid(device: Device, function: &UuidFunction) -> Option<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: writes 16 bytes.
    (unsafe { function.get().ok()?(&raw mut uuid, device) } == SUCCESS).then_some(uuid)
}

/// The slice's limit on a device; 0 if it is not of the slice or there is no ledger.
pub(super) fn limit_granules(device: Device) -> u32 {
    let limit = || {
        let process = process()?;
        Some(process.ledger()?.gpus().get(gpu_index(process, device)?)?.limit_granules())
    };
    limit().unwrap_or(0)
}
