//! Reads `/proc/<pid>/stat` without allocating.

use core::ffi::CStr;

use crate::map::Fd;

/// Whether a process is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// It runs.
    Living,
    /// It is exiting: its memory may be freed already, but not its files, and so not its GPU memory either.
    Exiting,
    /// It does not exist any more, or only as a zombie.
    Gone,
}

/// Set in a process's flags as soon as it begins to exit.
const PF_EXITING: u64 = 4;

struct Stat {
    state: u8,
    flags: u64,
    threads: u64,
    start_ticks: u64,
}

/// Start time of a process in clock ticks since boot; `None` if there is no such process (or no `/proc`).
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let mut buffer = [0; 1024];
    parse(read(pid, &mut buffer)?).map(|stat| stat.start_ticks)
}

/// Whether the process with this pid and start time is alive.
pub(crate) fn life(pid: u32, start_ticks: u64) -> Life {
    let mut buffer = [0; 1024];
    if let Some(stat) = read(pid, &mut buffer).and_then(parse) {
        return match stat.state {
            _ if stat.start_ticks != start_ticks => Life::Gone,
            // A zombie first thread does not show the state of the others.
            b'Z' | b'X' if stat.threads <= 1 => Life::Gone,
            b'Z' | b'X' => Life::Exiting,
            _ if stat.flags & PF_EXITING != 0 => Life::Exiting,
            _ => Life::Living,
        };
    }
    // No entry, or no /proc: signal 0 shows whether the process exists.
    // SAFETY: no pointers; signal 0 is only checked and never delivered, whatever the pid.
    let missing = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0;
    if missing && crate::map::errno() == libc::ESRCH { Life::Gone } else { Life::Living }
}

fn read(pid: u32, buffer: &mut [u8; 1024]) -> Option<&[u8]> {
    let mut path = [0; 32];
    write_path(pid, &mut path);
    let fd = Fd::open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY).ok()?;
    let length = fd.read(buffer)?;
    buffer.get(..length)
}

fn write_path(pid: u32, path: &mut [u8; 32]) {
    let mut digits = [0; 10];
    let mut rest = pid;
    let mut count = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let bytes = b"/proc/".iter().chain(digits.iter().skip(digits.len() - count)).chain(b"/stat\0");
    path.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
}

/// The fields that count. The command name may contain anything, so they are counted from the last `)`; numbers as in proc(5).
fn parse(stat: &[u8]) -> Option<Stat> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat.get(name_end + 1..)?.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?; // 3
    let flags = number(fields.nth(5)?)?; // 9
    let threads = number(fields.nth(10)?)?; // 20
    let start_ticks = number(fields.nth(1)?)?; // 22
    Some(Stat { state, flags, threads, start_ticks })
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, &digit| {
        digit.is_ascii_digit().then(|| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_the_life_of_this_process() {
        let ticks = start_ticks(std::process::id()).unwrap();
        assert!(ticks > 0);
        assert_eq!(life(std::process::id(), ticks), Life::Living);
        assert_eq!(life(std::process::id(), ticks + 1), Life::Gone, "another process with our pid");
    }

    #[test]
    fn a_zombie_is_gone_before_anyone_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ticks = start_ticks(child.id()).unwrap();
        assert_eq!(life(child.id(), ticks), Life::Living);
        child.kill().unwrap();
        while life(child.id(), ticks) != Life::Gone {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(life(child.id(), ticks), Life::Gone);
    }

    #[test]
    fn a_command_name_can_not_forge_a_field() {
        let stat = b"7 (a) Z 1 1) S 1 7 7 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 3 0 4242 1 1";
        let stat = parse(stat).unwrap();
        assert_eq!((stat.state, stat.flags & PF_EXITING, stat.threads, stat.start_ticks), (b'S', 4, 3, 4242));
        assert!(parse(b"7 (a").is_none());
    }
}
