//! `/proc/<pid>/stat`, read without allocating.

use core::ffi::CStr;

use crate::map::Fd;

/// Start time of a process in clock ticks since boot; `None` if there is no such process (or no `/proc`).
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let mut buffer = [0; 1024];
    parse(read(pid, &mut buffer)?).map(|(_, ticks)| ticks)
}

/// True if no process with this pid and start time is left, zombies not counted.
pub(crate) fn is_gone(pid: u32, ticks: u64) -> bool {
    let mut buffer = [0; 1024];
    if let Some((state, found)) = read(pid, &mut buffer).and_then(parse) {
        return found != ticks || matches!(state, b'Z' | b'X');
    }
    // No entry, or no /proc: signal 0 tells.
    // SAFETY: signal 0 is not delivered.
    let missing = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0;
    missing && crate::map::errno() == libc::ESRCH
}

fn read(pid: u32, buffer: &mut [u8; 1024]) -> Option<&[u8]> {
    let mut path = [0; 32];
    write_path(pid, &mut path);
    let fd = Fd::open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY).ok()?;
    // SAFETY: `buffer` has room for what is asked for.
    let length = unsafe { libc::read(fd.0, buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.get(..usize::try_from(length).ok()?)
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

/// State and start time. The command name may contain anything, so fields are counted from the last `)`.
fn parse(stat: &[u8]) -> Option<(u8, u64)> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat.get(name_end + 1..)?.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    // `state` is field 3 of proc(5), `starttime` is field 22.
    let ticks = fields.nth(18)?;
    ticks
        .iter()
        .try_fold(0_u64, |sum, &digit| {
            digit.is_ascii_digit().then(|| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')))
        })
        .map(|ticks| (state, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_start_time_of_this_process() {
        let ticks = start_ticks(std::process::id()).unwrap();
        assert!(ticks > 0);
        assert!(!is_gone(std::process::id(), ticks));
        assert!(is_gone(std::process::id(), ticks + 1), "another process with our pid");
    }

    #[test]
    fn a_command_name_can_not_forge_a_field() {
        let stat = b"7 (a) Z 1 1) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 1 1";
        assert_eq!(parse(stat), Some((b'S', 4242)));
        assert_eq!(parse(b"7 (a"), None);
    }
}
