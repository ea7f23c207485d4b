//! Checks the shared objects that are loaded into users' processes: what they need, export and contain.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use cantle_ledger::Layouts;
use cantle_shim::hooks::{self, Hook};
use object::elf::FileHeader64;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, elf};

use crate::build_shim::{ARTIFACTS, Artifact};
use crate::link_names;
use crate::platform::Platform;

/// A shared object may be this large, without padding between pages.
const MAX_BYTES: usize = 256 << 10;
/// The newest C library whose symbols may be needed.
const NEWEST_GLIBC: (u32, u32) = (2, 17);
/// Libraries that every system has.
const ALWAYS_THERE: &[&str] =
    &["libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];
/// The exports of a preload, in addition to hooks.
const PRELOAD_EXPORTS: &[&str] = &["dlsym"];
/// Traces of `core`'s panic machinery, in symbols or in messages.
const PANIC_TRACES: &[&str] =
    &["panicking", "rust_begin_unwind", "panicked at", "unwrap_failed", "/library/core/src"];

/// Checks `<dist>/lib/cantle/shim`.
pub(crate) fn run(dist_dir: &Path, platform: Platform) -> Result<()> {
    for artifact in &ARTIFACTS {
        let path = dist_dir.join("lib/cantle/shim").join(artifact.dir).join(artifact.file);
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let summary = check(artifact, platform, &bytes).with_context(|| path.display().to_string())?;
        let links = artifact.filters.map(|_| link_names::check(artifact, platform, &path)).transpose()?;
        let links = links.map(|links| format!(", {links}")).unwrap_or_default();
        println!("verify-shim: {}: {summary}{links}", Path::new(artifact.dir).join(artifact.file).display());
    }
    Ok(())
}

fn check(artifact: &Artifact, platform: Platform, bytes: &[u8]) -> Result<String> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let (found, expected) = (file.architecture(), platform.in_elf());
    ensure!(found == expected, "it is for {found:?}, not {expected:?}");
    let size = bytes.len() - check_pages(platform, &file, bytes)?;
    ensure!(size <= MAX_BYTES, "{size} bytes; the budget is {MAX_BYTES}");
    let glibc = check_versions(&file)?;
    check_dynamic(artifact, &file, bytes)?;
    let exported = check_exports(artifact, &file)?;
    check_sections(&file)?;
    check_panics(&file, bytes)?;
    check_note(&file, bytes)?;
    let glibc =
        glibc.map_or_else(|| "no glibc symbol".to_owned(), |(major, minor)| format!("glibc {major}.{minor}"));
    Ok(format!("{} KiB, {exported} names, {glibc}", size >> 10))
}

/// `DT_NEEDED` and `DT_SONAME`, and no initialiser.
fn check_dynamic(artifact: &Artifact, file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Result<()> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = file.endian();
    let segments = header.program_headers(endian, bytes)?;
    ensure!(
        segments.iter().all(|segment| segment.p_type(endian) != elf::PT_TLS),
        "it has thread-local storage"
    );
    let dynamic = segments.iter().find_map(|segment| segment.dynamic(endian, bytes).transpose());
    let entries = dynamic.context("it has no dynamic section")??;
    let strings = file.section_by_name(".dynstr").context("it has no .dynstr")?.data()?;
    let mut real = None;
    for entry in entries {
        let Some(tag) = entry.tag32(endian) else { continue };
        let text = || {
            entry.val32(endian).and_then(|at| c_string(strings, at as usize)).context("bad string in .dynstr")
        };
        match tag {
            elf::DT_NEEDED if ALWAYS_THERE.contains(&text()?) => {}
            elf::DT_NEEDED => real = Some(text()?),
            elf::DT_SONAME => ensure!(text()? == artifact.file, "its soname is {}", text()?),
            elf::DT_INIT | elf::DT_INIT_ARRAY => bail!("it runs code when it is loaded"),
            elf::DT_TEXTREL => bail!("its code needs relocation"),
            _ => {}
        }
    }
    ensure!(real == artifact.filters, "besides the C library it needs {real:?}, not {:?}", artifact.filters);
    Ok(())
}

