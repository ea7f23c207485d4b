//! Finds the processes of a task, and ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cantle_ledger::USAGE_FILE;
use cantle_model::Holder;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::files::is_no_room;
use crate::sandbox::SLICE_DIR;

/// How often a condition is polled that the kernel does not announce.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Of the times in `/proc/<pid>/stat`: the kernel's interface has this value on every architecture that cantle runs on.
const TICKS_PER_SECOND: u64 = 100;

/// One line of `/proc/<pid>/stat`, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    start_ticks: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::find(pid).ok().flatten()
    }

    /// An error if there is no such process, or if this one cannot open a file.
    fn find(pid: u32) -> io::Result<Option<Self>> {
        // Longer than any line; the kernel gives all of it to one read.
        let mut line = [0; 2048];
        let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut line)?;
        Ok(line.get(..length).and_then(Self::parse))
    }

    /// The second field is the program's name in parentheses. It may hold any bytes, parentheses and what is no text included.
    fn parse(line: &[u8]) -> Option<Self> {
        let name_ends = line.iter().rposition(|&byte| byte == b')')?;
        let mut fields = std::str::from_utf8(line.get(name_ends + 1..)?).ok()?.split_ascii_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            start_ticks: fields.nth(17)?.parse().ok()?,
        })
    }

    const fn is_dead(self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The process of that pid, if it lives.
#[must_use]
pub fn holder_of(pid: u32) -> Option<Holder> {
    let stat = Stat::read(pid).filter(|stat| !stat.is_dead())?;
    Some(Holder { pid, start_ticks: stat.start_ticks })
}

/// A child of a process; of a task's first process there is only one, the task, when this is asked.
pub(crate) fn child_of(parent: &Holder) -> Option<Holder> {
    let listed = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.pid)).ok();
    let listed = listed.and_then(|pids| pids.split_ascii_whitespace().next()?.parse().ok());
    let pid = listed.or_else(|| {
        let all = all_processes();
        all.into_iter().find(|(_, stat)| stat.parent == parent.pid).map(|(pid, _)| pid)
    });
    holder_of(pid?)
}

/// The parent of a process.
#[must_use]
pub fn parent_of(pid: u32) -> Option<u32> {
    Stat::read(pid).map(|stat| stat.parent)
}

/// Does this very process (not a later one with its pid) live? A zombie does not. A caller without a free file descriptor cannot tell
/// the two apart, and must not take what belongs to a living one: a process of that pid counts then.
#[must_use]
pub fn alive(holder: &Holder) -> bool {
    match Stat::find(holder.pid) {
        Err(why) if is_no_room(&why) => Path::new(&format!("/proc/{}", holder.pid)).exists(),
        found => {
            found.ok().flatten().is_some_and(|stat| !stat.is_dead() && stat.start_ticks == holder.start_ticks)
        }
    }
}

/// [`alive`], before a signal: another process must not get it.
fn is_surely_alive(holder: &Holder) -> bool {
    holder_of(holder.pid).as_ref() == Some(holder)
}

/// Asks this very process to end, as `kill PID` does, if it still lives.
pub fn terminate(holder: &Holder) {
    if is_surely_alive(holder) {
        // The caller sees whether it ends.
        let _ = kill(pid_of(holder), Signal::SIGTERM);
    }
}

/// Sends this very process the signal by which cantle's agents are asked to close the driver for a while, if it still lives.
pub fn ask_for_release(holder: &Holder) {
    if is_surely_alive(holder) {
        // The caller sees whether it closes the driver.
        let _ = kill(pid_of(holder), Signal::SIGUSR1);
    }
}

/// Ends this very process at once, as `kill -9 PID` does.
pub fn end_now(holder: &Holder) {
    if is_surely_alive(holder) {
        // Gone in the meantime is what we want.
        let _ = kill(pid_of(holder), Signal::SIGKILL);
    }
}

/// Gives the calling program a session of its own, so that it outlives the terminal it was started from.
pub fn leave_terminal() {
    // Refused only to the first process of a session or group, which has left already.
    let _ = nix::unistd::setsid();
}

/// Identifies a file independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self { device: meta.dev(), inode: meta.ino() })
    }
}

