//! A process's pid in the namespace of the process that asks. A process knows only its pid in its own namespace; the kernel lists
//! the others in `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Mutex;

use super::layout::Slot;

/// Pids found before: a process never changes its pid. One process may use several machines, whose generations are
/// the same numbers.
static KNOWN: Mutex<BTreeMap<Registered, u32>> = Mutex::new(BTreeMap::new());
/// More processes than a machine has slots; older entries are of the dead.
const KEPT: usize = 4096;

/// A process as its slot has it: generation, pid, start, pid namespace.
type Registered = (u64, u32, u64, u64);

/// When this process started, in clock ticks since the machine's boot. 0 without `/proc`.
pub(super) fn own_start_ticks() -> u64 {
    start_ticks("self").unwrap_or(0)
}

/// The pid namespace of this process. 0 without `/proc`.
pub(super) fn own_namespace() -> u64 {
    namespace("self").unwrap_or(0)
}

/// No process: what the kernel answers about one of another namespace, and what a driver does not list.
pub(crate) const INVISIBLE: u32 = 0;

/// The pid of the process in `slot` as this process sees it; [`INVISIBLE`] if it is in another namespace. Without `/proc` its own.
pub(super) fn pid_from_here(slot: &Slot) -> u32 {
    let registered = (slot.generation, slot.pid, slot.start_ticks, slot.pid_namespace);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(pid) = known.get(&registered) {
        return *pid;
    }
    let invisible = if own_namespace() == 0 { slot.pid } else { INVISIBLE };
    let pid = search(slot).unwrap_or(invisible);
    if known.len() >= KEPT {
        known.clear();
    }
    known.insert(registered, pid);
    pid
}

fn search(slot: &Slot) -> Option<u32> {
    let is_it = |pid: u32| {
        // Two containers that start in the same tick have the same pid inside. Where the namespace can't be read, the other two
        // decide.
        start_ticks(&pid.to_string()) == Some(slot.start_ticks)
            && innermost(pid) == Some(slot.pid)
            && namespace(&pid.to_string()).is_none_or(|found| found == slot.pid_namespace)
    };
    if is_it(slot.pid) {
        return Some(slot.pid);
    }
    let all = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.into_iter().find(|pid| is_it(*pid))
}

/// Field 22 of `/proc/PID/stat`. The second field, the program's name, may hold anything; it ends at the last parenthesis.
fn start_ticks(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn namespace(pid: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|namespace| namespace.ino())
}

/// The pid in the process's own namespace.
fn innermost(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()
}
