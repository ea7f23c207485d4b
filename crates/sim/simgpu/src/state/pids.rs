//! A process's pid in the namespace of the process that asks. A process knows only its pid in its own namespace; the kernel lists
//! the others in `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Mutex;

use super::layout::Slot;

/// Pids found before: a process never changes its pid.
static KNOWN: Mutex<BTreeMap<Registered, u32>> = Mutex::new(BTreeMap::new());
/// More processes than a machine has slots; older entries are of the dead.
const KEPT: usize = 4096;

/// A process as its slot has it: pid, start, pid namespace. Two containers that start in the same tick have the same pid inside.
type Registered = (u32, u64, u64);

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
    let registered = (slot.pid, slot.start_ticks, slot.pid_namespace);
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(pid) = known.get(&registered) {
        return *pid;
    }
    if known.len() >= KEPT {
        known.clear();
    }
    // Most processes have the same pid here as there, and no other has to be looked at.
    if identity(slot.pid) == Some(registered) {
        known.insert(registered, slot.pid);
        return slot.pid;
    }
    // One pass over all processes also answers the next questions: many start together.
    for pid in pids() {
        if let Some(found) = identity(pid) {
            known.insert(found, pid);
        }
    }
    let invisible = if own_namespace() == 0 { slot.pid } else { INVISIBLE };
    *known.entry(registered).or_insert_with(|| similar(&registered).unwrap_or(invisible))
}

/// A process whose namespace cannot be read, where its pid and its start decide.
fn similar(&(pid, start, _): &Registered) -> Option<u32> {
    pids().find(|found| identity(*found) == Some((pid, start, UNREADABLE)))
}

/// Used for a namespace that cannot be read.
const UNREADABLE: u64 = 0;

fn identity(pid: u32) -> Option<Registered> {
    let name = pid.to_string();
    Some((innermost(pid)?, start_ticks(&name)?, namespace(&name).unwrap_or(UNREADABLE)))
}

/// All processes that this one sees.
fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A program may give itself a name that is no text.
fn text(path: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(path).ok()?).into_owned())
}

/// Field 22 of `/proc/PID/stat`. The second field, the program's name, may hold anything; it ends at the last parenthesis.
fn start_ticks(pid: &str) -> Option<u64> {
    let stat = text(&format!("/proc/{pid}/stat"))?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn namespace(pid: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|namespace| namespace.ino())
}

/// The pid in the process's own namespace.
fn innermost(pid: u32) -> Option<u32> {
    let status = text(&format!("/proc/{pid}/status"))?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))?
        .split_ascii_whitespace()
        .next_back()?
        .parse()
        .ok()
}
