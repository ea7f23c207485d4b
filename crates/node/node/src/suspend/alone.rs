//! One program at a time changes running tasks of a node.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;

use super::Result;
use crate::NodeError;
use crate::store::NodeStore;

/// The right to change tasks of this node; the kernel takes it from a dead program.
pub(crate) struct Alone(#[expect(dead_code, reason = "held, not read")] File);

impl Alone {
    /// As soon as no other program has it.
    pub(super) fn on(node: &NodeStore) -> Result<Self> {
        let file = Self::file(node)?;
        file.lock().map_err(|error| NodeError::file(node.dir(), error))?;
        Ok(Self(file))
    }

    /// At once, or not at all.
    pub(crate) fn try_on(node: &NodeStore) -> Result<Option<Self>> {
        let file = Self::file(node)?;
        match file.try_lock().map_err(io::Error::from) {
            Ok(()) => Ok(Some(Self(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(NodeError::file(node.dir(), error)),
        }
    }

    fn file(node: &NodeStore) -> Result<File> {
        let path = node.dir().join("suspend.lock");
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        open.map_err(|error| NodeError::file(&path, error))
    }
}
