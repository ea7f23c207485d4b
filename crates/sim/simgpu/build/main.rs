//! Generates what follows from the data: a stub that answers NOT_SUPPORTED for each driver name that is not simulated, the
//! table behind `cuGetProcAddress`, and the MIG profiles.

#![expect(
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a build script talks to cargo on stdout, reads cargo's variables, and stops with its message"
)]

mod mig;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

const CUDA_NOT_SUPPORTED: i32 = 801;
const NVML_NOT_SUPPORTED: i32 = 3;
fn main() {
    println!("cargo::rerun-if-changed=data");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed=src/cuda");
    println!("cargo::rerun-if-changed=src/nvml");
    // As the real libcuda: the library's own references, the table of `cuGetProcAddress` among them, must reach its own
    // functions even when a shim with the same names is in front of it.
    println!("cargo::rustc-link-arg=-Wl,-Bsymbolic");
    // A machine stays open as long as its process lives (see `state::liveness`). A library that could be unloaded and loaded
    // again would forget which it has open, and open them once more.
    println!("cargo::rustc-link-arg=-Wl,-z,nodelete");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let out = Path::new(&out);
    fs::write(out.join("cuda_generated.rs"), cuda()).expect("writing generated code");
    fs::write(out.join("nvml_generated.rs"), nvml()).expect("writing generated code");
    fs::write(out.join("mig_generated.rs"), mig::tables()).expect("writing generated code");
}

struct Symbol {
    name: String,
    is_function: bool,
    version: u32,
    /// Exported by a driver whose list we have.
    in_driver: bool,
}

fn cuda_symbols() -> Vec<Symbol> {
    let text = fs::read_to_string("data/cuda-symbols.txt").expect("data/cuda-symbols.txt");
    let parse = |line: &str| {
        let columns: Vec<&str> = line.split(' ').collect();
        let [name, kind, version, drivers] = columns[..] else { panic!("bad line `{line}`") };
        Symbol {
            name: name.to_owned(),
            is_function: kind == "T",
            version: version.parse().expect("a CUDA version"),
            in_driver: drivers != "-",
        }
    };
    text.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

/// The functions that a directory's files define, with their modules: every `fn <prefix>…(`.
fn implemented(dir: &str, prefix: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect(dir) {
        let path = entry.expect(dir).path();
        let module = path.file_stem().expect("a file name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("a source file");
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            let name = rest.split('(').next().unwrap_or_default();
            if name.starts_with(prefix) && name[prefix.len()..].starts_with(|c: char| c.is_ascii_uppercase())
            {
                found.insert(name.to_owned(), module.clone());
            }
        }
    }
    found
}

fn stub(out: &mut String, name: &str, answer: i32) {
    // Takes no arguments: in the C calling convention the caller cleans up whatever it passed.
    let _ = writeln!(out, "#[unsafe(no_mangle)] pub(crate) extern \"C\" fn {name}() -> i32 {{ {answer} }}");
}

fn cuda() -> String {
    let symbols = cuda_symbols();
    let implemented = implemented("src/cuda", "cu");
    let mut out = String::new();
    for s in &symbols {
        if !s.is_function {
            let _ = writeln!(out, "#[unsafe(no_mangle)] static {}: AtomicU64 = AtomicU64::new(0);", s.name);
        } else if !implemented.contains_key(&s.name) {
            stub(&mut out, &s.name, CUDA_NOT_SUPPORTED);
        }
    }
    for name in implemented.keys() {
        assert!(
            symbols.iter().any(|s| &s.name == name),
            "{name} is simulated but in no list of driver names"
        );
    }
    let mut bases: BTreeMap<&str, Vec<(u32, bool, u32, String)>> = BTreeMap::new();
    for s in symbols.iter().filter(|s| s.is_function) {
        let path = match implemented.get(&s.name) {
            Some(module) => format!("super::{module}::{}", s.name),
            // A driver as new as the name has it; which one is simulated is known when a program asks.
            None if s.in_driver || s.version > 0 => s.name.clone(),
            None => continue,
        };
        let (base, level, per_thread) = split(&s.name);
        bases.entry(base).or_default().push((level, per_thread, s.version, path));
    }
    out.push_str("static NAMES: &[Name] = &[\n");
    for (base, variants) in bases {
        let _ = write!(out, "Name {{ base: \"{base}\", variants: &[");
        for (level, per_thread, version, path) in variants {
            let function = format!("Function({path} as *const c_void)");
            let _ = write!(
                out,
                "Variant {{ level: {level}, per_thread: {per_thread}, version: {version}, function: {function} }},"
            );
        }
        out.push_str("] },\n");
    }
    out.push_str("];\n");
    out
}

/// `cuMemcpyHtoD_v2_ptds` is level 2 of `cuMemcpyHtoD` for per-thread default streams.
fn split(name: &str) -> (&str, u32, bool) {
    let plain = name.strip_suffix("_ptds").or_else(|| name.strip_suffix("_ptsz")).unwrap_or(name);
    let per_thread = plain.len() != name.len();
    if let Some((base, digit)) = plain.rsplit_once("_v")
        && let Ok(level) = digit.parse()
    {
        return (base, level, per_thread);
    }
    (plain, 1, per_thread)
}

fn nvml() -> String {
    let text = fs::read_to_string("data/nvml-symbols.txt").expect("data/nvml-symbols.txt");
    let implemented = implemented("src/nvml", "nvml");
    let mut out = String::new();
    for name in text.lines().filter(|line| !line.starts_with('#') && !implemented.contains_key(*line)) {
        stub(&mut out, name, NVML_NOT_SUPPORTED);
    }
    out
}