/// Kernels with the largest pages can map it. Returns the bytes that are left empty between segments for that: up to a page.
fn check_pages(platform: Platform, file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Result<usize> {
    let (header, endian) = (FileHeader64::<Endianness>::parse(bytes)?, file.endian());
    let (mut end, mut padding) = (0, 0);
    for segment in header.program_headers(endian, bytes)? {
        if segment.p_type(endian) != elf::PT_LOAD {
            continue;
        }
        let aligned = segment.p_align(endian);
        ensure!(aligned >= platform.largest_page(), "a segment is aligned to {aligned} bytes");
        padding += segment.p_offset(endian).saturating_sub(end);
        end = segment.p_offset(endian) + segment.p_filesz(endian);
    }
    Ok(usize::try_from(padding)?)
}

fn c_string(bytes: &[u8], at: usize) -> Option<&str> {
    let rest = bytes.get(at..)?;
    std::str::from_utf8(rest.get(..rest.iter().position(|&byte| byte == 0)?)?).ok()
}

/// The newest glibc that it needs a symbol of.
fn check_versions(file: &ElfFile64<'_, Endianness>) -> Result<Option<(u32, u32)>> {
    let endian = file.endian();
    let mut newest = None;
    let versions =
        file.elf_section_table().versions(endian, file.data())?.context("it has no symbol versions")?;
    for symbol in file.elf_dynamic_symbol_table().enumerate() {
        let index = versions.version_index(endian, symbol.0);
        let Some(version) = versions.version(index)? else { continue };
        let name = std::str::from_utf8(version.name())?;
        let number = name.strip_prefix("GLIBC_").with_context(|| format!("it needs symbols of {name}"))?;
        let mut parts = number.split('.').map(str::parse::<u32>);
        let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
            bail!("it needs {name}")
        };
        newest = newest.max(Some((major, minor)));
    }
    ensure!(
        newest <= Some(NEWEST_GLIBC),
        "it needs glibc {newest:?}; the oldest supported is {NEWEST_GLIBC:?}"
    );
    Ok(newest)
}

/// The number of symbols that the loader knows: those behind them are for link editors. The second word of the older hash
/// table.
fn loaded_symbols(file: &ElfFile64<'_, Endianness>) -> Result<usize> {
    let table = file.section_by_name(".hash").context("it has no .hash")?.data()?;
    let count = table.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_le_bytes);
    Ok(count.context("its .hash is empty")? as usize)
}

/// Exported names are the hook table's, no more and no fewer.
fn check_exports(artifact: &Artifact, file: &ElfFile64<'_, Endianness>) -> Result<usize> {
    let names = |table: &'static [Hook]| table.iter().filter_map(|hook| hook.name.to_str().ok());
    let wanted: BTreeSet<&str> = match artifact.feature {
        "cuda" => names(hooks::CUDA).collect(),
        "gate" => names(hooks::CUDA).chain(names(hooks::GATE)).collect(),
        "nvml" => names(hooks::NVML).collect(),
        _ => names(hooks::CUDA).chain(names(hooks::NVML)).chain(PRELOAD_EXPORTS.iter().copied()).collect(),
    };
    let loaded = loaded_symbols(file)?;
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.index().0 < loaded && symbol.is_definition());
    let found: BTreeSet<&str> = symbols.map(|symbol| symbol.name()).collect::<Result<_, _>>()?;
    let (missing, extra): (Vec<_>, Vec<_>) =
        (wanted.difference(&found).collect(), found.difference(&wanted).collect());
    ensure!(missing.is_empty(), "hooked but not exported: {missing:?}");
    ensure!(extra.is_empty(), "exported but not in the hook table: {extra:?}");
    Ok(found.len())
}

fn check_sections(file: &ElfFile64<'_, Endianness>) -> Result<()> {
    for name in [".init_array", ".ctors", ".init", ".preinit_array", ".tdata", ".tbss"] {
        let size = file.section_by_name(name).map_or(0, |section| section.size());
        ensure!(size == 0, "its section {name} has {size} bytes");
    }
    Ok(())
}

/// Its note is one that tools can read, and names the layouts of this build.
fn check_note(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Result<()> {
    let section = file.section_by_name(".note.cantle").context("it has no section .note.cantle")?;
    ensure!(section.kind() == SectionKind::Note, "its section .note.cantle is {:?}", section.kind());
    let layouts = Layouts::of_library(bytes);
    ensure!(layouts == Some(Layouts::OWN), "its note names {layouts:?}");
    Ok(())
}

fn check_panics(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> Result<()> {
    ensure!(file.symbols().next().is_some(), "it is stripped of symbols: whether it can panic can't be told");
    for trace in PANIC_TRACES {
        let found = bytes.windows(trace.len()).any(|window| window == trace.as_bytes());
        ensure!(!found, "it can panic: it contains \"{trace}\"");
    }
    Ok(())
}
