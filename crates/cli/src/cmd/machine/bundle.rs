//! `cantle doctor --bundle`: what a maintainer needs to know about a machine, in one file that its owner can read
//! first.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use cantle_driver::{Driver, Installation};
use object::{Object as _, ObjectSymbol as _};

use super::checkup::Checkup;
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind};

/// Only the end of a log is of interest.
const LOG_BYTES: usize = 256 << 10;
/// Variables whose values determine how programs find the driver; of cantle's other variables, only the names are
/// written.
const VARIABLES: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
];
/// Words after which a value is a secret, in any case.
const SECRET_WORDS: [&str; 5] = ["secret", "password", "token", "access_key", "authorization"];
const HIDDEN: &str = "***";

/// Lists what it collects, then writes it. The file's name is the data.
pub(crate) fn write(context: &Context, file: &Path, checkups: &[Checkup]) -> CommandResult {
    let sections = collect(context, checkups);
    context.printer.say(&format!("{} will have (keys are left out; logs name tasks):", file.display()));
    for (name, text) in &sections {
        context.printer.say(&format!("  {name} ({} lines)", text.lines().count()));
    }
    let text: String =
        sections.iter().map(|(name, text)| format!("=== {name}\n{}\n\n", text.trim_end())).collect();
    fs::write(file, text)
        .map_err(|why| CliError::wrap(ErrorKind::Failed, format!("cannot write {}", file.display()), why))?;
    context.printer.data(&file.display().to_string());
    Ok(ExitCode::SUCCESS)
}

fn collect(context: &Context, checkups: &[Checkup]) -> Vec<(String, String)> {
    let mut sections = vec![
        ("cantle".to_owned(), versions(context)),
        ("doctor".to_owned(), serde_json::to_string_pretty(checkups).unwrap_or_default()),
        ("process".to_owned(), process()),
        ("mounts".to_owned(), mounts()),
        ("device nodes".to_owned(), nodes()),
        ("driver".to_owned(), driver()),
    ];
    sections.extend(driver_files().into_iter().map(|path| (path.display().to_string(), read(&path))));
    sections.extend(logs(&context.dirs.state).into_iter().map(|path| {
        let text = end_of(&path);
        (path.display().to_string(), without_secrets(&text))
    }));
    sections
}

fn versions(context: &Context) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let uname = Command::new("uname").arg("-a").output();
    let uname = uname.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    // The host's name is private.
    let uname = uname.split_whitespace().enumerate().filter(|(at, _)| *at != 1).map(|(_, word)| word);
    format!(
        "version {}\nprogram {}\nlibraries {}\nstate {}\nkernel {}\nsecurity modules {}\n{}",
        env!("CARGO_PKG_VERSION"),
        program.display(),
        context.dirs.lib.display(),
        context.dirs.state.display(),
        uname.collect::<Vec<_>>().join(" "),
        read(Path::new("/sys/kernel/security/lsm")).trim(),
        read(Path::new("/etc/os-release")),
    )
}

/// The privileges of this process, and its search path for libraries.
fn process() -> String {
    let status = read(Path::new("/proc/self/status"));
    let wanted = ["Uid:", "Gid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "NSpid:"];
    let mut text: String = status
        .lines()
        .filter(|line| wanted.iter().any(|word| line.starts_with(word)))
        .fold(String::new(), |text, line| text + line + "\n");
    let _ = writeln!(text, "cgroups\n{}", read(Path::new("/proc/self/cgroup")).trim_end());
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if VARIABLES.contains(&&*name) {
            let _ = writeln!(text, "{name}={}", value.to_string_lossy());
        } else if ["CANTLE_", "CLEARML_", "TRAINS_"].iter().any(|prefix| name.starts_with(prefix)) {
            let _ = writeln!(text, "{name} is set");
        }
    }
    text
}

/// The mounts of the directories that cantle and drivers use.
fn mounts() -> String {
    const WANTED: [&str; 9] = ["/", "/run", "/dev", "/tmp", "/usr", "/var", "/proc", "/sys", "/opt"];
    let table = read(Path::new("/proc/self/mounts"));
    let is_wanted = |line: &&str| {
        let target = line.split(' ').nth(1).unwrap_or_default();
        WANTED.iter().any(|dir| target == *dir || (*dir != "/" && target.starts_with(&format!("{dir}/"))))
            && !target.contains("docker")
            && !target.contains("kubelet")
    };
    table.lines().filter(is_wanted).collect::<Vec<_>>().join("\n")
}

fn nodes() -> String {
    let mut listed = BTreeMap::new();
    for dir in ["/dev", "/dev/nvidia-caps"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_driver =
                dir != "/dev" || name.to_string_lossy().starts_with("nvidia") || name == OsStr::new("dxg");
            if is_driver && let Ok(meta) = entry.metadata() {
                listed.insert(entry.path(), describe(&meta));
            }
        }
    }
    listed.iter().map(|(path, what)| format!("{} {what}", path.display())).collect::<Vec<_>>().join("\n")
}

