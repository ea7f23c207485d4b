//! A hook that an engine runs before it starts a container that cantle does not start itself, such as a pod's. It covers the
//! image's own copies of the driver's libraries.
//!
//! It is a `createContainer` hook: the container's mounts exist, its root is not entered yet, and the machine's files are
//! still reachable. If it fails, the container does not start.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::fcntl::{OFlag, openat};
use nix::mount::MsFlags;
use nix::sys::stat::Mode;
use nix::unistd::{chdir, chroot};
use serde::Deserialize;

use super::compat::{DriverVersion, is_used_over};
use super::contents::library_dirs;
use super::copies::{Root, STEMS};
use super::machine_root::MachineRoot;
use crate::cdi::CdiHook;
use crate::processes::FileId;
use crate::sandbox::{REAL_DIR, plain_mount, read_only};
use crate::{COVER_IMAGE_COMMAND, TaskSpec};

/// The hook of a slice's device; `program` is this program, at a path of the machine.
#[must_use]
pub fn image_hook(spec: &TaskSpec, program: &Path) -> CdiHook {
    let confinement = &spec.confinement;
    let filters = STEMS.map(|stem| confinement.filter(stem).display().to_string());
    let driver = confinement.libraries.cuda.real.display().to_string();
    let words = ["cantle".to_owned(), COVER_IMAGE_COMMAND.to_owned()];
    CdiHook {
        hook_name: "createContainer".to_owned(),
        path: program.to_owned(),
        args: words.into_iter().chain(filters).chain([driver]).collect(),
    }
}