/// The common properties of the processes of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scope {
    /// The boot during which this was written: pids and start times mean nothing after the next.
    pub(crate) boot: String,
    /// The process that adopts the task's orphans: everything below it is the task. It is the task's first process (`first.rs`), or what
    /// started the client of a container engine.
    pub(crate) root: Holder,
    /// The task's first process; what is below it belongs to the task even after the root was killed.
    pub(crate) leader: Holder,
    /// The slice's `usage` file: a process that sees it as `/run/cantle/slice/usage` belongs to the task, with any parent.
    /// (Not the namespace's own inode number, which the kernel gives to the next namespace when this one is gone.)
    pub(crate) usage: Option<FileId>,
    /// The task's control group, if it could have one. Then its members and what descends from the root belong to the task, and the
    /// other fields are hints.
    #[serde(default)]
    pub(crate) cgroup: Option<Cgroup>,
}

impl Scope {
    /// The scope of a task that the calling process has just started and whose orphans it adopts.
    pub(crate) fn below(root: Holder, leader: Holder, usage: Option<FileId>) -> Self {
        Self { boot: boot_id(), root, leader, usage, cgroup: None }
    }

    /// Where the boot could not be read, now or when this was written, the start times of the processes decide alone: a task that
    /// runs must not count as ended.
    fn is_of_this_boot(&self) -> bool {
        let now = boot_id();
        self.boot == now || self.boot.is_empty() || now.is_empty()
    }

    /// Every living process of the task.
    pub(crate) fn members(&self) -> Vec<Holder> {
        if !self.is_of_this_boot() {
            return Vec::new();
        }
        if let Some(cgroup) = &self.cgroup {
            let mut members: BTreeSet<u32> = cgroup.members().into_iter().collect();
            members.extend(self.descendants());
            members.remove(&self.root.pid);
            return members.into_iter().filter_map(holder_of).collect();
        }
        let all = all_processes();
        let mut found: BTreeSet<u32> = BTreeSet::new();
        for ancestor in [self.root, self.leader] {
            if all.get(&ancestor.pid).is_some_and(|stat| stat.start_ticks == ancestor.start_ticks) {
                add_descendants(&all, ancestor.pid, &mut found);
            }
        }
        found.insert(self.leader.pid);
        if let Some(usage) = self.usage {
            found.extend(all.keys().copied().filter(|&pid| usage_seen_by(pid) == Some(usage)));
        }
        found.remove(&self.root.pid);
        let living = |pid: u32| {
            let stat = all.get(&pid).filter(|stat| !stat.is_dead())?;
            Some(Holder { pid, start_ticks: stat.start_ticks })
        };
        let members = found.into_iter().filter_map(living);
        // The leader's pid may belong to another process by now.
        members.filter(|member| member.pid != self.leader.pid || *member == self.leader).collect()
    }

    /// The processes below the first process of a task, also those that a program has put into another group. Usually
    /// there is none at the end of a task, which is quick to find out.
    fn descendants(&self) -> BTreeSet<u32> {
        let root = self.root.pid;
        let mut found = BTreeSet::new();
        let children = fs::read_to_string(format!("/proc/{root}/task/{root}/children"));
        if alive(&self.root) && children.map_or(true, |pids| !pids.trim().is_empty()) {
            add_descendants(&all_processes(), root, &mut found);
        }
        found
    }