fn describe(meta: &fs::Metadata) -> String {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_char_device() => "character device",
        () if kind.is_block_device() => "block device",
        () if kind.is_dir() => "directory",
        () => "file",
    };
    let device = meta.rdev();
    format!(
        "{kind} {}:{} mode {:o} owner {}:{}",
        device >> 8,
        device & 0xff,
        meta.mode() & 0o7777,
        meta.uid(),
        meta.gid()
    )
}

/// Versions, GPUs, and the libraries with all their names and symbols.
fn driver() -> String {
    let driver = match cantle_driver::open(&Installation::of_this_machine()) {
        Ok(driver) => driver,
        Err(why) => return why.to_string(),
    };
    let versions = driver.versions();
    let mut text = format!("driver {}, CUDA {}, NVML {}\n", versions.driver, versions.cuda, versions.nvml);
    match driver.gpus() {
        Ok(gpus) => gpus.iter().for_each(|gpu| {
            let _ = writeln!(
                text,
                "GPU {} {} {} bytes, MIG mode {}",
                gpu.index, gpu.model, gpu.memory_bytes, gpu.mig
            );
        }),
        Err(why) => {
            let _ = writeln!(text, "{why}");
        }
    }
    for lost in driver.lost_gpus() {
        let _ = writeln!(text, "GPU {} is lost: {}", lost.index, lost.why);
    }
    text + &libraries(driver.as_ref())
}

fn libraries(driver: &dyn Driver) -> String {
    let libraries = match driver.libraries() {
        Ok(libraries) => libraries,
        Err(why) => return why.to_string(),
    };
    let mut text = String::new();
    for library in [libraries.cuda, libraries.nvml] {
        for name in &library.names {
            let target =
                fs::read_link(name).map_or(String::new(), |target| format!(" -> {}", target.display()));
            let _ = writeln!(text, "{}{target}", name.display());
        }
        let symbols = symbols(&library.real);
        let _ = writeln!(
            text,
            "{} exports {} symbols: {}",
            library.real.display(),
            symbols.len(),
            symbols.join(" ")
        );
    }
    text
}

fn symbols(library: &Path) -> Vec<String> {
    let bytes = fs::read(library).unwrap_or_default();
    let Ok(file) = object::File::parse(&*bytes) else { return Vec::new() };
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let mut names: Vec<String> = defined.filter_map(|symbol| Some(symbol.name().ok()?.to_owned())).collect();
    names.sort();
    names.dedup();
    names
}

/// The driver's own words. The numbers of a GPU (UUID, serial) are in `information`: they are hidden.
fn driver_files() -> Vec<PathBuf> {
    let fixed = ["version", "params", "registry"].map(|name| Path::new("/proc/driver/nvidia").join(name));
    let of_gpus = fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let of_gpus = of_gpus.map(|entry| entry.path().join("information"));
    let more = ["/proc/driver/nvidia-caps/mig-minors", "/etc/ld.so.conf", "/proc/devices"].map(PathBuf::from);
    let in_config =
        fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = fixed.into_iter().chain(of_gpus).chain(more).chain(in_config).collect();
    all.retain(|path| path.is_file());
    all.sort();
    all
}

fn read(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let hides = |line: &str| {
        if line.starts_with("GPU UUID") { format!("GPU UUID: {HIDDEN}\n") } else { format!("{line}\n") }
    };
    text.lines().map(hides).collect()
}

/// Logs of agents and servers in the background.
fn logs(state: &Path) -> Vec<PathBuf> {
    let below = [state.to_owned(), state.join("agent/logs")];
    let entries = below.iter().flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension() == Some(OsStr::new("log")))
        .collect();
    found.sort();
    found
}

fn end_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(LOG_BYTES)..]).into_owned()
}

/// A line that names a secret is cut after the name: the following text may be the secret, in any form.
fn without_secrets(text: &str) -> String {
    let cut = |line: &str| {
        let low = line.to_ascii_lowercase();
        let at = SECRET_WORDS.iter().filter_map(|word| Some(low.find(word)? + word.len())).min();
        // ASCII text has the same length in lower case, so the position is the same.
        at.map_or_else(
            || format!("{line}\n"),
            |at| format!("{} {HIDDEN}\n", line.get(..at).unwrap_or_default()),
        )
    };
    text.lines().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_name_of_a_secret_is_hidden() {
        let log = "agent starts\nCLEARML_API_SECRET_KEY=abc def\nuses Token: xyz and more\n";
        assert_eq!(without_secrets(log), "agent starts\nCLEARML_API_SECRET ***\nuses Token ***\n");
    }
}
