//! Makes a slice's accounting by hand, or shows one: `slice create DIR UUID LIMIT_BYTES CONTEXT_BYTES` and `slice show DIR`.
#![allow(clippy::print_stdout, reason = "a command line program")]

use std::path::Path;

use cantle_ledger::host::{self, GpuLimit, Observer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["create", dir, uuid, limit_bytes, context_bytes] => {
            let uuid = host::parse_uuid(uuid).ok_or("UUID is not one that NVML prints")?;
            let gpu =
                GpuLimit { uuid, limit_bytes: limit_bytes.parse()?, context_bytes: context_bytes.parse()? };
            host::create(Path::new(dir), "by-hand", &[gpu])?;
        }
        ["show", dir] => {
            let mut slice = Observer::open(Path::new(dir))?;
            println!("{:#?}\n{:#?}", slice.snapshot()?, slice.new_refusals());
        }
        _ => return Err("usage: slice create DIR UUID LIMIT_BYTES CONTEXT_BYTES | slice show DIR".into()),
    }
    Ok(())
}
