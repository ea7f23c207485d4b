//! Sends what a task prints to the server.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Output bytes in one log event. ClearML takes 64 KiB; bytes that are not UTF-8 become three bytes each.
const EVENT_BYTES: usize = 20 * 1024;

/// Read at once: bounds the memory that a talkative task costs the agent.
const CHUNK_BYTES: usize = 10 * EVENT_BYTES;

/// A piece of output, ready to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// At most 64 KiB each.
    pub(crate) texts: Vec<String>,
    /// The output is sent up to here once the server has taken this piece.
    pub(crate) end_bytes: u64,
}

/// The next piece of the output after `sent_bytes`, in whole lines as long as the task still runs; `None` if there is
/// nothing to send now.
///
/// # Errors
/// If the file cannot be read; no file is no output.
pub(crate) fn next_piece(path: &Path, sent_bytes: u64, ended: bool) -> io::Result<Option<Piece>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    file.seek(SeekFrom::Start(sent_bytes))?;
    let mut bytes = Vec::new();
    file.take(CHUNK_BYTES as u64).read_to_end(&mut bytes)?;
    let full = bytes.len() == CHUNK_BYTES;
    let take = match bytes.iter().rposition(|&b| b == b'\n') {
        Some(newline) if !ended || full => newline + 1,
        // A line without an end (a progress bar) waits for it, but not forever.
        None if !ended && bytes.len() < EVENT_BYTES => 0,
        _ => bytes.len(),
    };
    bytes.truncate(take);
    if bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Piece { texts: split(&bytes), end_bytes: sent_bytes + take as u64 }))
}

/// Cuts at line ends where possible, so that no event is longer than the server takes.
fn split(bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut end = rest.len().min(EVENT_BYTES);
        if end < rest.len() {
            let newline = rest[..end].iter().rposition(|&b| b == b'\n');
            end = newline.map_or_else(|| char_end(rest, end), |newline| newline + 1);
        }
        let (text, tail) = rest.split_at(end);
        texts.push(String::from_utf8_lossy(text).into_owned());
        rest = tail;
    }
    texts
}

/// `end`, or a little before it, so that no character is cut in two.
fn char_end(bytes: &[u8], end: usize) -> usize {
    let is_start = |&at: &usize| bytes[at] & 0b1100_0000 != 0b1000_0000;
    (end.saturating_sub(3)..=end).rev().find(is_start).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn whole_lines_while_running_everything_at_the_end() {
        let file = output(b"one\ntwo\nthr");
        let piece = next_piece(file.path(), 0, false).unwrap().unwrap();
        assert_eq!(piece, Piece { texts: vec!["one\ntwo\n".into()], end_bytes: 8 });
        assert_eq!(next_piece(file.path(), 8, false).unwrap(), None);
        let piece = next_piece(file.path(), 8, true).unwrap().unwrap();
        assert_eq!(piece, Piece { texts: vec!["thr".into()], end_bytes: 11 });
        assert_eq!(next_piece(file.path(), 11, true).unwrap(), None);
        assert_eq!(next_piece(Path::new("/nonexistent/output"), 0, true).unwrap(), None);
    }

    #[test]
    fn no_event_is_too_long_and_no_byte_is_lost() {
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let all = [line.repeat(1000), "ü€".repeat(30_000).into_bytes()].concat();
        let file = output(&all);
        let (mut sent, mut back) = (0, Vec::new());
        while let Some(piece) = next_piece(file.path(), sent, true).unwrap() {
            for text in &piece.texts {
                assert!(text.len() <= EVENT_BYTES);
                back.extend_from_slice(text.as_bytes());
            }
            sent = piece.end_bytes;
        }
        assert_eq!(back, all);
    }

    #[test]
    fn bytes_that_are_no_text_still_fit_into_an_event() {
        let file = output(&vec![0xFF; 2 * EVENT_BYTES]);
        let piece = next_piece(file.path(), 0, true).unwrap().unwrap();
        assert!(piece.texts.iter().all(|text| text.len() <= 64 * 1024));
        assert_eq!(piece.end_bytes, 2 * EVENT_BYTES as u64);
    }

    #[test]
    fn an_endless_line_does_not_wait_for_its_end() {
        let file = output(&b"z".repeat(EVENT_BYTES + 1));
        assert!(next_piece(file.path(), 0, false).unwrap().is_some());
    }
}
