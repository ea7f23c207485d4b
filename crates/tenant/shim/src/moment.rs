//! A clock that costs next to nothing, for what should not happen more often than once in a moment. A call of the kernel would cost as much as
//! what it spares.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// When something happened last. Zero is never.
pub(crate) struct Moment(AtomicU64);

impl Moment {
    /// Whether about a millisecond has passed since this was true last; then it is a new moment. Concurrent threads may
    /// all get this answer.
    pub(crate) fn is_due(&self) -> bool {
        let now = ticks();
        let is_due = now.wrapping_sub(self.0.load(Relaxed)) >= moment_ticks();
        if is_due {
            self.0.store(now, Relaxed);
        }
        is_due
    }
}

/// The processor's counter of time.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has the instruction, and it has no effect but its result.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// It counts a few times in a nanosecond, at a rate that programs cannot read: 0.5 to 2 ms.
#[cfg(target_arch = "x86_64")]
const fn moment_ticks() -> u64 {
    1 << 21
}

#[cfg(target_arch = "aarch64")]
fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: Linux lets programs read this register, and reading it has no effect.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
}

#[cfg(target_arch = "aarch64")]
fn moment_ticks() -> u64 {
    let in_second: u64;
    // SAFETY: Linux lets programs read this register, and reading it has no effect.
    unsafe {
        core::arch::asm!("mrs {}, cntfrq_el0", out(reg) in_second, options(nomem, nostack, preserves_flags))
    };
    in_second / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_comes_and_is_not_always() {
        let moment = Moment(AtomicU64::new(0));
        assert!(moment.is_due(), "it has never been");
        let soon = (0..1000).filter(|_| moment.is_due()).count();
        assert!(soon < 1000);
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(moment.is_due());
    }
}
