//! The web page is embedded from `ui/dist`; a build without Node.js has an empty directory there, and `/ui` reports
//! that.

fn main() {
    // Cargo runs build scripts in their package's directory.
    let dist = std::path::Path::new("../../ui/dist");
    if let Err(error) = std::fs::create_dir_all(dist) {
        println!("cargo::error=cannot make {}: {error}", dist.display());
    }
    println!("cargo::rerun-if-changed=../../ui/dist");
}
