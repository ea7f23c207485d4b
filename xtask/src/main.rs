//! The tasks of the repository: `cargo xtask arch | commits | deps | dist | machine-path | page | quick | test | verify-shim`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program for developers")]

mod arch;
mod build_shim;
mod commits;
mod deps;
mod dist;
mod file_names;
mod link_names;
mod machine_path;
mod paths;
mod platform;
mod quick;
mod sizes;
mod suites;
mod type_names;
mod vendors;
mod verify_shim;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use crate::platform::Platform;

const USAGE: &str = "usage: cargo xtask <command>
  arch          check who uses whom, what pure crates use, that public type names are unique, that files are short, and that paths in texts exist
  commits       check the subjects of commits
  deps          check licenses and banned crates against deny.toml
  dist [shim|packages|packages-for-tests|demo] [--arch ARCH]
                build everything, or only the filter libraries, into dist/; packages: everything for glibc 2.28 and small, into
                target/portable/; packages-for-tests: the same of dist/'s profile; demo: what the example runs,
                unoptimized, into target/demo/. shim and packages for x86_64 or aarch64, if that is not this machine's:
                into target/portable-ARCH/
  machine-path  check that no suite switches simulation on and no product code asks for it
  page          build the web page into ui/dist; dist does it by itself, but in the profile dev
  quick [--no-nextest] [CRATE…]
                format, clippy and tests of what changed against main, or of the crates named, and of what depends on it
  verify-shim [--arch ARCH]
                check dist/lib/cantle/shim, or the one in target/portable-ARCH/: libraries needed, glibc version, exported
                names, panics, size
  test [--full] [--serial] [SUITE…]
                run the suites of the gate, or with --full those of the full stage, or those named, side by side as far as the cores
                allow; `test --list` names them";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["arch"] => arch::check()
            .and_then(|()| type_names::check())
            .and_then(|()| sizes::check())
            .and_then(|()| paths::check())
            .and_then(|()| file_names::check()),
        ["commits"] => commits::check(),
        ["deps"] => deps::check(),
        ["dist"] => dist::build(dist::Build::Installed, Platform::OWN),
        ["dist", "packages", options @ ..] => {
            Platform::asked(options).and_then(|platform| dist::build(dist::Build::Packages, platform))
        }
        ["dist", "packages-for-tests"] => dist::build(dist::Build::PackagesForTests, Platform::OWN),
        ["dist", "demo"] => dist::build(dist::Build::Demo, Platform::OWN),
        ["dist", "shim", options @ ..] => Platform::asked(options).and_then(shim),
        ["machine-path"] => machine_path::check(),
        ["verify-shim", options @ ..] => {
            Platform::asked(options).and_then(|platform| verify_shim::run(&of_platform(platform), platform))
        }
        ["page"] => dist::web_page(),
        ["quick", words @ ..] => quick::run(words),
        ["test", suites @ ..] => suites::run(suites),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The directory with the filter libraries for an architecture: what is installed here, or the contents of packages.
fn of_platform(platform: Platform) -> PathBuf {
    if platform == Platform::OWN { root().join("dist") } else { dist::portable(platform) }
}

fn shim(platform: Platform) -> Result<()> {
    platform.check()?;
    build_shim::build(&of_platform(platform).join("lib/cantle/shim"), platform)
}

/// The repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Cargo's output directory.
#[expect(clippy::disallowed_methods, reason = "cargo's own variable")]
fn target_dir() -> PathBuf {
    std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), PathBuf::from)
}

/// The tracked files that match one of `git`'s patterns, relative to the root.
fn sources(pattern: &str) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--"]).args(pattern.split_whitespace()).current_dir(root());
    let output = git.output().context("cannot start git")?;
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// Runs a program in the root; its failure is an error that names it.
fn run(program: &str, args: &[&str]) -> Result<()> {
    let mut command = Command::new(program);
    command.args(args);
    finish(command)
}

/// As [`run`].
fn finish(mut command: Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.current_dir(root()).status().with_context(|| format!("cannot start {program}"))?;
    if !status.success() {
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        bail!("{program} {} failed: {status}", words.join(" "));
    }
    Ok(())
}

/// `cargo metadata` of the workspace.
fn metadata(extra: &[&str]) -> Result<serde_json::Value> {
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(extra)
        .current_dir(root())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
