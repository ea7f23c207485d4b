use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Reads what a task wrote since the last look; the offset is all that must be remembered over a restart.
#[derive(Debug)]
pub struct Tail {
    file: File,
    offset: u64,
}

impl Tail {
    /// The output of the detached task in `dir`, from `offset` on.
    ///
    /// # Errors
    /// If there is no output file, which exists as soon as the task was started.
    pub fn open(dir: &Path, offset: u64) -> io::Result<Self> {
        let mut file = File::open(dir.join("output.log"))?;
        file.seek(SeekFrom::Start(offset))?;
        Ok(Self { file, offset })
    }

    /// Up to `max` bytes that are new; none if the task wrote nothing since.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read(&mut self, max: usize) -> io::Result<Vec<u8>> {
        let mut chunk = Vec::new();
        self.file.by_ref().take(max as u64).read_to_end(&mut chunk)?;
        self.offset += chunk.len() as u64;
        Ok(chunk)
    }

    /// Where the next read begins.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }
}
