//! Builds `dist/`: the binary, the filter libraries, the simulated driver (layout: docs/reference/layout.md).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, anyhow, bail};

use crate::platform::Platform;

/// The libraries of the simulated driver, and of the stand-in for the CUDA runtime, by the feature that makes each.
const SIMULATED: [(&str, &str); 4] = [
    ("cuda", "libcuda.so.1"),
    ("nvml", "libnvidia-ml.so.1"),
    ("cudart", "libcudart.so.13"),
    ("cudart12", "libcudart.so.12"),
];

/// The environment variable that names the profile of `dist/`: `release`, which is the default, or `dev`. The gate compiles the
/// profile `dev` anyway, for the tests (docs/adr/0042).
const PROFILE: &str = "CANTLE_PROFILE";

/// The packages to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// The installed files, into `dist/`: release profile, or the one that [`PROFILE`] names.
    Installed,
    /// The contents of packages: linked against glibc 2.28, dist profile, into `target/portable/` (`portable-aarch64/` for another
    /// architecture than this machine's).
    Packages,
    /// The same of the profile of `dist/`, which is compiled already.
    PackagesForTests,
    /// The programs that the example runs: dev profile, without the web page and Kubernetes, into `target/demo/`. A newcomer
    /// waits a third of the time.
    Demo,
}

impl Build {
    /// Cargo's name of the profile, and of its directory in `target/`.
    #[expect(clippy::disallowed_methods, reason = "a setting of the whole build, as cargo's own are")]
    fn profile(self) -> Result<(&'static str, &'static str)> {
        const DEV: (&str, &str) = ("dev", "debug");
        Ok(match self {
            Self::Installed | Self::PackagesForTests => {
                match std::env::var(PROFILE).as_deref().unwrap_or("release") {
                    "release" => ("release", "release"),
                    "dev" => DEV,
                    other => bail!("{PROFILE} is \"{other}\"; it can be release or dev"),
                }
            }
            Self::Packages => ("dist", "dist"),
            Self::Demo => DEV,
        })
    }

    /// The demo runs in no cluster; Kubernetes is 82 of the 393 packages that the whole program compiles. In the profile dev, the packages
    /// have the features that the tests turn on, so that what was compiled for the tests serves: without them, all of it is compiled again.
    fn features(self, profile: &str) -> &'static [&'static str] {
        match self {
            Self::PackagesForTests if profile == "dev" => {
                &["--features", "tokio/test-util,tracing-subscriber/default"]
            }
            Self::Installed | Self::Packages | Self::PackagesForTests => &[],
            Self::Demo => &["--no-default-features"],
        }
    }

    /// Settings of cargo for this build. The demo's program makes a dozen decisions: it needs no line tables, and none of the
    /// optimization that tests of millions of decisions need.
    const fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Installed | Self::Packages | Self::PackagesForTests => &[],
            Self::Demo => &[
                "build.incremental=false",
                "profile.dev.debug=\"none\"",
                "profile.dev.package.cantle-arbiter.opt-level=0",
                "profile.dev.package.cantle-ledger.opt-level=0",
                "profile.dev.package.cantle-mig.opt-level=0",
                "profile.dev.package.cantle-sched.opt-level=0",
                "profile.dev.package.cantle-simgpu.opt-level=0",
            ],
        }
    }

    fn directory(self, platform: Platform) -> PathBuf {
        match self {
            Self::Installed => crate::root().join("dist"),
            Self::Packages | Self::PackagesForTests => portable(platform),
            Self::Demo => crate::target_dir().join("demo"),
        }
    }

    /// rustc's arguments for what is linked. zig has the symbols of every glibc, and links against those of an old one (docs/adr/0042).
    fn linker(self, platform: Platform) -> Vec<String> {
        if !matches!(self, Self::Packages | Self::PackagesForTests) {
            return Vec::new();
        }
        let script = crate::root().join("packaging/cc.sh");
        let target = format!("-Clink-args=-target {}-linux-gnu.2.28", platform.name());
        vec![format!("-Clinker={}", script.display()), target]
    }
}

/// The contents of packages.
pub(crate) fn portable(platform: Platform) -> PathBuf {
    crate::target_dir().join(platform.directory("portable"))
}

