//! Copies the CUDA compatibility package of an image to files of this machine: a filter that covers the package can only
//! forward to a copy.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use bollard::Docker;
use bollard::query_parameters::DownloadFromContainerOptionsBuilder;
use futures_util::StreamExt as _;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use tar::{Archive, EntryType};
use tokio::time::timeout;

use super::calls::CALL_LIMIT;
use super::compat::{DriverVersion, is_used_over};
use super::copies::{DriverCopy, STEMS};
use crate::{DriverLibraries, TaskSpec};

/// A package has a quarter of this.
const MOST_BYTES: u64 = 2 << 30;
/// Packages that are kept: those that were used last.
const MOST_PACKAGES: usize = 4;

/// The libraries of one package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package {
    libcuda: PathBuf,
    /// Compilers and what else belongs to it, links included.
    others: Vec<PathBuf>,
}

impl Package {
    /// Lets the filter forward to this libcuda. Its files replace those of the machine's driver.
    pub(super) fn put_before(&self, spec: &mut TaskSpec, driver_files: &mut Vec<PathBuf>) {
        spec.confinement.libraries.cuda.real.clone_from(&self.libcuda);
        let own: BTreeSet<_> = self.others.iter().filter_map(|file| file.file_name()).collect();
        driver_files.retain(|file| file.file_name().is_none_or(|name| !own.contains(name)));
        driver_files.extend(self.others.iter().cloned());
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        self.libcuda.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn in_dir(dir: &Path, libcuda: &str) -> io::Result<Self> {
        let libcuda = dir.join(libcuda);
        fs::metadata(&libcuda)?;
        let entries: Result<Vec<_>, _> =
            fs::read_dir(dir)?.map(|entry| Ok::<_, io::Error>(entry?.path())).collect();
        let is_hooked = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            STEMS.iter().any(|stem| name.starts_with(stem))
        };
        // A link to a file that the image does not have leads nowhere.
        let mut others: Vec<PathBuf> =
            entries?.into_iter().filter(|file| file.is_file() && !is_hooked(file)).collect();
        others.sort();
        Ok(Self { libcuda, others })
    }
}

/// The newest libcuda among the copies, if it is newer than the driver.
pub(super) fn newer(copies: &BTreeSet<DriverCopy>, driver: &DriverLibraries) -> Option<PathBuf> {
    let driver = DriverVersion::of_libcuda(&driver.cuda.real)?;
    let versions = copies.iter().filter_map(|copy| {
        let path = PathBuf::from(&copy.path);
        Some((DriverVersion::of_libcuda(&path)?, path))
    });
    versions.max().filter(|(version, _)| *version > driver).map(|(_, path)| path)
}

/// The directory of packages, each in a subdirectory; `None`: no packages.
#[derive(Clone, Debug, Default)]
pub(super) struct Packages(pub(super) Option<PathBuf>);

