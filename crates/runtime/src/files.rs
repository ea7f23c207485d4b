//! Files of JSON that are there whole or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// What a file must survive. The start of a task need not wait for the disk: a power cut ends the task as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Survives {
    Crash,
    PowerCut,
}

/// Whole or not at all. Only the owner may read it: a task's variables are among what is written.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T, survives: Survives) -> io::Result<()> {
    let fresh = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    if survives == Survives::PowerCut {
        file.sync_data()?;
    }
    fs::rename(&fresh, path)
}