/// The hook itself, with the words after [`COVER_IMAGE_COMMAND`] and the container's state on its standard input.
#[must_use]
pub fn cover_image_main(words: &[OsString]) -> ExitCode {
    if let [root] = words {
        return can_run_on(Path::new(root));
    }
    let [cuda, nvml, driver] = words else { return ExitCode::from(2) };
    match cover(io::stdin().lock(), [Path::new(cuda), Path::new(nvml)], Path::new(driver)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // The engine passes it on. A listener that is not connected misses it.
            let _ = writeln!(io::stderr(), "cantle: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The arguments with which a copy of this program shows whether an engine can run it, from a pod that sees the node's processes: the
/// parent of a container's first process is the engine's, which is where hooks are run.
#[must_use]
pub fn image_hook_trial() -> [String; 2] {
    [COVER_IMAGE_COMMAND.to_owned(), MachineRoot::engine_path().display().to_string()]
}

/// Enters another root and lets this program's copy there, under the same path, print its version: a machine whose loader or
/// C library does not fit cannot.
fn can_run_on(root: &Path) -> ExitCode {
    let why = match (std::env::current_exe(), chroot(root).and_then(|()| chdir("/"))) {
        (Ok(program), Ok(())) => {
            Command::new(program).arg("--version").stdout(Stdio::null()).exec().to_string()
        }
        (Err(why), _) => why.to_string(),
        (_, Err(why)) => why.to_string(),
    };
    let _ = writeln!(io::stderr(), "cantle: {why}");
    ExitCode::FAILURE
}

/// The state of a container, as far as it is of use here.
#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

#[derive(Deserialize)]
struct Config {
    root: ConfigRoot,
    process: Process,
}

#[derive(Deserialize)]
struct ConfigRoot {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Process {
    #[serde(default)]
    env: Vec<String>,
}

/// Why a container does not start.
#[derive(Debug, thiserror::Error)]
enum HookError {
    #[error("the image's copies of libcuda could not be covered: {0}")]
    Uncovered(#[from] io::Error),
    #[error(
        "the image has musl and no glibc, as Alpine has, so its programs cannot load NVIDIA's driver; use an image with glibc, \
         such as Debian's or Ubuntu's"
    )]
    Musl,
}

/// Has the image the loader of musl, and none of glibc? An image without any, with static programs only, does not show its C
/// library.
fn has_musl_alone(root: &Root) -> bool {
    let arch = std::env::consts::ARCH;
    let glibc = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    root.open(&format!("/lib/ld-musl-{arch}.so.1")).is_ok()
        && glibc.iter().all(|path| root.open(path).is_err())
}

fn cover(state: impl Read, filters: [&Path; 2], driver: &Path) -> Result<(), HookError> {
    let state: State = serde_json::from_reader(state).map_err(io::Error::from)?;
    let config = File::open(state.bundle.join("config.json"))?;
    let config: Config = serde_json::from_reader(config).map_err(io::Error::from)?;
    let root = Root::at(&state.bundle.join(config.root.path))?;
    if has_musl_alone(&root) {
        return Err(HookError::Musl);
    }
    let env = config.process.env;
    let copies: Vec<(&Path, Vec<String>)> = STEMS
        .into_iter()
        .zip(filters)
        .map(|(stem, filter)| (filter, root.copies(&env, stem, filter)))
        .collect();
    // Before it is covered.
    if let Some((_, paths)) = copies.first()
        && let Some(libcuda) = package(&root, paths, driver)
    {
        put_before(&root, &libcuda)?;
    }
    for (filter, paths) in copies {
        for path in paths {
            // Of two names of one file the second one is covered with the first.
            if root.file_id(&path) != FileId::of(filter) {
                bind(&root, filter, &path)?;
            }
        }
    }
    Ok(())
}

/// The newest libcuda of a compatibility package that is to be used over the driver.
fn package(root: &Root, paths: &[String], driver: &Path) -> Option<PathBuf> {
    let driver = DriverVersion::of_libcuda(driver)?;
    let files: BTreeSet<(DriverVersion, PathBuf)> = paths
        .iter()
        .filter_map(|path| {
            let (_open, file) = root.path_to(path)?;
            let file = file.canonicalize().ok()?;
            Some((DriverVersion::of_libcuda(&file)?, file))
        })
        .collect();
    files.into_iter().rev().find(|(own, file)| is_used_over(file, own, &driver)).map(|(_, file)| file)
}

/// Lets the filter forward to this libcuda, and puts its other files where the loader finds them.
fn put_before(root: &Root, libcuda: &Path) -> io::Result<()> {
    bind(root, libcuda, &format!("{REAL_DIR}/libcuda.so.1"))?;
    let Some(dir) = libcuda.parent() else { return Ok(()) };
    for entry in dir.read_dir()? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_hooked = STEMS.iter().any(|stem| name.starts_with(stem));
        // A link could lead anywhere on this machine: those of a package lead to a file in the same directory.
        let Ok(target) = file.canonicalize() else { continue };
        if is_hooked || !name.starts_with("lib") || !name.contains(".so") || target.parent() != Some(dir) {
            continue;
        }
        for place in library_dirs() {
            bind(root, &target, &format!("{place}/{name}"))?;
        }
    }
    Ok(())
}

/// Makes a file of this machine appear in the container, read-only. If the path does not exist, an empty file is created to
/// mount on. Without a directory for it, nothing is done: no loader searches there.
fn bind(root: &Root, source: &Path, target: &str) -> io::Result<()> {
    let (dir, name) = target.rsplit_once('/').unwrap_or(("", target));
    let file: OwnedFd = match root.open(target) {
        Ok(file) => file.into(),
        Err(_) => {
            let Ok(dir) = root.open(dir) else { return Ok(()) };
            let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
            openat(dir, name, flags, Mode::from_bits_truncate(0o644))?
        }
    };
    let at = |file: &OwnedFd| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    plain_mount(Some(source), &at(&file), None, MsFlags::MS_BIND)?;
    let mounted: OwnedFd = root.open(target)?.into();
    read_only(&at(&mounted), MsFlags::MS_NOSUID | MsFlags::MS_NODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_package_for_the_driver_is_used() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["libcuda.so.535.1", "libcuda.so.570.1", "libcuda.so.580.1"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let root = Root::at(dir.path()).unwrap();
        let paths = ["/libcuda.so.535.1", "/libcuda.so.580.1", "/libcuda.so.570.1"].map(str::to_owned);
        let found = |driver: &str| package(&root, &paths, Path::new(driver));
        let newest = dir.path().canonicalize().unwrap().join("libcuda.so.580.1");
        assert_eq!(found("/real/libcuda.so.550.1"), Some(newest));
        assert_eq!(found("/real/libcuda.so.580.1"), None);
        assert_eq!(found("/real/libcuda.so.1"), None);
    }

    #[test]
    fn an_image_of_musl_is_told_from_one_that_has_glibc_too() {
        let dir = tempfile::tempdir().unwrap();
        let has = |name: &str| {
            let file = dir.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, "").unwrap();
            has_musl_alone(&Root::at(dir.path()).unwrap())
        };
        assert!(!has("bin/static"));
        assert!(has(&format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH)));
        assert!(!has("lib64/ld-linux-x86-64.so.2"), "Debian's package musl, or Alpine's gcompat");
    }

    #[test]
    fn a_state_that_names_no_container_is_an_error() {
        let none = Path::new("/none");
        assert!(cover("{}".as_bytes(), [none, none], none).is_err());
        assert!(cover(r#"{"bundle": "/nowhere"}"#.as_bytes(), [none, none], none).is_err());
        assert_eq!(cover_image_main(&[]), ExitCode::from(2));
    }
}
