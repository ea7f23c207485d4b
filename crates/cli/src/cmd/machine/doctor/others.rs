//! Programs and libraries of others that limit or share GPUs, and the effect that each has on a slice of this machine.

use std::collections::BTreeSet;
use std::fs;

use cantle_driver::Driver;

use crate::cmd::machine::checkup::{Checkup, Severity, good, not};

/// A library of somebody else that the loader puts into programs.
struct Preloaded {
    file: &'static str,
    name: &'static str,
    severity: Severity,
    effect: &'static str,
    hint: Option<&'static str>,
}

const PRELOADED: [Preloaded; 4] = [
    Preloaded {
        file: "libvgpu.so",
        name: "HAMi",
        severity: Severity::Warning,
        effect: "programs have its limit and that of their slice, and get the smaller one",
        hint: Some("one of the two per machine: remove its library from /etc/ld.so.preload and LD_PRELOAD"),
    },
    Preloaded {
        file: "libvgpu-control.so",
        name: "vgpu-manager",
        severity: Severity::Warning,
        effect: "programs have its limit and that of their slice, and get the smaller one",
        hint: Some("one of the two per machine: remove its library from /etc/ld.so.preload and LD_PRELOAD"),
    },
    Preloaded {
        file: "libamvgpu.so",
        name: "HAMi for AMD",
        severity: Severity::Warning,
        effect: "it limits AMD's GPUs, which cantle does not share, and LD_AUDIT slows each program's start",
        hint: Some("remove it from LD_AUDIT where no program uses AMD's GPUs"),
    },
    Preloaded {
        file: "libclearml_snug.so",
        name: "ClearML's SNUG",
        severity: Severity::Good,
        effect: "it meters TLS connections and uses no function of CUDA or NVML, so limits of slices hold",
        hint: None,
    },
];

/// The first driver whose MPS server is said to survive a client that is killed.
const SURVIVES_KILLS_FROM: u32 = 625;
/// The first container toolkit that sets a driver's limits.
const LIMITS_FROM: (u32, u32, u32) = (1, 20, 1);
/// The name that the toolkit reads, and similar names, which it ignores.
const READ: [&str; 2] = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"];
const IGNORED: [&str; 2] = ["NVIDIA_GPU_MEMORY_REQUESTS", "NVIDIA_GPU_MEMORY_LIMITS"];

/// Programs of others on this machine; none on most machines.
pub(super) fn limits_of_others(driver: &dyn Driver) -> Vec<Checkup> {
    let branch = driver.versions().driver.split('.').next().and_then(|branch| branch.parse().ok());
    let processes = processes();
    let own = texts(std::process::id(), "environ");
    let value = |name: &str| own.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let preloaded = fs::read_to_string("/etc/ld.so.preload").unwrap_or_default();
    let by_variables = ["LD_PRELOAD", "LD_AUDIT"].map(|name| value(name).unwrap_or_default());
    let mut found = of_libraries(&[&preloaded, " ", &by_variables.join(" ")].concat());
    found.extend(of_mps(&processes, branch));
    found.extend(of_fractions(&processes, |name| value(name).is_some()));
    found
}

/// A running program: its words, and its variables as far as this process may read them.
struct Process {
    pid: u32,
    words: Vec<String>,
    variables: Vec<String>,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let named = pids.map(|pid| (pid, texts(pid, "cmdline")));
    let programs = named.filter(|(_, words)| is_of_others(words));
    programs.map(|(pid, words)| Process { pid, words, variables: texts(pid, "environ") }).collect()
}

/// The texts in a file of a process, each of which ends with a NUL.
fn texts(pid: u32, file: &str) -> Vec<String> {
    let all = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let texts = all.split(|byte| *byte == 0).filter(|text| !text.is_empty());
    texts.map(|text| String::from_utf8_lossy(text).into_owned()).collect()
}

const MPS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
const FRACTIOND: &str = "fractiond";

/// The name of a program, without its directory.
fn name_of(words: &[String]) -> &str {
    words.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path))
}

fn is_of_others(words: &[String]) -> bool {
    let name = name_of(words);
    MPS.contains(&name) || name == FRACTIOND
}

/// Of the libraries that are named in this text, by their paths.
fn of_libraries(text: &str) -> Vec<Checkup> {
    let paths = text.split(|c: char| c.is_whitespace() || c == ':');
    let files: BTreeSet<&str> = paths.filter_map(|path| path.rsplit('/').next()).collect();
    let known = PRELOADED.iter().filter(|library| files.contains(library.file));
    known
        .map(|Preloaded { file, name, severity, effect, hint }| Checkup {
            hint: hint.map(str::to_owned),
            severity: *severity,
            ..good("limits of others", format!("{name} ({file}) is loaded into programs: {effect}"))
        })
        .collect()
}

/// A client of MPS shares a server with others, and cantle ends a task that exceeds its slice.
fn of_mps(processes: &[Process], branch: Option<u32>) -> Option<Checkup> {
    let daemon = processes.iter().find(|process| MPS.contains(&name_of(&process.words)))?;
    let option = daemon.words.iter().position(|word| word == "-p").and_then(|at| daemon.words.get(at + 1));
    let variable = daemon.variables.iter().find_map(|line| line.strip_prefix("CUDA_MPS_PROTOCOL_VERSION="));
    // The variable has precedence.
    let protocol = variable.or_else(|| option.map(String::as_str));
    let protocol = protocol.map_or_else(String::new, |version| format!(", protocol {version}"));
    let found = format!("an MPS daemon runs ({}, process {}{protocol})", name_of(&daemon.words), daemon.pid);
    let may_hang = branch.is_none_or(|branch| branch < SURVIVES_KILLS_FROM);
    let effect = if may_hang {
        "a task that is one of its clients and is killed can leave the GPU hanging for all clients"
    } else {
        "tasks that are its clients are not suspended, and a fault of one can end the others"
    };
    let hint = "stop it (echo quit | nvidia-cuda-mps-control), or give tasks a CUDA_MPS_PIPE_DIRECTORY in which no daemon is";
    Some(not(Severity::Warning, "limits of others", format!("{found}: {effect}"), hint))
}

