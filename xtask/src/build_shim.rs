//! Builds the shared objects that are loaded into users' processes.
//!
//! They are linked without the compiler's start files, against *stubs* of the C library that have only the symbols which every
//! glibc since 2.17 has, under their oldest versions. So they run on old systems wherever they were built, and a call to
//! anything newer is a link error. A filter is also linked against a stub whose soname is the absolute path of the real driver
//! library: the linker copies that into `DT_NEEDED`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::platform::Platform;

/// One shared object.
pub(crate) struct Artifact {
    /// Cargo feature that selects its exports.
    pub(crate) feature: &'static str,
    /// Its file name; a filter's soname too.
    pub(crate) file: &'static str,
    /// The directory below `shim` that it is in.
    pub(crate) dir: &'static str,
    /// The real library behind a filter.
    pub(crate) filters: Option<&'static str>,
}

const CUDA_BEHIND: &str = "/run/cantle/real/libcuda.so.1";

/// The libraries to build.
pub(crate) const ARTIFACTS: [Artifact; 5] = [
    Artifact { feature: "cuda", file: "libcuda.so.1", dir: "", filters: Some(CUDA_BEHIND) },
    // Mounted in place of the first where a slice's compute share is enforced.
    Artifact { feature: "gate", file: "libcuda.so.1", dir: "gate", filters: Some(CUDA_BEHIND) },
    Artifact {
        feature: "nvml",
        file: "libnvidia-ml.so.1",
        dir: "",
        filters: Some("/run/cantle/real/libnvidia-ml.so.1"),
    },
    Artifact { feature: "preload", file: "libcantle-preload.so", dir: "", filters: None },
    Artifact { feature: "image", file: "libcantle-image.so", dir: "", filters: None },
];

/// Symbols of the C library that the shim may use, by the library that has had them since 2.17. All of them are older.
const LIBC_SYMBOLS: &[&str] = &[
    "__errno_location",
    "bcmp",
    "getenv",
    "getpid",
    "kill",
    "lseek",
    "madvise",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "mmap",
    "munmap",
    "pthread_self",
    "strlen",
    "syscall",
];
const LIBDL_SYMBOLS: &[&str] = &["dlopen", "dlsym", "dlvsym"];

/// Builds all artifacts into `out_dir`.
pub(crate) fn build(out_dir: &Path, platform: Platform) -> Result<()> {
    let stubs = crate::target_dir().join(platform.directory("shim-stubs"));
    let made = platform.made("shim");
    std::fs::create_dir_all(&stubs).with_context(|| format!("cannot make {}", stubs.display()))?;
    std::fs::create_dir_all(out_dir).with_context(|| format!("cannot make {}", out_dir.display()))?;
    let stub =
        |file: &str, soname: &str, symbols: &[&str]| stub(platform, &stubs.join(file), soname, symbols);
    stub("libc.so", "libc.so.6", LIBC_SYMBOLS)?;
    stub("libdl.so", "libdl.so.2", LIBDL_SYMBOLS)?;
    for artifact in &ARTIFACTS {
        let real = artifact.filters.map(|real| stub(&format!("real-{}", artifact.file), real, &[]));
        link(platform, artifact, &stubs, real.transpose()?)?;
        let (built, named) = (made.join("libcantle_shim.so"), made.join(artifact.file));
        std::fs::copy(&built, &named).with_context(|| format!("cannot copy {}", built.display()))?;
        crate::link_names::add(artifact, &named)?;
        let dir = out_dir.join(artifact.dir);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        crate::dist::install(&named, &dir.join(artifact.file))?;
    }
    Ok(())
}

/// Makes a shared object of empty functions, with `soname` and, if there are any, the oldest symbol versions.
fn stub(platform: Platform, object: &Path, soname: &str, symbols: &[&str]) -> Result<PathBuf> {
    let [source, script] = ["c", "map"].map(|ending| PathBuf::from(format!("{}.{ending}", object.display())));
    let mut code = String::new();
    for symbol in symbols {
        writeln!(code, "void {symbol}(void) {{}}")?;
    }
    std::fs::write(&source, code)?;
    std::fs::write(&script, format!("{} {{ global: *; }};\n", platform.oldest_glibc()))?;
    let mut cc = Command::new(platform.cc());
    cc.args(["-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", "-o"]).arg(object).arg(&source);
    cc.arg(format!("-Wl,-soname,{soname}"));
    if !symbols.is_empty() {
        cc.arg(format!("-Wl,--version-script,{}", script.display()));
    }
    let status =
        cc.status().with_context(|| format!("cannot start {}: install a C compiler", platform.cc()))?;
    if !status.success() {
        bail!("{} could not make the stub {}: {status}", platform.cc(), object.display());
    }
    Ok(object.to_owned())
}

fn link(platform: Platform, artifact: &Artifact, stubs: &Path, real: Option<PathBuf>) -> Result<()> {
    let mut linker = vec!["-nostartfiles".to_owned(), "-nostdlib".to_owned()];
    linker.extend(
        // Symbolic: another library of the program must not change the definitions of these libraries.
        ["--no-undefined", "-Bsymbolic", "-z,relro", "-z,now", "-z,nodelete", "--hash-style=both"]
            .map(|flag| format!("-Wl,{flag}")),
    );
    linker.push(format!("-Wl,-soname,{}", artifact.file));
    linker.push("-ldl".to_owned());
    if let Some(real) = real {
        // Kept although no symbol of it is used.
        linker.extend(["-Wl,--no-as-needed".to_owned(), real.display().to_string()]);
    }
    let stubs = format!("native={}", stubs.display());
    let arguments = linker.iter().map(|argument| format!("-Clink-arg={argument}"));
    // `-L` makes the crates' own `-lc` find the stub too.
    let mut cargo = Command::new("cargo");
    cargo.args(["rustc", "--locked", "-p", "cantle-shim", "--lib", "--crate-type", "cdylib"]);
    cargo.args(platform.options()).args(["--profile", "shim", "--features", artifact.feature]);
    cargo.args(["--", "-L", &stubs]).args(arguments);
    cargo.envs(platform.linker()).envs(platform.shim_flags().map(|flags| ("RUSTFLAGS", flags)));
    crate::finish(cargo)
}
