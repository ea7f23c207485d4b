//! The driver's libraries under their real names, and a loader's cache that lists them.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::elf::{ElfClass, empty_library};
use crate::layout::Layout;
use crate::mounts::{Stage, bind, mirror};
use crate::{MachineError, Result, step};

/// The libraries that have functions here, by their stems.
const HOOKED: [&str; 2] = ["libcuda", "libnvidia-ml"];
/// Other libraries of a driver: their names up to `.so`, and the number of their interface. They are empty here.
const COMPANIONS: [(&str, &str); 7] = [
    ("libnvidia-ptxjitcompiler", "1"),
    ("libnvidia-nvvm", "4"),
    ("libnvidia-opencl", "1"),
    ("libnvidia-encode", "1"),
    ("libnvcuvid", "1"),
    ("libcudadebugger", "1"),
    ("libnvidia-gpucomp", ""),
];
/// Stand-ins for the CUDA runtime. No driver brings one; the machine has them for programs that would load NVIDIA's, which refuses a
/// simulated driver.
const RUNTIMES: [&str; 2] = ["libcudart.so.12", "libcudart.so.13"];
/// The files that Linux' part of the driver opens in Windows' subsystem: a directory for each driver.
const WSL_STORE: &str = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0";
const CACHE: &str = "/etc/ld.so.cache";
const CACHE_CONFIG: &str = "/etc/ld.so.conf";

/// A driver's files, ready to be mounted.
#[derive(Debug)]
pub(crate) struct Files {
    layout: Layout,
    /// The directory that has them, at the paths that they will have below the root.
    tree: PathBuf,
}

/// Lays out the files of one version in one layout below `home`, unless that has been done already.
pub(crate) fn prepare(home: &Path, lib_dir: &Path, layout: Layout, version: &str) -> Result<Files> {
    let tree = home.join("driver").join(format!("{layout}-{version}"));
    let files = Files { layout, tree };
    if !files.are_current(lib_dir) {
        step("lay out the driver's files", || files.lay_out(lib_dir, version))?;
    }
    Ok(files)
}

/// Makes the files appear in this namespace.
pub(crate) fn put(stage: &Stage, files: &Files) -> Result<()> {
    for dir in files.directories() {
        let more = files.below(&dir);
        if more.is_dir() && !has_all(&more, Path::new(&dir)) {
            put_directory(stage, &more, Path::new(&dir))?;
        }
    }
    if !files.layout.is_in_loader_cache() {
        return Ok(());
    }
    let config = Path::new("/etc/ld.so.conf.d");
    if config.is_dir() {
        stage.overlay(&files.below("/etc/ld.so.conf.d"), config)?;
    }
    bind(&files.loader_cache()?, Path::new(CACHE))
}

/// Whether the files are visible already, because a directory above them has been mounted.
fn has_all(more: &Path, target: &Path) -> bool {
    let names = fs::read_dir(more).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    names.into_iter().all(|name| target.join(name).symlink_metadata().is_ok())
}

/// A directory that is missing here is made in an overlay of the nearest one above it.
fn put_directory(stage: &Stage, more: &Path, target: &Path) -> Result<()> {
    let (mut there, mut more) = (target.to_owned(), more.to_owned());
    while !there.is_dir() || (there.starts_with("/run") && there != Path::new("/run")) {
        there.pop();
        more.pop();
    }
    // The host's programs have their sockets there; an overlay would cut them off.
    if there == Path::new("/run") {
        let Some(name) = target.components().nth(2) else { return Ok(()) };
        let dir = there.join(name);
        if let Err(why) = fs::create_dir_all(&dir) {
            if why.kind() != io::ErrorKind::PermissionDenied {
                return step(&format!("make {}", dir.display()), || Err(why));
            }
            put_run(stage, &dir)?;
        }
        return bind(&more.join(name), &dir);
    }
    stage.overlay(&more, &there)
}

/// A `/run` with a directory for the driver, for users who cannot make one in the host's. Everything else in it is the
/// host's.
fn put_run(stage: &Stage, dir: &Path) -> Result<()> {
    let run = stage.directory("run")?;
    for entry in step("read /run", || fs::read_dir("/run"))? {
        let entry = step("read /run", || entry)?;
        mirror(&entry.path(), &run.join(entry.file_name()))?;
    }
    step(&format!("make {}", dir.display()), || {
        fs::create_dir(run.join(dir.file_name().unwrap_or_default()))?;
        // Ordinary users cannot make anything there.
        fs::set_permissions(&run, Permissions::from_mode(0o555))
    })?;
    bind(&run, Path::new("/run"))
}

impl Files {
    fn below(&self, path: &str) -> PathBuf {
        self.tree.join(path.trim_start_matches('/'))
    }

    fn directories(&self) -> Vec<String> {
        let mut dirs = vec![self.layout.library_dir()];
        dirs.extend(self.layout.small_library_dir().map(str::to_owned));
        dirs.extend(Some(self.layout.program_dir().to_owned()).filter(|dir| !dirs.contains(dir)));
        dirs.extend((self.layout == Layout::Wsl).then(|| WSL_STORE.to_owned()));
        // If one directory contains another, the outer one comes first.
        dirs.sort();
        dirs
    }

