//! Names for link editors: a program that is linked in a slice finds in a filter every function of the driver.
//!
//! A filter defines only what a slice changes. The dynamic loader finds the rest in the real library behind it
//! (`DT_NEEDED`), but link editors do not look there. They read the table of symbols that the *section headers* name; the
//! loader reads the one that `DT_SYMTAB` names, and no section headers at all. So a second table is appended to the file,
//! with the first one's symbols and then the other names, and the section headers name that one. The loaded parts do not
//! change by a byte (ADR 0016).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cantle_shim::hooks::{self, Hook};
use object::elf::{
    FileHeader64, SHF_ALLOC, SHN_UNDEF, SHT_DYNSYM, SHT_GNU_VERSYM, STB_GLOBAL, STT_FUNC, SectionHeader64,
    Sym64, VER_NDX_GLOBAL,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::{bytes_of, from_bytes, slice_from_bytes};

use crate::build_shim::Artifact;
use crate::platform::Platform;

/// The sources of the functions: the gate is in front of the same library as the plain filter.
fn driver_of(artifact: &Artifact) -> &'static str {
    if artifact.feature == "gate" { "cuda" } else { artifact.feature }
}

/// All functions that drivers have: those that are hooked, and those that pass (`crates/tenant/shim/data`).
pub(crate) fn of_driver(feature: &str) -> Result<BTreeSet<String>> {
    let hooked: &[Hook] = if feature == "cuda" { hooks::CUDA } else { hooks::NVML };
    let path = crate::root().join(format!("crates/tenant/shim/data/{feature}-passes.txt"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let passed = text.lines().filter(|line| !line.starts_with(['#', '='])).flat_map(str::split_whitespace);
    let hooked = hooked.iter().filter_map(|hook| hook.name.to_str().ok());
    Ok(passed.chain(hooked).map(str::to_owned).collect())
}

/// Adds the driver's other functions to a filter.
pub(crate) fn add(artifact: &Artifact, file: &Path) -> Result<()> {
    if artifact.filters.is_none() {
        return Ok(());
    }
    let mut bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    add_names(&mut bytes, &of_driver(driver_of(artifact))?)?;
    std::fs::write(file, bytes).with_context(|| file.display().to_string())
}

fn add_names(bytes: &mut Vec<u8>, wanted: &BTreeSet<String>) -> Result<()> {
    let malformed = |()| anyhow::anyhow!("its headers are malformed");
    let (header, _) = from_bytes::<FileHeader64<LE>>(bytes).map_err(malformed)?;
    let at = usize::try_from(header.e_shoff.get(LE))?;
    let count = usize::from(header.e_shnum.get(LE));
    let table = bytes.get(at..).context("no section headers")?;
    let (sections, _) = slice_from_bytes::<SectionHeader64<LE>>(table, count).map_err(malformed)?;
    let mut sections = sections.to_vec();
    let find = |kind| sections.iter().position(|section| section.sh_type.get(LE) == kind);
    let symbols_at = find(SHT_DYNSYM).context("no dynamic symbols")?;
    let versions_at = find(SHT_GNU_VERSYM).context("no symbol versions")?;
    let names_at = sections[symbols_at].sh_link.get(LE) as usize;
    let mut symbols = content(bytes, &sections[symbols_at])?;
    let mut versions = content(bytes, &sections[versions_at])?;
    let mut names = content(bytes, sections.get(names_at).context("no names of symbols")?)?;

    let known = symbols.len() / size_of::<Sym64<LE>>();
    let (defined, _) = slice_from_bytes::<Sym64<LE>>(&symbols, known).map_err(malformed)?;
    let defined: Vec<_> = defined.iter().filter(|symbol| symbol.st_shndx.get(LE) != SHN_UNDEF).collect();
    // Of the section that holds the code, and behind its end: no code of cantle is ever shown under one of these names.
    let section = defined.first().context("it defines nothing")?.st_shndx;
    let code = sections.get(usize::from(section.get(LE))).context("no code")?;
    let value = U64::new(LE, code.sh_addr.get(LE) + code.sh_size.get(LE));
    let defined: BTreeSet<&[u8]> =
        defined.iter().filter_map(|symbol| c_string(&names, symbol.st_name.get(LE) as usize)).collect();
    let missing: Vec<_> = wanted.iter().filter(|name| !defined.contains(name.as_bytes())).collect();
    for name in missing {
        let st_name = U32::new(LE, u32::try_from(names.len())?);
        names.extend(name.as_bytes());
        names.push(0);
        let st_info = STB_GLOBAL << 4 | STT_FUNC;
        let symbol = Sym64::<LE> {
            st_name,
            st_info,
            st_other: 0,
            st_shndx: section,
            st_value: value,
            st_size: U64::new(LE, 0),
        };
        symbols.extend(bytes_of(&symbol));
        versions.extend(bytes_of(&U16::<LE>::new(LE, VER_NDX_GLOBAL)));
    }
    for (section, content) in [(symbols_at, symbols), (versions_at, versions), (names_at, names)] {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let section = &mut sections[section];
        section.sh_offset = U64::new(LE, bytes.len() as u64);
        section.sh_size = U64::new(LE, content.len() as u64);
        section.sh_addr = U64::new(LE, 0);
        section.sh_flags = U64::new(LE, section.sh_flags.get(LE) & !u64::from(SHF_ALLOC));
        bytes.extend(content);
    }
    for (number, section) in sections.iter().enumerate() {
        let at = at + number * size_of::<SectionHeader64<LE>>();
        bytes[at..at + size_of::<SectionHeader64<LE>>()].copy_from_slice(bytes_of(section));
    }
    Ok(())
}

fn content(bytes: &[u8], section: &SectionHeader64<LE>) -> Result<Vec<u8>> {
    let at = usize::try_from(section.sh_offset.get(LE))?;
    let length = usize::try_from(section.sh_size.get(LE))?;
    Ok(bytes.get(at..at + length).context("a section lies outside of the file")?.to_vec())
}

fn c_string(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let rest = bytes.get(at..)?;
    rest.get(..rest.iter().position(|&byte| byte == 0)?)
}

/// A program that calls every function of the driver can be linked with the filter; which link editors did it.
pub(crate) fn check(artifact: &Artifact, platform: Platform, file: &Path) -> Result<String> {
    let inventory = crate::root().join(format!("crates/sim/simgpu/data/{}-symbols.txt", driver_of(artifact)));
    let text = std::fs::read_to_string(&inventory).with_context(|| inventory.display().to_string())?;
    let functions = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        // Data has no kind `T`; NVML's list has functions only.
        words.next().is_none_or(|kind| kind == "T").then_some(name)
    });
    let functions: Vec<&str> = functions.collect();
    ensure!(functions.len() > 300, "{} is no list of functions", inventory.display());
    let source = file.with_extension("names.c");
    let program = file.with_extension("names");
    let calls: String =
        functions.iter().map(|name| format!("extern void {name}(void); {name}();\n")).collect();
    std::fs::write(&source, format!("int main(void) {{\n{calls}return 0; }}\n"))?;
    let mut used = Vec::new();
    for linker in ["bfd", "gold", "lld", "mold"] {
        let installed = if linker == "mold" { "mold".to_owned() } else { format!("ld.{linker}") };
        if std::process::Command::new(platform.tool(&installed)).arg("--version").output().is_err() {
            continue;
        }
        let mut cc = std::process::Command::new(platform.cc());
        cc.arg(format!("-fuse-ld={linker}")).args(["-w", "-Wl,--as-needed", "-o"]);
        // The real library is not here; what it needs is its own matter.
        cc.arg(&program).arg(&source).arg(file).args(["-Wl,--allow-shlib-undefined"]);
        let done = cc.output().context("cannot start cc: install a C compiler")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "ld.{linker} can't link with it: {said}");
        used.push(linker);
    }
    std::fs::remove_file(&source)?;
    std::fs::remove_file(&program)?;
    ensure!(!used.is_empty(), "there is no link editor here");
    Ok(format!("{} functions link ({})", functions.len(), used.join(", ")))
}
