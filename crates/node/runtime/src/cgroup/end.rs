//! Ends the processes of a group, and removes it.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Cgroup, mounts, read};

/// A group cannot be removed while the last of its processes is dying.
const REMOVE_RETRIES: u32 = 50;
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

impl Cgroup {
    /// SIGKILL to all that are in it now. No process is created meanwhile: the kernel does it in one step, or the group is
    /// frozen first.
    pub fn kill(&self) {
        // Since Linux 5.14.
        if fs::write(self.dir.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        self.freeze(true);
        for pid in self.members() {
            // Gone in the meantime is what we want.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        self.freeze(false);
    }

    fn freeze(&self, frozen: bool) {
        // Version 2, then version 1. A group that cannot be frozen is killed in several passes.
        let _ = fs::write(self.dir.join("cgroup.freeze"), if frozen { "1" } else { "0" })
            .or_else(|_| fs::write(self.dir.join("freezer.state"), if frozen { "FROZEN" } else { "THAWED" }));
    }

    /// Removes it; it stays if there are still processes in it.
    pub fn remove(&self) {
        self.remove_counterparts();
        for _ in 0..REMOVE_RETRIES {
            let mut below = Vec::new();
            self.each_directory(&mut |dir| below.push(dir.to_owned()));
            let removed = below.iter().rev().map(fs::remove_dir).fold(Ok(()), io::Result::and);
            match removed {
                Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                _ => break,
            }
        }
        self.remove_counterparts();
        self.remove_limits();
    }

    /// In hierarchies of version 1: an engine has made one of its name in each of them, or the controller of a limit is there.
    fn remove_counterparts(&self) {
        let Some(mount) = Self::unified_mount() else { return };
        let Ok(path) = self.dir.strip_prefix(&mount) else { return };
        for found in mounts(&read("/proc/self/mountinfo")).filter(|found| found.kind == "cgroup") {
            // Usually not there. The kernel refuses it for a group with processes.
            let _ = fs::remove_dir(Path::new(found.mount).join(path));
        }
    }
}
