//! Finds copies of the driver's libraries in an image, such as CUDA's compatibility packages. A loader that is pointed at
//! them finds them before the library directories that every container gets, so the filter is mounted over each of them too.
//!
//! Before the start, the engine is asked about the usual places of such copies ([`find`]). After the start, the container's
//! own file system is searched, with its loader's configuration, and a copy that is still uncovered ends the container
//! ([`uncovered`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::query_parameters::ContainerArchiveInfoOptionsBuilder;
use futures_util::future::join_all;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::EngineError;
use super::calls::{CALL_LIMIT, limited};
use super::package::Package;
use super::searched::Searched;
use crate::Confinement;
use crate::processes::FileId;

/// The filter libraries, by the names that programs open.
pub(super) const STEMS: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// The directories in which NVIDIA's images and container toolkits put libraries of the driver.
const USUAL_DIRS: [&str; 5] = [
    "/usr/local/cuda/compat",
    // In images of NGC, the first one is a link that the entry point makes.
    "/usr/local/cuda/compat/lib",
    "/usr/local/cuda/compat/lib.real",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
];

/// CUDA's major versions with compatibility packages, and the next ones.
const VERSIONS: RangeInclusive<u32> = 11..=15;

/// The default search path of a container's loader: what [`super::contents`] mounts into.
const DEFAULT_DIRS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The configuration of a loader is shorter than this.
const MOST_TEXT: u64 = 1 << 20;

/// A file in a container over which a filter library is to be mounted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DriverCopy {
    /// Its path, with links resolved.
    pub(super) path: String,
    /// The library that it is a copy of.
    pub(super) stem: &'static str,
}

/// All copies in an image, and the package among them that is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCopies {
    pub(super) covered: BTreeSet<DriverCopy>,
    pub(super) package: Option<Package>,
}

impl DriverCopies {
    /// The handling of the copies, as text; `None` without copies.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let paths: Vec<&str> = self.covered.iter().map(|copy| copy.path.as_str()).collect();
        let covered =
            format!("the image has libraries of the driver, which are covered: {}", paths.join(", "));
        let used = |package: &Package| format!("; {} is newer than the driver's and used", package.name());
        (!paths.is_empty()).then(|| covered + &self.package.as_ref().map(used).unwrap_or_default())
    }
}

/// The result of [`find`].
#[derive(Debug, Default)]
pub(super) struct LibraryCopies {
    pub(super) covered: BTreeSet<DriverCopy>,
    /// The image that has them; `None` if something is mounted where they are.
    pub(super) image: Option<String>,
}

/// The copies in a container that was made and not yet started, in the directories that its variables name and in the usual ones.
///
/// # Errors
/// If the engine does not answer.
pub(super) async fn find(
    docker: &Docker,
    id: &str,
    searched: &Searched,
) -> Result<LibraryCopies, EngineError> {
    let made = limited("inspect", CALL_LIMIT, docker.inspect_container(id, None)).await?;
    let env = made.config.and_then(|config| config.env).unwrap_or_default();
    let dirs = named_dirs(env.iter().map(String::as_str));
    // A directory that is mounted is not the image's.
    let mounted: Vec<String> =
        made.mounts.into_iter().flatten().filter_map(|mount| mount.destination).collect();
    let is_mounted = |dir: &String| {
        mounted.iter().any(|at| Path::new(dir).starts_with(at) || Path::new(at).starts_with(dir))
    };
    let image = made.image.filter(|_| !dirs.iter().any(is_mounted));
    if let Some(known) = image.as_ref().and_then(|image| searched.known(image, &dirs)) {
        return Ok(LibraryCopies { covered: known, image });
    }
    let toolkits = toolkits(docker, id).await;
    let image = image.filter(|_| !toolkits.iter().any(is_mounted));
    let all: BTreeSet<&String> = dirs.iter().chain(&toolkits).collect();
    let names = all.into_iter().flat_map(|dir| STEMS.map(|stem| (dir, stem)));
    let places = names.flat_map(|(dir, stem)| {
        [stem.to_owned(), format!("{stem}.1")].map(|name| (format!("{dir}/{name}"), stem))
    });
    let found = join_all(places.map(|(path, stem)| async move {
        let target = link_target(docker, id, &path).await?;
        let path = if target.starts_with('/') { target } else { path };
        Some(DriverCopy { path, stem })
    }));
    let covered = found.await.into_iter().flatten().collect();
    if let Some(image) = &image {
        searched.keep(image, &dirs, &covered);
    }
    Ok(LibraryCopies { covered, image })
}

