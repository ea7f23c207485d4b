//! The web page is embedded from `ui/dist`; a build without Node.js has an empty directory there, and `/ui` reports
//! that.

#[expect(clippy::disallowed_methods, reason = "cargo's own variable")]
fn main() {
    // Cargo runs build scripts in their package's directory.
    let dist = std::path::Path::new("../../../ui/dist");
    if let Err(error) = std::fs::create_dir_all(dist) {
        println!("cargo::error=cannot make {}: {error}", dist.display());
    }
    // With debug assertions, rust-embed reads the files while the program runs: nothing is compiled again for a new page.
    let is_embedded = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    println!("cargo::rerun-if-changed={}", if is_embedded { "../../../ui/dist" } else { "build.rs" });
}
