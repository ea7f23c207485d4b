//! Copies of the driver's files at a path that is the same for this process and for the node.
//!
//! A container engine mounts paths of the node. cantle's pod on the node gets the driver from NVIDIA's container runtime,
//! which puts the files where the pod's image has its libraries. The node may not have that path, because its driver may be
//! in a driver container (`/run/nvidia/driver`), in `/usr/lib64`, or below another root. A directory that has the same path
//! in the pod and on the node works in all these cases.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use cantle_driver::Driver;

use crate::NodeError;

/// The directory for copies of one driver's files.
#[derive(Debug)]
pub(crate) struct DriverFiles {
    dir: PathBuf,
}

impl DriverFiles {
    /// Below `root`, in a directory of the driver's version. All files are copied at once, so that a disk that is full is noticed
    /// before a pod needs them.
    ///
    /// # Errors
    /// Names what cannot be read or written.
    pub(crate) fn of_driver(driver: &dyn Driver, root: &Path) -> Result<Self, NodeError> {
        let files = Self::new(root, &driver.versions().driver)?;
        let libraries = driver.libraries()?;
        let others = driver.container_parts(&[])?.files;
        for file in [libraries.cuda.real, libraries.nvml.real].iter().chain(&others) {
            files.copy_of(file)?;
        }
        Ok(files)
    }

    fn new(root: &Path, driver_version: &str) -> Result<Self, NodeError> {
        let dir = root.join(driver_version);
        let made = DirBuilder::new().recursive(true).mode(0o755).create(&dir);
        made.map_err(|error| NodeError::file(&dir, error))?;
        Ok(Self { dir })
    }

    /// Removes the files of other versions. Containers that have them keep them.
    ///
    /// # Errors
    /// Names what could not be removed.
    pub(crate) fn remove_others(&self) -> Result<(), NodeError> {
        let Some(root) = self.dir.parent() else { return Ok(()) };
        let entries = fs::read_dir(root).map_err(|error| NodeError::file(root, error))?;
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.dir) {
            fs::remove_dir_all(&path).map_err(|error| NodeError::file(&path, error))?;
        }
        Ok(())
    }

    /// The copy of a file, made or brought up to date; of a link, the link next to the copy of its file. A directory is not
    /// copied: only Windows' subsystem for Linux has one, under the same name everywhere.
    ///
    /// # Errors
    /// If the file cannot be read, or its copy cannot be written.
    pub(crate) fn copy_of(&self, path: &Path) -> Result<PathBuf, NodeError> {
        let file = path.canonicalize().map_err(|error| NodeError::file(path, error))?;
        if file.is_dir() {
            return Ok(file);
        }
        let (Some(name), Some(target)) = (path.file_name(), file.file_name()) else {
            return Err(NodeError::file(path, io::ErrorKind::InvalidFilename.into()));
        };
        let copy = self.dir.join(target);
        copy_if_changed(&file, &copy).map_err(|error| NodeError::file(&copy, error))?;
        let named = self.dir.join(name);
        if name != target && fs::read_link(&named).ok().as_deref() != Some(Path::new(target)) {
            let made = replace(&named, |new| symlink(target, new));
            made.map_err(|error| NodeError::file(&named, error))?;
        }
        Ok(named)
    }
}

fn copy_if_changed(file: &Path, copy: &Path) -> io::Result<()> {
    let from = fs::metadata(file)?;
    let is_same = |to: Metadata| to.len() == from.len() && to.modified().ok() == from.modified().ok();
    if fs::metadata(copy).is_ok_and(is_same) {
        return Ok(());
    }
    replace(copy, |new| {
        fs::copy(file, new)?;
        fs::set_permissions(new, fs::Permissions::from_mode(0o755))?;
        // Last: a copy that was not finished has another time than its original.
        File::options().write(true).open(new)?.set_modified(from.modified()?)
    })
}

/// Makes a file under another name, then gives it its own: containers that have the former one keep it.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        _ => make(&new)?,
    }
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_links_are_copied_once_and_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let (installed, root) = (dir.path().join("installed"), dir.path().join("copies"));
        fs::create_dir(&installed).unwrap();
        let library = installed.join("libnvidia-nvvm.so.550.1");
        fs::write(&library, "one").unwrap();
        symlink("libnvidia-nvvm.so.550.1", installed.join("libnvidia-nvvm.so.4")).unwrap();
        fs::create_dir_all(root.join("535.1")).unwrap();

        let files = DriverFiles::new(&root, "550.1").unwrap();
        let copy = files.copy_of(&library).unwrap();
        let link = files.copy_of(&installed.join("libnvidia-nvvm.so.4")).unwrap();
        assert_eq!(copy, root.join("550.1/libnvidia-nvvm.so.550.1"));
        assert_eq!(link.canonicalize().unwrap(), copy.canonicalize().unwrap());
        assert_eq!(fs::read_to_string(&link).unwrap(), "one");
        assert_eq!(fs::read_dir(root.join("550.1")).unwrap().count(), 2, "nothing else is left there");

        let held = File::open(&copy).unwrap();
        fs::write(&library, "another").unwrap();
        files.copy_of(&library).unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), "another");
        assert_eq!(io::read_to_string(held).unwrap(), "one", "open handles keep the former version");

        files.remove_others().unwrap();
        assert!(!root.join("535.1").exists() && copy.exists());
        let error = files.copy_of(Path::new("/nowhere/libcuda.so.1")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/libcuda.so.1"), "{error}");
    }
}
