//! How much of a task's output is sent: all of it up to the limit, and the end of what comes after that. Output that
//! was sent or is left out takes no space on the disk any more.

use std::fs::OpenOptions;
use std::path::Path;

use cantle_model::Bytes;
use nix::fcntl::{FallocateFlags, fallocate};

/// The end of the output, which is sent in any case: the reason of a failure is there.
const END_BYTES: u64 = 1 << 20;
/// How often space is given back.
const STEP_BYTES: u64 = 1 << 20;

/// Where the next piece of an output begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutputPosition {
    pub(super) from_bytes: u64,
    /// A line before the piece.
    pub(super) note: Option<String>,
}

/// The place after `sent_bytes` in an output of `all_bytes`; `None` if nothing is sent now.
pub(super) fn place(
    all_bytes: u64,
    sent_bytes: u64,
    limit_bytes: u64,
    ended: bool,
) -> Option<OutputPosition> {
    let rest_bytes = all_bytes.saturating_sub(sent_bytes);
    if sent_bytes < limit_bytes || (ended && rest_bytes <= END_BYTES) {
        return Some(OutputPosition { from_bytes: sent_bytes, note: None });
    }
    ended.then(|| {
        let (left_out, limit) = (Bytes(rest_bytes - END_BYTES), Bytes(limit_bytes));
        let note = format!(
            "cantle: {left_out} of output is left out here; the limit of a run is {limit} (--output-limit)\n"
        );
        OutputPosition { from_bytes: all_bytes - END_BYTES, note: Some(note) }
    })
}

/// The line after the piece with which the output of a running task reaches its limit.
pub(super) fn note_at_limit(sent_bytes: u64, end_bytes: u64, limit_bytes: u64) -> Option<String> {
    let is_reached = sent_bytes < limit_bytes && end_bytes >= limit_bytes;
    is_reached.then(|| {
        let (limit, end) = (Bytes(limit_bytes), Bytes(END_BYTES));
        format!(
            "cantle: the output has reached its limit of {limit} (--output-limit); of the rest, the last {end} follows when the task ends\n"
        )
    })
}

/// Gives the disk back what an output has up to a place: the piece was sent, or will not be. The output keeps its length.
pub(super) fn free_sent(path: &Path, from_bytes: u64, to_bytes: u64) {
    if from_bytes / STEP_BYTES == to_bytes / STEP_BYTES {
        return;
    }
    let (Ok(file), Ok(length)) = (OpenOptions::new().write(true).open(path), i64::try_from(to_bytes)) else {
        return;
    };
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    // Some file systems have no holes. There it takes space until the task's files are removed.
    let _ = fallocate(&file, hole, 0, length);
}

/// The same for a running task that has reached its limit: all but the end.
pub(super) fn free_left_out(path: &Path, all_bytes: u64) {
    free_sent(path, 0, all_bytes.saturating_sub(END_BYTES));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_beginning_and_the_end_are_sent() {
        let at = |from_bytes| Some(OutputPosition { from_bytes, note: None });
        for ended in [false, true] {
            assert_eq!(place(9 * MIB, 0, 8 * MIB, ended), at(0));
            assert_eq!(place(9 * MIB, 8 * MIB - 1, 8 * MIB, ended), at(8 * MIB - 1));
        }
        assert_eq!(place(90 * MIB, 8 * MIB, 8 * MIB, false), None, "it waits for the end");
        assert_eq!(place(9 * MIB, 8 * MIB, 8 * MIB, true), at(8 * MIB), "nothing is left out");
        let skipped = place(90 * MIB, 8 * MIB, 8 * MIB, true).unwrap();
        assert_eq!(skipped.from_bytes, 89 * MIB);
        assert!(skipped.note.unwrap().starts_with("cantle: 81 MiB of output is left out here"));
        assert_eq!(place(90 * MIB, 89 * MIB + 5, 8 * MIB, true), at(89 * MIB + 5), "once");
    }

    #[test]
    fn the_limit_is_noted_where_it_is_reached() {
        assert_eq!(note_at_limit(0, 7, 8), None);
        assert!(note_at_limit(7, 9, 8).unwrap().contains("limit of 8 B"));
        assert_eq!(note_at_limit(8, 12, 8), None);
    }

    #[test]
    fn what_was_sent_takes_no_space() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![b'x'; 8 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let space = || file.as_file().metadata().unwrap().blocks() * 512;
        let before = space();
        free_sent(file.path(), 0, MIB - 1);
        assert_eq!(space(), before, "less than a step");
        free_sent(file.path(), 0, 6 * MIB);
        assert!(space() <= before - 6 * MIB, "{} of {before}", space());
        let text = std::fs::read(file.path()).unwrap();
        assert_eq!(text.len(), 8 << 20);
        assert!(text[6 << 20..].iter().all(|byte| *byte == b'x'));
    }
}
