//! The web page is embedded from `ui/dist`; a build without Node.js has an empty folder there and says so at `/ui`.

fn main() {
    let dist = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/dist");
    if let Err(error) = std::fs::create_dir_all(&dist) {
        println!("cargo::error=cannot make {}: {error}", dist.display());
    }
    println!("cargo::rerun-if-changed=../../ui/dist");
}
