//! Decides which `docker run` options a task may set. Pure: facts about the machine come from [`Host`].
//!
//! A task inside a slice must not remove its own limit. So options that could are refused by name, options that cantle
//! sets itself are dropped with a note, and the rest passes. An unknown option is refused.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::AdmissionError;
use super::flags::{self, Action, Given};
use crate::TaskUser;
use crate::privileges::is_withheld;

/// The facts about the machine that admission needs.
pub(crate) trait Host {
    /// The path with symbolic links resolved; itself if there is no such file.
    fn resolve(&self, path: &Path) -> PathBuf;
    /// The text of an `--env-file`.
    fn read(&self, path: &Path) -> io::Result<String>;
}

/// The admitted options, and the dropped ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) options: Vec<Given>,
    /// One line for each option that was left out.
    pub(crate) notes: Vec<String>,
}

/// Paths that a task's mounts must keep away from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Protected {
    /// On the machine: the driver's libraries, cantle's own files and state.
    pub(crate) sources: Vec<PathBuf>,
    /// In the container: where cantle mounts.
    pub(crate) targets: Vec<PathBuf>,
}

/// On any machine: access to these is control of the machine.
const SENSITIVE_SOURCES: [&str; 6] =
    ["/dev", "/proc", "/sys", "/run/docker.sock", "/run/containerd", "/run/podman"];
/// Set by cantle, or read by the loader before the driver's libraries.
const REFUSED_VARIABLES: [&str; 8] = [
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "GPU_MEMORY_LIMIT",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_LIBRARY_PATH",
    "LD_DYNAMIC_WEAK",
];

pub(crate) fn admit(
    words: &[String],
    protected: &Protected,
    host: &dyn Host,
) -> Result<Admitted, AdmissionError> {
    let mut admitted = Admitted::default();
    for (flag, value) in flags::parse(words)? {
        let name = flag.name;
        let option = if value.is_empty() { format!("--{name}") } else { format!("--{name}={value}") };
        let refused = |why: String| AdmissionError::Refused { option: option.clone(), why };
        match flag.action {
            Action::Refuse(why) => return Err(refused(why.to_owned())),
            Action::Strip(why) => admitted.notes.push(format!("{option} left out: {why}")),
            Action::Keep if name == "env-file" => {
                let text = host.read(Path::new(&value)).map_err(|why| refused(why.to_string()))?;
                for line in
                    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
                {
                    check_variable(line).map_err(refused)?;
                    admitted.options.push(Given { name: "env", value: line.to_owned() });
                }
            }
            Action::Keep => {
                check(name, &value, protected, host).map_err(refused)?;
                admitted.options.push(Given { name, value });
            }
        }
    }
    Ok(admitted)
}

/// The options with those that make a container this user's. Nothing in it, such as a setuid program of its image, becomes root.
pub(crate) fn of_user(mut admitted: Admitted, user: Option<&TaskUser>) -> Result<Admitted, AdmissionError> {
    let Some(user) = user else { return Ok(admitted) };
    let own = admitted.options.iter().find(|given| matches!(given.name, "user" | "group-add" | "userns"));
    if let Some(Given { name, value }) = own {
        let why = format!("the agent runs its tasks as user {} (--task-user)", user.name());
        return Err(AdmissionError::Refused { option: format!("--{name}={value}"), why });
    }
    let has_home =
        admitted.options.iter().any(|given| given.name == "env" && given.value.starts_with("HOME="));
    let mut add = |name, value| admitted.options.push(Given { name, value });
    add("user", format!("{}:{}", user.uid(), user.gid()));
    user.other_groups().for_each(|group| add("group-add", group.to_string()));
    add("security-opt", "no-new-privileges".to_owned());
    if !has_home {
        // The image does not know the user: its home would be `/`, in which it can write nothing.
        add("env", "HOME=/tmp".to_owned());
    }
    Ok(admitted)
}

/// Looks at the value of an option that may pass.
fn check(name: &str, value: &str, protected: &Protected, host: &dyn Host) -> Result<(), String> {
    match name {
        "env" => check_variable(value),
        "volume" => {
            let parts: Vec<&str> = value.split(':').collect();
            match parts.as_slice() {
                [target] => check_mount(None, target, protected, host),
                [source, target] | [source, target, _] => check_mount(Some(source), target, protected, host),
                _ => Err("it needs SOURCE:TARGET or SOURCE:TARGET:OPTIONS".to_owned()),
            }
        }
        "mount" => check_mount_option(value, protected, host),
        "tmpfs" => {
            let target = value.split(':').next().unwrap_or_default();
            check_mount(None, target, protected, host)
        }
        "device" => check_device(value, host),
        "cap-add" if is_withheld(value) => Err("with it the task could undo its limit".to_owned()),
        "security-opt" if value.starts_with("systempaths") => {
            Err("it opens the machine's own files in /proc".to_owned())
        }
        "label" if value.starts_with("cantle.dev/") => {
            Err("labels of cantle.dev are cantle's own".to_owned())
        }
        "network" | "ipc" if value.starts_with("container:") => {
            Err("it joins another task's container".to_owned())
        }
        "userns" if value == "host" => Err("it makes the container's root the machine's root".to_owned()),
        _ => Ok(()),
    }
}

