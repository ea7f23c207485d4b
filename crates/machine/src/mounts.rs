//! Mounts, and the place where the machine's parts are put together.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};

use crate::{Result, step};

/// A tmpfs in which the machine's own files are, until they are where they belong. It goes away with the namespace; nobody
/// finds it by a name.
pub(crate) struct Stage {
    dir: PathBuf,
}

impl Stage {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        step("make its folder", || fs::create_dir_all(dir))?;
        mount(Some(Path::new("tmpfs")), dir, Some("tmpfs"), MsFlags::MS_NOSUID, Some("mode=0755"))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// A new folder for one purpose.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        step("make a folder", || fs::create_dir_all(&dir))?;
        Ok(dir)
    }

    /// Makes the contents of `more` appear in the existing folder `target` beside what is there. Writing to the folder
    /// changes the machine only.
    pub(crate) fn overlay(&self, more: &Path, target: &Path) -> Result<()> {
        let name = target.to_string_lossy().replace('/', "+");
        let (upper, work) = (self.folder(&format!("upper{name}"))?, self.folder(&format!("work{name}"))?);
        step(&format!("overlay {}", target.display()), || {
            // By descriptors: names may hold what separates options.
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
            // In a user namespace the trusted attributes can't be had.
            Ok(attempt(&options).or_else(|_| attempt(&format!("{options},userxattr")))?)
        })
    }

    pub(crate) fn close(self) -> Result<()> {
        step("leave the stage", || Ok(umount2(&self.dir, MntFlags::MNT_DETACH)?))
    }
}

/// The leases of a machine are about its GPUs and nobody else's: they have their own `/run/cantle`.
pub(crate) fn put_node_directory(run: &Path) -> Result<()> {
    const NODE: &str = "/run/cantle";
    match fs::create_dir(NODE) {
        Ok(()) => {}
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
        // An ordinary user, on a machine where root has never run cantle: nobody finds anything there.
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(why) => return step("make /run/cantle", || Err(why)),
    }
    bind(run, Path::new(NODE))
}

pub(crate) fn bind(source: &Path, target: &Path) -> Result<()> {
    mount(Some(source), target, None, MsFlags::MS_BIND | MsFlags::MS_REC, None)
}

/// Makes `path` appear as `copy` too. Sockets stay the same sockets.
pub(crate) fn mirror(path: &Path, copy: &Path) -> Result<()> {
    let what = format!("copy {}", path.display());
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type(),
        // Gone since the folder was read.
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