impl Packages {
    /// The package of `image` with this libcuda, if it is to be used over the driver; fetched from `container` unless it is here.
    ///
    /// # Errors
    /// The reason why it is not available.
    pub(super) async fn of_image(
        &self,
        (docker, container): (&Docker, &str),
        image: &str,
        libcuda: &Path,
        driver: &DriverLibraries,
    ) -> io::Result<Option<Package>> {
        let (Some(root), Some(dir)) = (&self.0, libcuda.parent()) else { return Ok(None) };
        let name = libcuda.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = root.join(format!("{}-{name}", image.trim_start_matches("sha256:")));
        if !at.exists() {
            DirBuilder::new().recursive(true).mode(0o755).create(root)?;
            let part = root.join(format!(".{container}"));
            let made = fetch(docker, container, dir, &part).await;
            // Two tasks of one image may fetch it at once: the second caller finds it there.
            let made = made.and_then(|()| fs::rename(&part, &at));
            // It is there only if the fetch or the renaming failed.
            let _ = fs::remove_dir_all(&part);
            if !at.exists() {
                made?;
            }
        }
        futimens(File::open(&at)?, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?;
        forget_others(root)?;
        let package = Package::in_dir(&at, &name)?;
        let versions = DriverVersion::of_libcuda(libcuda).zip(DriverVersion::of_libcuda(&driver.cuda.real));
        Ok(versions.filter(|(own, driver)| is_used_over(&package.libcuda, own, driver)).map(|_| package))
    }
}

/// Containers that have the files of a package keep them.
fn forget_others(root: &Path) -> io::Result<()> {
    let mut packages = Vec::new();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        // One that is being made begins with a dot; so does what a killed agent left, which goes when it is old.
        packages.push((entry.metadata()?.modified()?, entry.path()));
    }
    packages.sort();
    packages.reverse();
    for (_, path) in packages.iter().skip(MOST_PACKAGES) {
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

/// Copies the libraries of a directory of the container into `to`.
async fn fetch(docker: &Docker, container: &str, dir: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(to)?;
    let archive = to.join("archive");
    let mut file = File::options().read(true).write(true).create_new(true).open(&archive)?;
    let path = dir.display().to_string();
    let options = DownloadFromContainerOptionsBuilder::default().path(&path).build();
    let mut stream = docker.download_from_container(container, Some(options));
    let mut len = 0;
    while let Some(part) = timeout(CALL_LIMIT, stream.next()).await? {
        let part = part.map_err(io::Error::other)?;
        len += part.len() as u64;
        if len > MOST_BYTES {
            return Err(io::Error::other(format!("{path} has more than {} GiB", MOST_BYTES >> 30)));
        }
        file.write_all(&part)?;
    }
    unpack(File::open(&archive)?, to)?;
    fs::remove_file(&archive)
}

/// Libraries and links in the same directory, by their base names alone: an archive of an image may contain any path.
fn unpack(archive: impl io::Read, to: &Path) -> io::Result<()> {
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let Some(name) = library_name(&path, 2) else { continue };
        let at = to.join(name);
        match entry.header().entry_type() {
            EntryType::Regular => {
                let mut file = File::options().write(true).create_new(true).open(&at)?;
                // A hole is read as zeros; the limit of the archive does not hold for them.
                io::copy(&mut io::Read::take(&mut entry, MOST_BYTES), &mut file)?;
                file.set_permissions(fs::Permissions::from_mode(0o755))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                if library_name(&target, 1).is_some() {
                    symlink(&target, &at)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The name of a library at this depth, links and `..` not among the parts.
fn library_name(path: &Path, depth: usize) -> Option<&str> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let is_plain = parts.iter().all(|part| matches!(part, Component::Normal(_)));
    let name = path.file_name()?.to_str()?;
    (is_plain && parts.len() == depth && name.starts_with("lib") && name.contains(".so")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DriverLibrary;

    fn driver(name: &str) -> DriverLibraries {
        let library = |name: &str| DriverLibrary { real: format!("/real/{name}").into(), names: Vec::new() };
        DriverLibraries { cuda: library(name), nvml: library("libnvidia-ml.so.1") }
    }

    #[test]
    fn the_newest_copy_above_the_driver_counts() {
        let copy = |path: &str| DriverCopy { path: path.to_owned(), stem: STEMS[0] };
        let copies: BTreeSet<DriverCopy> =
            ["/a/libcuda.so.570.1", "/b/libcuda.so.580.1", "/c/libcuda.so.1"].map(copy).into();
        let found = |name: &str| newer(&copies, &driver(name));
        assert_eq!(found("libcuda.so.550.1"), Some("/b/libcuda.so.580.1".into()));
        assert_eq!(found("libcuda.so.580.1"), None);
        assert_eq!(found("libcuda.so.1"), None, "a driver that does not say its version");
    }

    fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (kind, path, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            // As an archive that is made to do harm has it: unchecked.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            let data = if kind.is_symlink() { "" } else { content };
            if kind.is_symlink() {
                header.set_link_name(content).unwrap();
            }
            header.set_size(data.len() as u64);
            header.set_cksum();
            builder.append(&header, data.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn libraries_are_unpacked_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = archive(&[
            (EntryType::Directory, "compat/", ""),
            (EntryType::Regular, "compat/libcuda.so.580.1", "cuda"),
            (EntryType::Symlink, "compat/libcuda.so.1", "libcuda.so.580.1"),
            (EntryType::Regular, "compat/libnvidia-nvvm.so.580.1", "nvvm"),
            (EntryType::Symlink, "compat/libnvidia-nvvm.so.4", "libnvidia-nvvm.so.580.1"),
            (EntryType::Symlink, "compat/libnvidia-gone.so.1", "libnvidia-gone.so.580.1"),
            (EntryType::Symlink, "compat/libshadow.so", "/etc/shadow"),
            (EntryType::Regular, "compat/../libout.so", "out"),
            (EntryType::Regular, "compat/lib.real/libdeep.so", "deep"),
            (EntryType::Regular, "compat/README", "text"),
        ]);
        unpack(bytes.as_slice(), dir.path()).unwrap();
        let package = Package::in_dir(dir.path(), "libcuda.so.580.1").unwrap();
        let names = ["libnvidia-nvvm.so.4", "libnvidia-nvvm.so.580.1"].map(|name| dir.path().join(name));
        assert_eq!(package, Package { libcuda: dir.path().join("libcuda.so.580.1"), others: names.into() });
        assert!(!dir.path().join("README").exists() && !dir.path().join("libshadow.so").exists());
        assert!(!dir.path().join("libout.so").exists() && !dir.path().join("libdeep.so").exists());
    }

    #[test]
    fn the_packages_used_last_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for (name, second) in [("old", 1), ("a", 2), ("b", 3), ("c", 4), ("d", 5)] {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            let at = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second);
            File::open(&path).unwrap().set_modified(at).unwrap();
        }
        forget_others(dir.path()).unwrap();
        assert!(!dir.path().join("old").exists() && dir.path().join("a").exists());
    }
}
