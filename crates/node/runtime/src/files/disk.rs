//! A disk in memory that loses its power after a number of system calls.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::FileSystem;

/// A file's number; its name may change while it is open.
type Inode = usize;

/// The contents after a restart, and the contents while the power is on.
#[derive(Clone, Default)]
struct Content {
    cached: Vec<u8>,
    on_disk: Vec<u8>,
}

#[derive(Default)]
struct Inner {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, Inode>,
    names_on_disk: BTreeMap<PathBuf, Inode>,
    calls: Vec<String>,
    calls_left: Option<usize>,
}

/// Keeps only what was synced: bytes with their file, names with their directory.
#[derive(Default)]
pub(crate) struct Disk(RefCell<Inner>);

pub(crate) enum Opened {
    File(Inode),
    Directory(PathBuf),
}

impl Disk {
    /// The power goes after these many calls; they and all others fail from then on.
    pub(crate) fn power_for(self, calls: usize) -> Self {
        self.0.borrow_mut().calls_left = Some(calls);
        self
    }

    /// The system calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.borrow().calls.clone()
    }

    /// The machine starts again: what was not synced is gone.
    pub(crate) fn restart(self) -> BTreeMap<PathBuf, Vec<u8>> {
        let inner = self.0.into_inner();
        let on_disk = |(name, inode): (PathBuf, Inode)| (name, inner.contents[inode].on_disk.clone());
        inner.names_on_disk.into_iter().map(on_disk).collect()
    }

    fn call<T>(&self, what: String, call: impl FnOnce(&mut Inner) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.0.borrow_mut();
        match &mut inner.calls_left {
            Some(0) => return Err(io::Error::other("the power is gone")),
            Some(left) => *left -= 1,
            None => {}
        }
        inner.calls.push(what);
        call(&mut inner)
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

impl FileSystem for Disk {
    type File = Opened;

    fn create(&self, path: &Path, mode: u32) -> io::Result<Opened> {
        self.call(format!("create {} {mode:o}", name(path)), |inner| {
            inner.contents.push(Content::default());
            let inode = inner.contents.len() - 1;
            inner.names.insert(path.to_owned(), inode);
            Ok(Opened::File(inode))
        })
    }

    fn open(&self, path: &Path) -> io::Result<Opened> {
        let inner = self.0.borrow();
        match inner.names.get(path) {
            Some(inode) => Ok(Opened::File(*inode)),
            None if inner.names.keys().any(|name| name.parent() == Some(path)) => {
                Ok(Opened::Directory(path.to_owned()))
            }
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn write(&self, file: &mut Opened, bytes: &[u8]) -> io::Result<()> {
        let Opened::File(inode) = file else { return Err(io::ErrorKind::IsADirectory.into()) };
        self.call("write".to_owned(), |inner| {
            inner.contents[*inode].cached.extend(bytes);
            Ok(())
        })
    }

    fn sync(&self, file: &Opened) -> io::Result<()> {
        match file {
            Opened::File(inode) => self.call("sync file".to_owned(), |inner| {
                let content = &mut inner.contents[*inode];
                content.on_disk.clone_from(&content.cached);
                Ok(())
            }),
            Opened::Directory(path) => self.call(format!("sync directory {}", name(path)), |inner| {
                let here = |name: &PathBuf| name.parent() == Some(path);
                inner.names_on_disk.retain(|name, _| !here(name));
                let now = inner.names.iter().filter(|(name, _)| here(name));
                let now: Vec<_> = now.map(|(name, inode)| (name.clone(), *inode)).collect();
                inner.names_on_disk.extend(now);
                Ok(())
            }),
        }
    }

    fn discard(&self, path: &Path) {
        // Without power nothing is removed either.
        let _ = self.call(format!("discard {}", name(path)), |inner| {
            inner.names.remove(path);
            Ok(())
        });
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(format!("rename {} {}", name(from), name(to)), |inner| {
            let inode = inner.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
            inner.names.insert(to.to_owned(), inode);
            Ok(())
        })
    }
}
