//! Finds the files that other processes have open.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Whether a process other than this one has one of these files open, under any name.
pub(crate) fn opened_elsewhere(files: &[PathBuf]) -> bool {
    let identity = |path: &Path| {
        let file = fs::metadata(path).ok()?;
        let kind = file.file_type();
        let device = kind.is_block_device() || kind.is_char_device();
        Some(if device { (u64::MAX, file.rdev()) } else { (file.dev(), file.ino()) })
    };
    let named: Vec<_> =
        files.iter().filter_map(|path| Some((fs::canonicalize(path).ok()?, identity(path)?))).collect();
    let is_one = |descriptor: &Path| {
        let Ok(target) = fs::read_link(descriptor) else { return false };
        // The name first: to look at the file behind every descriptor of the machine takes long.
        let mut of_name = named.iter().filter(|(path, _)| target.file_name() == path.file_name()).peekable();
        of_name.peek().is_some()
            && identity(descriptor).is_some_and(|found| of_name.any(|(_, own)| *own == found))
    };
    let pids = entries(Path::new("/proc")).filter_map(|path| path.file_name()?.to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != std::process::id())
        .any(|pid| entries(&PathBuf::from(format!("/proc/{pid}/fd"))).any(|descriptor| is_one(&descriptor)))
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}
