//! `dist/`: the binary, the filter libraries, the simulated driver (layout: docs/reference/layout.md).

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

/// Builds everything, release profile.
pub(crate) fn build() -> Result<()> {
    let dist = crate::root().join("dist");
    let (bin, lib) = (dist.join("bin"), dist.join("lib/cantle"));
    for dir in [&bin, &lib.join("shim"), &lib.join("sim")] {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    web_page()?;
    crate::run("cargo", &["build", "--release", "--locked", "-p", "cantle-cli"])?;
    install(&crate::target_dir().join("release/cantle"), &bin.join("cantle"))?;
    crate::build_shim::build(&lib.join("shim"), &crate::target_dir())?;
    for (feature, soname) in [("cuda", "libcuda.so.1"), ("nvml", "libnvidia-ml.so.1")] {
        simulated(feature, soname, &lib.join("sim"))?;
    }
    println!("dist: {} is ready", dist.display());
    Ok(())
}

/// The page that the binary embeds. Without Node.js it is left out, and the server says so at `/ui`.
fn web_page() -> Result<()> {
    let found = Command::new("npm").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("dist: npm is not here, so the binary will have no web page");
        return Ok(());
    }
    crate::run("npm", &["--prefix", "ui", "ci", "--silent", "--no-audit", "--no-fund"])?;
    crate::run("npm", &["--prefix", "ui", "run", "--silent", "build"])
}

fn simulated(feature: &str, soname: &str, out: &Path) -> Result<()> {
    let link = format!("link-arg=-Wl,-soname,{soname}");
    let args = ["rustc", "--release", "--locked", "-p", "cantle-simgpu", "--lib", "--crate-type", "cdylib"];
    let args: Vec<&str> = args.into_iter().chain(["--features", feature, "--", "-C", &link]).collect();
    crate::run("cargo", &args)?;
    install(&crate::target_dir().join("release/libcantle_simgpu.so"), &out.join(soname))
}

/// Puts a file in place by rename, so that a running program keeps the one it has mapped.
pub(crate) fn install(from: &Path, to: &Path) -> Result<()> {
    let fresh = to.with_extension("new");
    std::fs::copy(from, &fresh).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::rename(&fresh, to).with_context(|| format!("cannot put {} in place", to.display()))
}