/// Builds the binary, the filter libraries and the simulated driver.
#[expect(clippy::disallowed_methods, reason = "how long it took is what is printed")]
pub(crate) fn build(what: Build, platform: Platform) -> Result<()> {
    let began = Instant::now();
    let dist = what.directory(platform);
    let (bin, lib) = (dist.join("bin"), dist.join("lib/cantle"));
    for dir in [&bin, &lib.join("sim")] {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    platform.check()?;
    let (profile, made) = what.profile()?;
    // A program of the profile dev reads the page from ui/dist while it runs.
    if profile != "dev" {
        web_page()?;
    }
    let made = platform.made(made);
    let rustc = Rustc { platform, profile, settings: what.settings(), linker: what.linker(platform) };
    // The filters are compiled in a profile of their own, on a core that the program's last crates leave idle.
    std::thread::scope(|scope| {
        let filters = scope.spawn(|| crate::build_shim::build(&lib.join("shim"), platform));
        rustc.program(what, profile)?;
        filters.join().map_err(|_| anyhow!("the build of the filter libraries panicked"))?
    })?;
    install_stripped(&platform.tool("strip"), &made.join("cantle"), &bin.join("cantle"))?;
    for (feature, soname) in SIMULATED {
        let link = format!("-Clink-arg=-Wl,-soname,{soname}");
        let library = ["-p", "cantle-simgpu", "--lib", "--crate-type", "cdylib", "--features", feature];
        rustc.run(&library, &[&link])?;
        install(&made.join("libcantle_simgpu.so"), &lib.join("sim").join(soname))?;
    }
    let seconds = began.elapsed().as_secs();
    println!("dist: {} is ready, after {} min {:02} s", dist.display(), seconds / 60, seconds % 60);
    Ok(())
}

/// The common parts of all calls of `cargo rustc` of one build.
struct Rustc {
    platform: Platform,
    profile: &'static str,
    settings: &'static [&'static str],
    linker: Vec<String>,
}

impl Rustc {
    /// Builds the program.
    fn program(&self, what: Build, profile: &str) -> Result<()> {
        if what == Build::Installed && profile == "dev" {
            // By itself it would be compiled with other features of its dependencies than the tests are, and they with it: a minute and
            // a half. Cargo builds it for the tests of its own package.
            return crate::run("cargo", &["test", "--workspace", "--locked", "--no-run", "--quiet"]);
        }
        self.run(&[&["-p", "cantle-cli", "--bin", "cantle"], what.features(profile)].concat(), &[])
    }

    /// Builds what `words` name; the compiler of the last crate gets `last`.
    fn run(&self, words: &[&str], last: &[&str]) -> Result<()> {
        let mut cargo = Command::new("cargo");
        cargo.args(["rustc", "--profile", self.profile, "--locked"]).args(self.platform.options());
        cargo.args(self.settings.iter().flat_map(|setting| ["--config", setting]));
        cargo.args(words).arg("--").args(last).args(&self.linker);
        cargo.envs(self.platform.linker());
        crate::finish(cargo)
    }
}

/// Builds the page that the binary embeds. Without Node.js it is omitted, and the server reports that at `/ui`. A page that is
/// newer than its sources stays: a new one would have cargo compile the server and all that is built with it once more.
pub(crate) fn web_page() -> Result<()> {
    let ui = crate::root().join("ui");
    if changed(&ui.join("dist/index.html"))
        .is_some_and(|page| newest(&ui).is_some_and(|source| source < page))
    {
        return Ok(());
    }
    let found = Command::new("npm").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("dist: npm is not here, so there will be no web page");
        return Ok(());
    }
    crate::run("npm", &["--prefix", "ui", "ci", "--silent", "--no-audit", "--no-fund"])?;
    crate::run("npm", &["--prefix", "ui", "run", "--silent", "build"])
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// When a file in `directory` changed last, or one came or went; npm's and vite's own do not count.
fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(directory).ok()?.flatten();
    let sources = entries.filter(|entry| entry.file_name() != "node_modules" && entry.file_name() != "dist");
    sources.map(|entry| entry.path()).filter_map(|path| changed(&path).max(newest(&path))).max()
}

/// Puts a file in place by rename, so that a running program keeps the one it has mapped.
pub(crate) fn install(from: &Path, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    std::fs::copy(from, &fresh).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&fresh, to).with_context(|| format!("cannot put {} in place", to.display()))
}

/// As [`install`], without the debug information, which is three quarters of it and stays where cargo put it.
fn install_stripped(strip: &str, from: &Path, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    let paths = [from, fresh.as_path()].map(|path| path.display().to_string());
    crate::run(strip, &["--strip-debug", "-o", &paths[1], &paths[0]])?;
    std::fs::rename(&fresh, to).with_context(|| format!("cannot put {} in place", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_source_is_found_at_any_depth() {
        let dir = std::env::temp_dir().join(format!("xtask-newest-{}", std::process::id()));
        for each in ["src/pages", "node_modules", "dist"] {
            std::fs::create_dir_all(dir.join(each)).unwrap();
        }
        let write = |name: &str, seconds: u64| {
            let file = std::fs::File::create(dir.join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
        };
        let far = 10_000_000_000;
        write("src/pages/a.ts", far);
        write("dist/index.html", far + 1);
        write("node_modules/b.js", far + 1);
        let found = newest(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(far)));
    }
}
