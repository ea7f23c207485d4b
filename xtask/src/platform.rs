//! The architectures that cantle is built for. For another one than this machine's, cargo compiles for a target, and the C
//! compiler and the binutils are those of a cross compiler, under the names that Debian and Fedora give them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use object::Architecture;

/// An architecture of Linux with glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    X86_64,
    Aarch64,
}

impl Platform {
    /// This machine's.
    pub(crate) const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    /// The one that the options of a command name: none of them, or `--arch ARCH`.
    pub(crate) fn asked(options: &[&str]) -> Result<Self> {
        match options {
            [] => Ok(Self::OWN),
            ["--arch", name] => [Self::X86_64, Self::Aarch64]
                .into_iter()
                .find(|platform| platform.name() == *name)
                .with_context(|| format!("\"{name}\" is not an architecture of cantle: x86_64, aarch64")),
            _ => bail!("expected --arch ARCH, not: {}", options.join(" ")),
        }
    }

    /// The kernel's name, as in `uname -m`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// `portable`, or `portable-aarch64` for another architecture than this machine's.
    pub(crate) fn directory(self, name: &str) -> String {
        if self == Self::OWN { name.to_owned() } else { format!("{name}-{}", self.name()) }
    }

    /// rustc's name, if it has to be given.
    fn target(self) -> Option<String> {
        (self != Self::OWN).then(|| format!("{}-unknown-linux-gnu", self.name()))
    }

    /// cargo's options.
    pub(crate) fn options(self) -> Vec<String> {
        self.target().map_or_else(Vec::new, |target| vec!["--target".to_owned(), target])
    }

    /// The variable that names the linker to cargo: crates on the way link libraries too.
    pub(crate) fn linker(self) -> Option<(String, String)> {
        let target = self.target()?.to_uppercase().replace('-', "_");
        Some((format!("CARGO_TARGET_{target}_LINKER"), self.cc()))
    }

    /// Where cargo puts what it builds in the profile with this directory.
    pub(crate) fn made(self, profile: &str) -> PathBuf {
        let target_dir = crate::target_dir();
        self.target().map_or_else(|| target_dir.clone(), |target| target_dir.join(target)).join(profile)
    }

    /// A program of binutils.
    pub(crate) fn tool(self, name: &str) -> String {
        if self == Self::OWN { name.to_owned() } else { format!("{}-linux-gnu-{name}", self.name()) }
    }

    /// The C compiler.
    pub(crate) fn cc(self) -> String {
        if self == Self::OWN { "cc".to_owned() } else { self.tool("gcc") }
    }

    /// Its name in a library's header.
    pub(crate) const fn in_elf(self) -> Architecture {
        match self {
            Self::X86_64 => Architecture::X86_64,
            Self::Aarch64 => Architecture::Aarch64,
        }
    }

    /// The size of pages that a kernel may have, in bytes.
    pub(crate) const fn largest_page(self) -> u64 {
        match self {
            Self::X86_64 => 4 << 10,
            Self::Aarch64 => 64 << 10,
        }
    }

    /// The version of its first glibc.
    pub(crate) const fn oldest_glibc(self) -> &'static str {
        match self {
            Self::X86_64 => "GLIBC_2.2.5",
            Self::Aarch64 => "GLIBC_2.17",
        }
    }

    /// rustc's flags for what is loaded into users' processes. By default, code for aarch64 calls functions that use the atomic
    /// instructions of newer processors where there are any, and ask the C library for that with a symbol that filters may not
    /// use. The instructions of ARMv8.0 run everywhere.
    pub(crate) const fn shim_flags(self) -> Option<&'static str> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some("-Ctarget-feature=-outline-atomics"),
        }
    }

    /// Fails early, with what to type, if the toolchain has no standard library for it. Nothing is downloaded unasked.
    pub(crate) fn check(self) -> Result<()> {
        let Some(target) = self.target() else { return Ok(()) };
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", &target]).current_dir(crate::root());
        let output = rustc.output().context("cannot start rustc")?;
        let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if !libraries.is_dir() {
            bail!("Rust's standard library for {} is missing; run: rustup target add {target}", self.name());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_is_this_machines() {
        assert_eq!(Platform::asked(&[]).unwrap(), Platform::OWN);
        assert_eq!(Platform::asked(&["--arch", std::env::consts::ARCH]).unwrap(), Platform::OWN);
        assert!(Platform::OWN.options().is_empty());
        assert_eq!(Platform::OWN.cc(), "cc");
    }

    #[test]
    fn another_architecture_is_built_by_a_cross_compiler() {
        let other = if Platform::OWN == Platform::X86_64 { Platform::Aarch64 } else { Platform::X86_64 };
        let name = other.name();
        assert_eq!(Platform::asked(&["--arch", name]).unwrap(), other);
        assert_eq!(other.options(), ["--target".to_owned(), format!("{name}-unknown-linux-gnu")]);
        assert_eq!(other.cc(), format!("{name}-linux-gnu-gcc"));
        assert_eq!(other.directory("portable"), format!("portable-{name}"));
    }

    #[test]
    fn an_unknown_architecture_is_named() {
        assert!(Platform::asked(&["--arch", "riscv64"]).unwrap_err().to_string().contains("riscv64"));
        assert!(Platform::asked(&["aarch64"]).is_err());
    }
}
