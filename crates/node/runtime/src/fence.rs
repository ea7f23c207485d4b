//! A *fence* ends a task that may run elsewhere by now. The task's owner records until when the task is its own, and renews
//! that. If no process renews it (the owner died, or cannot reach the server), the supervisor ends the task.
//!
//! The clock counts while the machine sleeps, and cannot be set. The task can use the time before the fence for
//! cleanup.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rustix::fs::inotify;
use serde::{Deserialize, Serialize};

use crate::TaskDirectory;
use crate::processes::Scope;

/// How often the fence is read: a task outlives it by at most this.
pub(crate) const EVERY: Duration = Duration::from_millis(500);
/// The longest time that a task has between SIGTERM and its fence.
const LONGEST_GRACE_MS: u64 = 10_000;

/// Until when a task is its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Milliseconds since this machine started, sleep included: see [`Fence::now_ms`].
    pub until_ms: u64,
    /// How far each renewal moves it, in milliseconds.
    pub after_ms: u64,
}

impl Fence {
    /// The time of fences: milliseconds since this machine started, sleep included.
    #[must_use]
    pub fn now_ms() -> u64 {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
            let (seconds, ns) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
            seconds.saturating_mul(1000).saturating_add(ns / 1_000_000)
        })
    }

    /// How long before the fence the task gets SIGTERM: a quarter of the time, at most 10 s.
    const fn grace_ms(self) -> u64 {
        let quarter = self.after_ms / 4;
        if quarter < LONGEST_GRACE_MS { quarter } else { LONGEST_GRACE_MS }
    }

    /// For how long the task may tidy up, once that time has come.
    fn grace_at(self, now_ms: u64) -> Option<Duration> {
        let is_due = now_ms.saturating_add(self.grace_ms()) >= self.until_ms;
        is_due.then(|| Duration::from_millis(self.until_ms.saturating_sub(now_ms)))
    }
}

/// Ends the task of a directory at its fence. Runs in parallel to the supervisor's wait for the task's end, and ends
/// with it.
pub(crate) fn guard(directory: &TaskDirectory, scope: &Scope) {
    // Before the first read: a fence that is set after that read is a change.
    let news = News::of(directory.path());
    let mut fence = None;
    loop {
        let read = directory.read_fence();
        if matches!(read, Ok(None)) {
            fence = None;
            news.wait();
            continue;
        }
        // A fence that cannot be read now is where it was.
        fence = read.unwrap_or(fence);
        if let Some(grace) = fence.and_then(|fence| due(directory, fence)) {
            // Only the supervisor may wait for the processes.
            scope.end_blocking(grace, || ());
        }
        std::thread::sleep(EVERY);
    }
}

/// Is it time to end the task of a directory? Then for how long it may clean up.
pub(crate) fn due(directory: &TaskDirectory, fence: Fence) -> Option<Duration> {
    let grace = fence.grace_at(Fence::now_ms())?;
    // First, so that the reason is known when the end is. If it cannot be written, the task ends nevertheless.
    let _ = directory.mark_fenced();
    Some(grace)
}

/// Changes of a directory, from the kernel. Most tasks never have a fence, and the wait for one costs them nothing.
struct News(Option<OwnedFd>);

impl News {
    /// Files are written to the same directory under another name and then renamed.
    fn of(directory: &Path) -> Self {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).and_then(|watch| {
            inotify::add_watch(&watch, directory, inotify::WatchFlags::MOVED_TO).map(|_| watch)
        });
        Self(watch.ok())
    }

    /// Until there may be something; at most [`EVERY`] where the kernel gives no watch: a user has a limited number of them.
    fn wait(&self) {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let told = self.0.as_ref().map(|watch| inotify::Reader::new(watch, &mut buffer).next().is_ok());
        if told != Some(true) {
            std::thread::sleep(EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_appears_is_news() {
        let dir = tempfile::tempdir().unwrap();
        let directory = TaskDirectory::new(dir.path());
        let news = News::of(dir.path());
        assert!(news.0.is_some());
        let waiting = std::thread::spawn(move || news.wait());
        std::thread::sleep(EVERY + EVERY / 2);
        assert!(!waiting.is_finished(), "nothing is looked at meanwhile");
        directory.set_fence(Some(Fence { until_ms: 1, after_ms: 1 })).unwrap();
        waiting.join().unwrap();
    }

    #[test]
    fn a_task_has_a_quarter_of_the_time_to_tidy_up() {
        let fence = Fence { until_ms: 100_000, after_ms: 20_000 };
        assert_eq!(fence.grace_at(94_999), None);
        assert_eq!(fence.grace_at(95_000), Some(Duration::from_secs(5)));
        assert_eq!(fence.grace_at(100_000), Some(Duration::ZERO));
        // A machine that slept.
        assert_eq!(fence.grace_at(900_000), Some(Duration::ZERO));
        let long = Fence { until_ms: 100_000, after_ms: 86_400_000 };
        assert_eq!(long.grace_at(89_999), None);
        assert_eq!(long.grace_at(90_000), Some(Duration::from_secs(10)));
    }
}