/// The daemon of KAI and Run:ai, and the variables of NVIDIA's container toolkit.
fn of_fractions(processes: &[Process], has_variable: impl Fn(&str) -> bool) -> Vec<Checkup> {
    let mut found = Vec::new();
    if let Some(daemon) = processes.iter().find(|process| name_of(&process.words) == FRACTIOND) {
        let text = format!(
            "NvFractions of KAI or Run:ai ({FRACTIOND}, process {}) sets limits of the driver",
            daemon.pid
        );
        let hint = "one of the two per machine: neither counts the slices of the other";
        found.push(not(Severity::Bad, "limits of others", text, hint));
    }
    for (ignored, read) in IGNORED.iter().zip(READ) {
        if has_variable(ignored) {
            let text = format!("{ignored} is set, which NVIDIA's container toolkit ignores");
            let hint =
                format!("the toolkit reads {read}, and only if both {} and {} are set", READ[0], READ[1]);
            found.push(not(Severity::Warning, "limits of others", text, &hint));
        }
    }
    let set = READ.map(&has_variable);
    if set[0] != set[1] {
        let (is, is_not) = if set[0] { (READ[0], READ[1]) } else { (READ[1], READ[0]) };
        let text = format!(
            "{is} is set and {is_not} is not, so NVIDIA's container toolkit sets no limit and reports none"
        );
        found.push(not(Severity::Warning, "limits of others", text, "set both, or none"));
    }
    let version = set[0].then(toolkit_version).flatten();
    if let Some(version) = version.filter(|version| *version < LIMITS_FROM) {
        let (major, minor, patch) = version;
        let text = format!("NVIDIA's container toolkit {major}.{minor}.{patch} knows no limits of memory");
        found.push(not(
            Severity::Warning,
            "limits of others",
            text,
            "install 1.20.1 or newer, or use cantle's slices",
        ));
    }
    found
}

/// Of `nvidia-ctk`, if it is installed.
fn toolkit_version() -> Option<(u32, u32, u32)> {
    let asked = std::process::Command::new("nvidia-ctk").arg("--version").output().ok()?;
    version_in(&String::from_utf8_lossy(&asked.stdout))
}

/// The first version of three numbers in a text.
fn version_in(text: &str) -> Option<(u32, u32, u32)> {
    text.split_whitespace().find_map(|word| {
        let word = word.trim_start_matches('v').split('-').next()?;
        let mut numbers = word.splitn(3, '.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(words: &str, variables: &[&str]) -> Process {
        let words = words.split(' ').map(str::to_owned).collect();
        Process { pid: 7, words, variables: variables.iter().map(|&line| line.to_owned()).collect() }
    }

    fn said(checkups: impl IntoIterator<Item = Checkup>) -> Vec<(Severity, String)> {
        checkups.into_iter().map(|checkup| (checkup.severity, checkup.found)).collect()
    }

    #[test]
    fn libraries_are_known_by_their_file_names() {
        let found = said(of_libraries("/usr/local/vgpu/libvgpu.so\n/opt/x/libclearml_snug.so:libother.so"));
        assert_eq!(found.len(), 2);
        assert!(found[0].0 == Severity::Warning && found[0].1.starts_with("HAMi (libvgpu.so)"), "{found:?}");
        assert!(found[1].0 == Severity::Good && found[1].1.starts_with("ClearML's SNUG"), "{found:?}");
        assert_eq!(said(of_libraries("/usr/local/vgpu/libvgpu.so.license /libfoo.so")), []);
    }

    #[test]
    fn a_daemon_of_mps_is_worse_on_older_drivers() {
        let daemon = process("/usr/bin/nvidia-cuda-mps-control -p 2 -d", &["CUDA_MPS_PROTOCOL_VERSION=3"]);
        let (severity, found) = said(of_mps(&[daemon], Some(615))).remove(0);
        assert_eq!(severity, Severity::Warning);
        assert!(found.contains("(nvidia-cuda-mps-control, process 7, protocol 3)"), "{found}");
        assert!(found.contains("can leave the GPU hanging"), "{found}");
        let newer = said(of_mps(&[process("nvidia-cuda-mps-server", &[])], Some(625))).remove(0).1;
        assert!(newer.contains("process 7): tasks that are its clients are not suspended"), "{newer}");
        assert!(of_mps(&[process("fractiond", &[])], Some(615)).is_none());
    }

    #[test]
    fn variables_that_the_toolkit_ignores() {
        let with = |names: &[&str]| said(of_fractions(&[], |name| names.contains(&name)));
        assert_eq!(with(&[]), []);
        assert!(
            with(&["NVIDIA_GPU_MEMORY_LIMITS"])[0]
                .1
                .contains("LIMITS is set, which NVIDIA's container toolkit ignores")
        );
        assert!(with(&["NVIDIA_GPU_MEMORY_LIMIT"])[0].1.contains("sets no limit and reports none"));
        let daemon = said(of_fractions(&[process("/bin/fractiond --x", &[])], |_| false));
        assert_eq!(daemon[0].0, Severity::Bad);
    }

    #[test]
    fn versions_of_the_toolkit() {
        assert_eq!(
            version_in("NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b8"),
            Some((1, 17, 8))
        );
        assert_eq!(version_in("version v1.20.1-rc.2"), Some((1, 20, 1)));
        assert_eq!(version_in("none"), None);
    }
}