    /// False for files of an older build, or incomplete ones, which are laid out again.
    fn are_current(&self, lib_dir: &Path) -> bool {
        let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        let built = HOOKED.iter().map(|stem| time(&lib_dir.join(format!("sim/{stem}.so.1")))).max().flatten();
        let others = RUNTIMES.iter().chain(&["nvidia-smi"]).map(|file| time(&lib_dir.join("sim").join(file)));
        let newest = others.max().flatten().max(built);
        time(&self.tree.join("complete")).is_some_and(|made| Some(made) > newest)
    }

    fn lay_out(&self, lib_dir: &Path, version: &str) -> io::Result<()> {
        let fresh = self.tree.with_extension(format!("{}.new", std::process::id()));
        let files = Self { layout: self.layout, tree: fresh };
        let dir = files.below(&self.layout.library_dir());
        fs::create_dir_all(&dir)?;
        for stem in HOOKED {
            fs::copy(lib_dir.join(format!("sim/{stem}.so.1")), dir.join(format!("{stem}.so.{version}")))?;
            symlink(format!("{stem}.so.{version}"), dir.join(format!("{stem}.so.1")))?;
            symlink(format!("{stem}.so.1"), dir.join(format!("{stem}.so")))?;
        }
        for file in RUNTIMES {
            let built = lib_dir.join("sim").join(file);
            if built.is_file() {
                fs::copy(built, dir.join(file))?;
            }
        }
        for (stem, interface) in COMPANIONS {
            let file = format!("{stem}.so.{version}");
            let soname = if interface.is_empty() { file.clone() } else { format!("{stem}.so.{interface}") };
            fs::write(dir.join(&file), empty_library(&soname, ElfClass::Own))?;
            if soname != file {
                symlink(&file, dir.join(soname))?;
            }
        }
        if self.layout == Layout::Wsl {
            fs::write(dir.join("libdxcore.so"), empty_library("libdxcore.so", ElfClass::Own))?;
            let store = files.below(WSL_STORE);
            fs::create_dir_all(&store)?;
            fs::write(store.join("nvlddmkm.sys"), "")?;
        }
        if let Some(small) = self.layout.small_library_dir() {
            let dir = files.below(small);
            fs::create_dir_all(&dir)?;
            for stem in HOOKED {
                let soname = format!("{stem}.so.1");
                fs::write(dir.join(format!("{stem}.so.{version}")), empty_library(&soname, ElfClass::Small))?;
                symlink(format!("{stem}.so.{version}"), dir.join(soname))?;
            }
        }
        files.lay_out_programs(lib_dir)?;
        if self.layout.is_in_loader_cache() {
            let config = files.below("/etc/ld.so.conf.d");
            fs::create_dir_all(&config)?;
            let dirs: Vec<String> =
                [Some(self.layout.library_dir()), self.layout.small_library_dir().map(str::to_owned)]
                    .into_iter()
                    .flatten()
                    .collect();
            fs::write(config.join("nvidia.conf"), dirs.join("\n") + "\n")?;
        }
        fs::write(files.tree.join("complete"), "")?;
        // Another process may have been quicker; its files are the same.
        let _ = fs::remove_dir_all(&self.tree);
        fs::rename(&files.tree, &self.tree).or_else(|why| {
            let _ = fs::remove_dir_all(&files.tree);
            if self.tree.join("complete").exists() { Ok(()) } else { Err(why) }
        })
    }

    /// NVIDIA's own program, if the installation has it in the simulated driver's directory.
    fn lay_out_programs(&self, lib_dir: &Path) -> io::Result<()> {
        let program = lib_dir.join("sim/nvidia-smi");
        if !program.is_file() {
            return Ok(());
        }
        let dir = self.below(self.layout.program_dir());
        fs::create_dir_all(&dir)?;
        fs::copy(program, dir.join("nvidia-smi")).map(drop)
    }

    /// The loader's cache for the host's libraries and the driver's, made in the namespace, where both are visible.
    fn loader_cache(&self) -> Result<PathBuf> {
        let cache = self.tree.join("ld.so.cache");
        let time = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
        if time(&cache).is_some_and(|made| Some(made) > time(Path::new(CACHE))) {
            return Ok(cache);
        }
        let fresh = self.tree.join(format!("ld.so.cache.{}", std::process::id()));
        let ran = step("run ldconfig", || {
            let find = |path: &&str| Path::new(path).is_file();
            let ldconfig =
                ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(find).unwrap_or("ldconfig");
            // -X: the host's links stay as they are.
            Command::new(ldconfig).arg("-X").arg("-C").arg(&fresh).arg("-f").arg(CACHE_CONFIG).output()
        })?;
        if !ran.status.success() {
            let why = io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned());
            return Err(MachineError::Step { step: "run ldconfig".to_owned(), why });
        }
        step("store the loader's cache", || fs::rename(&fresh, &cache))?;
        Ok(cache)
    }
}
