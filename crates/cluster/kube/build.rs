//! Generates the kubelet's services from their .proto files. It parses them with protox, so the build needs no protoc.

use std::error::Error;

const PROTOS: [&str; 5] = [
    "proto/registration.proto",
    "proto/dra.proto",
    "proto/health.proto",
    "proto/deviceplugin.proto",
    "proto/podresources.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for proto in PROTOS {
        println!("cargo::rerun-if-changed={proto}");
    }
    let files = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().build_transport(false).btree_map(".").compile_fds(files)?;
    Ok(())
}
