//! Mounts, and the directory in which the machine's parts are assembled.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};

use crate::{Result, step};

/// A tmpfs for the machine's own files until they are mounted where they belong. It ends with the namespace and has no path after
/// [`Stage::close`].
pub(crate) struct Stage {
    dir: PathBuf,
}

impl Stage {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        step("make its directory", || fs::create_dir_all(dir))?;
        mount(Some(Path::new("tmpfs")), dir, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0755"))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// A new directory for one purpose.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        step("make a directory", || fs::create_dir_all(&dir))?;
        Ok(dir)
    }

    /// Makes the contents of `more` appear in the existing directory `target` in addition to what it has. Writing to the
    /// directory changes the machine only.
    pub(crate) fn overlay(&self, more: &Path, target: &Path) -> Result<()> {
        let name = target.to_string_lossy().replace('/', "+");
        let (upper, work) =
            (self.directory(&format!("upper{name}"))?, self.directory(&format!("work{name}"))?);
        step(&format!("overlay {}", target.display()), || {
            // By descriptors: names may contain the characters that separate options.
            let open = [more, target, &upper, &work].map(File::open);
            let [more, below, upper, work] = open;
            let (more, below, upper, work) = (more?, below?, upper?, work?);
            let fd = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
            let options = format!(
                "lowerdir={}:{},upperdir={},workdir={}",
                fd(&more),
                fd(&below),
                fd(&upper),
                fd(&work)
            );
            let attempt = |options: &str| {
                nix::mount::mount(Some("overlay"), target, Some("overlay"), MsFlags::empty(), Some(options))
            };
            // A user namespace has no access to trusted attributes.
            Ok(attempt(&options).or_else(|_| attempt(&format!("{options},userxattr")))?)
        })
    }

    pub(crate) fn close(self) -> Result<()> {
        step("leave the stage", || Ok(umount2(&self.dir, MntFlags::MNT_DETACH)?))
    }
}

/// The leases of a machine are for its own GPUs only, so it has a `/run/cantle` of its own.
pub(crate) fn put_node_directory(run: &Path) -> Result<()> {
    const NODE: &str = "/run/cantle";
    match fs::create_dir(NODE) {
        Ok(()) => {}
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
        // An ordinary user, on a host where root has never run cantle: there is nothing to hide.
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(why) => return step("make /run/cantle", || Err(why)),
    }
    bind(run, Path::new(NODE))
}

pub(crate) fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)
}

/// Makes `path` appear as `copy` too. Sockets stay connected to their servers.
pub(crate) fn mirror(path: &Path, copy: &Path) -> Result<()> {
    let what = format!("copy {}", path.display());
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type(),
        // Removed since the directory was read.
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return step(&what, || Err(why)),
    };
    if kind.is_symlink() {
        return step(&what, || symlink(fs::read_link(path)?, copy));
    }
    step(&what, || if kind.is_dir() { fs::create_dir(copy) } else { File::create(copy).map(drop) })?;
    bind(path, copy)
}

pub(crate) fn mount(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<()> {
    step(&format!("mount on {}", target.display()), || {
        Ok(nix::mount::mount(source, target, kind, flags, options)?)
    })
}