    /// The CPU time of its processes: by the kernel's account of the control group, or else the sum for those that live and for those
    /// that they have waited for, which may decrease.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        if let Some(used) = self.cgroup.as_ref().and_then(Cgroup::cpu_time) {
            return Some(used);
        }
        let members = self.members();
        // The root waits for the orphans.
        let ticks = members.iter().map(|member| member.pid).chain([self.root.pid]).filter_map(cpu_ticks);
        let ticks = ticks.sum::<u64>();
        (!members.is_empty()).then(|| Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND)))
    }

    /// SIGTERM, `grace`, SIGKILL until no process is left.
    pub(crate) async fn end(&self, grace: Duration) {
        if !grace.is_zero() {
            signal_all(&self.members(), Signal::SIGTERM);
            let deadline = tokio::time::Instant::now() + grace;
            while tokio::time::Instant::now() < deadline {
                if self.members().is_empty() {
                    return;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        // Again and again, because processes may be born between the scan and the signal.
        while !self.kill_once() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// [`Self::end`] for the supervisor, which has no async runtime.
    pub(crate) fn end_blocking(&self, grace: Duration, mut reap: impl FnMut()) {
        let polls = grace.as_millis() / POLL_INTERVAL.as_millis();
        signal_all(&self.members(), Signal::SIGTERM);
        for _ in 0..polls {
            reap();
            if self.members().is_empty() {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        while !self.kill_once() {
            reap();
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// True if no process was left to kill.
    pub(crate) fn kill_once(&self) -> bool {
        let members = self.members();
        if !members.is_empty() {
            // In a pid namespace no process outlives the first one.
            self.end_first();
            if let Some(cgroup) = &self.cgroup {
                cgroup.kill();
            }
            signal_all(&members, Signal::SIGKILL);
        }
        members.is_empty()
    }

    /// Once no process is left: ends the first process and removes the control group.
    pub(crate) fn close(&self) {
        if self.root.pid == std::process::id() {
            return;
        }
        self.end_first();
        // Only its parent collects it.
        let _ = waitpid(pid_of(&self.root), None);
        if let Some(cgroup) = &self.cgroup {
            cgroup.remove();
        }
    }

    /// The first process, if it is not the one that calls this.
    fn end_first(&self) {
        if self.root.pid != std::process::id() && self.is_of_this_boot() {
            end_now(&self.root);
        }
    }
}

/// The CPU time of a process and of the children that it has waited for, in the kernel's ticks.
fn cpu_ticks(pid: u32) -> Option<u64> {
    let line = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_ends = line.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(line.get(name_ends + 1..)?).ok()?.split_ascii_whitespace();
    // utime, stime, cutime and cstime: the fields 14 to 17 of the line.
    fields.skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn usage_seen_by(pid: u32) -> Option<FileId> {
    FileId::of(
        &Path::new(&format!("/proc/{pid}/root")).join(SLICE_DIR.trim_start_matches('/')).join(USAGE_FILE),
    )
}

pub(crate) fn pid_of(holder: &Holder) -> Pid {
    // Linux pids are below 2^22.
    Pid::from_raw(holder.pid.cast_signed())
}

fn signal_all(holders: &[Holder], signal: Signal) {
    for holder in holders {
        // Gone in the meantime is what we want.
        let _ = kill(pid_of(holder), signal);
    }
}

fn all_processes() -> BTreeMap<u32, Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::read(pid)?))).collect()
}

fn add_descendants(all: &BTreeMap<u32, Stat>, ancestor: u32, found: &mut BTreeSet<u32>) {
    let mut parents = vec![ancestor];
    while let Some(parent) = parents.pop() {
        for (&pid, _) in all.iter().filter(|(_, stat)| stat.parent == parent) {
            if found.insert(pid) {
                parents.push(pid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line =
            b"7 (a) R 1 (\xff) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1 18446744073709551615";
        assert_eq!(Stat::parse(line), Some(Stat { state: 'S', parent: 42, start_ticks: 987_654 }));
        assert_eq!(Stat::parse(b"7 (x"), None);
        assert_eq!(Stat::parse(b"7 (x) S"), None);
    }

    #[test]
    fn the_cpu_time_of_a_program_and_of_those_it_waited_for_is_counted() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let script = format!("sh -c '{busy}'; sleep 60 & echo; wait");
        let mut root = std::process::Command::new("sh")
            .args(["-c", &script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        root.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let holder = holder_of(root.id()).unwrap();
        let sleeps = child_of(&holder).unwrap();
        let scope = Scope::below(holder, sleeps, None);
        // The process that took the time has ended, and the root has waited for it.
        let used = scope.cpu_time().unwrap();
        end_now(&sleeps);
        root.wait().unwrap();
        assert!(used >= Duration::from_millis(20), "{used:?}");
        assert_eq!(scope.cpu_time(), None, "it has ended");
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while Stat::read(child.id()).unwrap().state != 'Z' {
            std::thread::sleep(POLL_INTERVAL);
        }
        assert_eq!(holder_of(child.id()), None);
        child.wait().unwrap();
    }

    #[test]
    fn after_a_reboot_nobody_belongs_to_the_task() {
        let own = holder_of(std::process::id()).unwrap();
        let root = Holder { pid: 1, start_ticks: u64::MAX };
        let scope = Scope::below(root, own, None);
        assert!(scope.members().contains(&own));
        assert_eq!(Scope { boot: "another".to_owned(), ..scope }.members(), []);
    }

    #[test]
    fn a_reused_pid_is_somebody_else() {
        let own = holder_of(std::process::id()).unwrap();
        assert!(alive(&own));
        assert!(!alive(&Holder { start_ticks: own.start_ticks + 1, ..own }));
    }
}