/// What a path of the container leads to; `None` if it is not there, or if the engine does not answer: remaining copies are found after
/// the start.
async fn link_target(docker: &Docker, id: &str, path: &str) -> Option<String> {
    let options = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
    let about = tokio::time::timeout(CALL_LIMIT, docker.get_container_archive_info(id, Some(options)));
    Some(about.await.ok()?.ok()?.link_target)
}

/// The directories for compatibility packages of all versions of CUDA that the image has, named in its variables or not. An engine lists
/// a directory only together with all files below it, so each version is asked about.
async fn toolkits(docker: &Docker, id: &str) -> Vec<String> {
    let versions = VERSIONS.flat_map(|major| (0..10).map(move |minor| (major, minor)));
    let dirs = versions.map(|(major, minor)| format!("/usr/local/cuda-{major}.{minor}/compat"));
    let found = join_all(dirs.map(|dir| async move { link_target(docker, id, &dir).await.map(|_| dir) }));
    found.await.into_iter().flatten().collect()
}

/// The copies in an image with these variables, before a container exists.
pub(super) fn known_of(image: &str, env: &[String], searched: &Searched) -> Option<BTreeSet<DriverCopy>> {
    searched.known(image, &named_dirs(env.iter().map(String::as_str)))
}

/// The directories in which a program with these variables finds libraries first.
fn named_dirs<'a>(env: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let env: BTreeMap<&str, &str> = env.filter_map(|line| line.split_once('=')).collect();
    let mut dirs: BTreeSet<String> = USUAL_DIRS.map(str::to_owned).into();
    let path = env.get("LD_LIBRARY_PATH").copied().unwrap_or_default();
    let absolute = path.split(':').filter(|dir| dir.starts_with('/'));
    dirs.extend(absolute.map(|dir| dir.trim_end_matches('/').to_owned()));
    // `CUDA_VERSION=12.8.1` in NVIDIA's images; the toolkit is in /usr/local/cuda-12.8.
    let mut numbers = env.get("CUDA_VERSION").copied().unwrap_or_default().split('.');
    if let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) {
        dirs.insert(format!("/usr/local/cuda-{major}.{minor}/compat"));
    }
    dirs
}

/// The first copy that a program of this process could load instead of the filter, if any.
///
/// A process that is gone has no file system any more, and did no harm.
pub(super) fn uncovered(pid: u32, confinement: &Confinement) -> Option<PathBuf> {
    let root = Root::at(Path::new(&format!("/proc/{pid}/root"))).ok()?;
    let env = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let env: Vec<String> =
        env.split(|byte| *byte == 0).map(|line| String::from_utf8_lossy(line).into_owned()).collect();
    let mut copies = STEMS.into_iter().flat_map(|stem| root.copies(&env, stem, &confinement.filter(stem)));
    copies.next().map(PathBuf::from)
}

/// The file system of a container. Links in it are followed as its own programs would.
#[derive(Debug)]
pub(super) struct Root(File);

impl Root {
    pub(super) fn at(dir: &Path) -> io::Result<Self> {
        Ok(Self(File::open(dir)?))
    }

