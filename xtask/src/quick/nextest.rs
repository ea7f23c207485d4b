//! The test runner cargo-nextest: an installed one, or one in `target/tools`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds with the toolchain of rust-toolchain.toml.
const VERSION: &str = "0.9.151";

/// The words that begin a call of nextest. `None`: there is none and it cannot be installed, so `cargo test` has to do.
pub(super) fn find_or_install() -> Option<Vec<String>> {
    let own = crate::target_dir().join("tools/bin/cargo-nextest");
    let cargos = vec!["cargo".to_owned(), "nextest".to_owned()];
    let ours = vec![own.display().to_string(), "nextest".to_owned()];
    if answers(&ours) {
        return Some(ours);
    }
    if answers(&cargos) {
        return Some(cargos);
    }
    println!(
        "quick: cargo-nextest is not installed. Building {VERSION} from crates.io into {}, once: some minutes",
        own.display()
    );
    if let Err(error) = install(&crate::target_dir().join("tools")) {
        println!("quick: {error:#}; the tests run with cargo test");
        return None;
    }
    Some(ours)
}

fn answers(words: &[String]) -> bool {
    let Some((program, args)) = words.split_first() else { return false };
    let mut command = Command::new(program);
    command.args(args).arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn install(tools: &Path) -> anyhow::Result<()> {
    let build: PathBuf = tools.join("build");
    let (tools, into) = (tools.display().to_string(), build.display().to_string());
    let what = ["--locked", "cargo-nextest", "--version", VERSION];
    // Without the part that fetches new versions of itself.
    let features = ["--no-default-features", "--features", "default-no-update"];
    let place = ["--root", &tools, "--target-dir", &into];
    crate::run("cargo", &[&["install"], &what[..], &features, &place].concat())?;
    Ok(std::fs::remove_dir_all(&build)?)
}