fn check_variable(text: &str) -> Result<(), String> {
    let Some((name, _)) = text.split_once('=') else {
        return Err("it needs NAME=VALUE; the agent's own environment is not the task's".to_owned());
    };
    if REFUSED_VARIABLES.contains(&name) || name.starts_with("CANTLE_") {
        return Err(format!(
            "{name} decides how the task reaches its GPU; set it inside the command if need be"
        ));
    }
    Ok(())
}

fn check_mount_option(value: &str, protected: &Protected, host: &dyn Host) -> Result<(), String> {
    let field = |names: &[&str]| {
        let mut pairs = value.split(',').filter_map(|part| part.split_once('='));
        pairs.find(|(name, _)| names.contains(name)).map(|(_, value)| value)
    };
    if value.contains('"') {
        return Err("quotes are not supported in it".to_owned());
    }
    let target = field(&["target", "dst", "destination"]).ok_or("it needs target=PATH")?;
    let source = field(&["source", "src"]);
    match field(&["type"]) {
        Some("bind") => {
            let source = source.ok_or("it needs source=PATH")?;
            check_mount(Some(source), target, protected, host)
        }
        Some("tmpfs") => check_mount(None, target, protected, host),
        Some("volume") | None if value.contains("volume-opt") || value.contains("volume-driver") => {
            Err("volume drivers can mount anything".to_owned())
        }
        Some("volume") | None => check_mount(None, target, protected, host),
        Some(kind) => Err(format!("{kind} is not bind, volume or tmpfs")),
    }
}

/// A mount may neither show the task what it must not see nor cover what cantle mounts.
fn check_mount(
    source: Option<&str>,
    target: &str,
    protected: &Protected,
    host: &dyn Host,
) -> Result<(), String> {
    let target = in_image(Path::new(target)).ok_or("its target must be an absolute path without ..")?;
    for ours in &protected.targets {
        if target.starts_with(ours) || ours.starts_with(&target) {
            return Err(format!("it would cover {}, which is cantle's", ours.display()));
        }
    }
    // A source that is no path is a volume of the engine: nothing of the machine.
    let Some(source) = source.map(Path::new).filter(|source| source.is_absolute()) else { return Ok(()) };
    let source = host.resolve(source);
    let file = source.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if file.starts_with("libcuda.so") || file.starts_with("libnvidia-ml.so") {
        return Err("it brings a driver library past the limit".to_owned());
    }
    if file.ends_with("docker.sock") || file.ends_with("containerd.sock") || file.ends_with("podman.sock") {
        return Err("a process with the engine's socket controls the machine".to_owned());
    }
    if source == Path::new("/dev/shm") {
        return Ok(());
    }
    let own = protected.sources.iter().map(PathBuf::as_path);
    for sensitive in own.chain(SENSITIVE_SOURCES.iter().map(Path::new)) {
        let resolved = host.resolve(sensitive);
        if source.starts_with(&resolved) || resolved.starts_with(&source) {
            return Err(format!("it shows the task {}, which is not the task's", sensitive.display()));
        }
    }
    Ok(())
}

/// The path as it is in an image in which `/lib`, `/lib64`, `/bin` and `/var/run` are links, as in all of today's.
fn in_image(path: &Path) -> Option<PathBuf> {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => clean.push(name),
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    if !path.is_absolute() {
        return None;
    }
    for (link, target) in [("/lib", "/usr/lib"), ("/lib64", "/usr/lib64"), ("/var/run", "/run")] {
        if let Ok(rest) = clean.strip_prefix(link) {
            return Some(Path::new(target).join(rest));
        }
    }
    Some(clean)
}

fn check_device(value: &str, host: &dyn Host) -> Result<(), String> {
    let source = value.split(':').next().unwrap_or_default();
    if !source.starts_with('/') {
        return Err("cantle gives the task its GPUs; CDI names are not accepted".to_owned());
    }
    let path = host.resolve(Path::new(source));
    let name = path.strip_prefix("/dev").map_err(|_| "only devices below /dev can be given".to_owned())?;
    let name = name.to_string_lossy();
    // In addition to the GPUs: memory, disks and ports, through which the machine could be changed.
    let refused =
        ["nvidia", "dri", "kfd", "mem", "kmem", "port", "sd", "nvme", "vd", "dm-", "mapper", "loop"];
    if name.is_empty() || refused.iter().any(|prefix| name.starts_with(prefix)) {
        return Err("cantle gives the task its GPUs, and no device that holds the machine's data".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