    /// The copies that a program with these variables could load instead of `filter`.
    pub(super) fn copies(&self, env: &[String], stem: &str, filter: &Path) -> Vec<String> {
        let mut dirs = named_dirs(env.iter().map(String::as_str));
        dirs.extend(DEFAULT_DIRS.map(str::to_owned));
        dirs.extend(self.configured_dirs());
        let toolkits = self.entries("usr/local").into_iter().filter(|name| name.starts_with("cuda"));
        dirs.extend(toolkits.map(|name| format!("/usr/local/{name}/compat")));
        let filter = FileId::of(filter);
        let paths = dirs.iter().flat_map(|dir| [format!("{dir}/{stem}.1"), format!("{dir}/{stem}")]);
        paths.filter(|path| self.file_id(path).is_some_and(|found| Some(found) != filter)).collect()
    }

    pub(super) fn open(&self, path: &str) -> io::Result<File> {
        let how =
            OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
        Ok(openat2(&self.0, path, how)?.into())
    }

    /// A path of this process to a file in there.
    pub(super) fn path_to(&self, path: &str) -> Option<(File, PathBuf)> {
        use std::os::fd::AsRawFd as _;
        let file = self.open(path).ok()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Some((file, path.into()))
    }

    pub(super) fn file_id(&self, path: &str) -> Option<FileId> {
        let (_open, path) = self.path_to(path)?;
        FileId::of(&path)
    }

    pub(super) fn read(&self, path: &str) -> String {
        let mut text = Vec::new();
        if let Some((_open, path)) = self.path_to(path)
            // Reading something other than a regular file may block.
            && path.metadata().is_ok_and(|found| found.is_file())
            && let Ok(file) = File::open(path)
        {
            // An unreadable file counts as empty.
            let _ = file.take(MOST_TEXT).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The names in a directory.
    pub(super) fn entries(&self, path: &str) -> Vec<String> {
        let Some((_open, path)) = self.path_to(path) else { return Vec::new() };
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// The directories of the loader's configuration. Its `include` lines all mean `ld.so.conf.d/*.conf`.
    fn configured_dirs(&self) -> Vec<String> {
        let more =
            self.entries("etc/ld.so.conf.d").into_iter().map(|name| format!("etc/ld.so.conf.d/{name}"));
        let files = std::iter::once("etc/ld.so.conf".to_owned()).chain(more);
        let text: String = files.map(|file| self.read(&file) + "\n").collect();
        let lines = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
        lines.map(|line| line.trim_end_matches('/').to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn an_image_says_where_its_libraries_are() {
        let env =
            ["LD_LIBRARY_PATH=/opt/odd/:relative:/usr/local/cuda-12.8/compat", "CUDA_VERSION=12.8.1", "A=1"];
        let dirs = named_dirs(env.into_iter());
        assert!(dirs.contains("/opt/odd") && dirs.contains("/usr/local/cuda-12.8/compat"), "{dirs:?}");
        assert!(dirs.contains("/usr/local/cuda/compat") && !dirs.contains("relative"), "{dirs:?}");
    }

    #[test]
    fn links_lead_where_they_lead_a_program_in_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("usr/local/cuda-12.8/compat")).unwrap();
        fs::create_dir_all(dir.path().join("etc/ld.so.conf.d")).unwrap();
        fs::write(dir.path().join("usr/local/cuda-12.8/compat/libcuda.so.570"), "").unwrap();
        symlink("libcuda.so.570", dir.path().join("usr/local/cuda-12.8/compat/libcuda.so.1")).unwrap();
        symlink("/usr/local/cuda-12.8", dir.path().join("usr/local/cuda")).unwrap();
        fs::write(dir.path().join("etc/ld.so.conf.d/00.conf"), "# first\n/usr/local/cuda/compat/\n").unwrap();
        let root = Root(File::open(dir.path()).unwrap());
        assert_eq!(root.configured_dirs(), ["/usr/local/cuda/compat"]);
        assert_eq!(root.entries("usr/local").len(), 2);
        let file = FileId::of(&dir.path().join("usr/local/cuda-12.8/compat/libcuda.so.570"));
        assert!(file.is_some());
        assert_eq!(root.file_id("/usr/local/cuda/compat/libcuda.so.1"), file);
        assert_eq!(root.file_id("/usr/local/cuda/compat/libcuda.so"), None);
    }
}
