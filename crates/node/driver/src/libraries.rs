//! The driver's libraries: where they are, and the names under which a program may open them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{DriverError, Result};

pub(crate) const CUDA_SONAME: &str = "libcuda.so.1";
pub(crate) const NVML_SONAME: &str = "libnvidia-ml.so.1";

/// Directories where installers put the driver's libraries, in addition to those of `/etc/ld.so.conf*`: distributions, the
/// container toolkit (`/usr/local/nvidia`), GKE, and CUDA's forward-compatibility packages.
const USUAL_DIRS: [&str; 23] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/usr/lib64",
    "/usr/lib64/nvidia",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib64",
    WSL_DIR,
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/opt/nvidia/lib64",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    // NixOS; Container-Optimized OS, on GKE and elsewhere; Flatcar; Bottlerocket.
    "/run/opengl-driver/lib",
    "/home/kubernetes/bin/nvidia/lib64",
    "/var/lib/nvidia/lib64",
    "/opt/nvidia/current/usr/lib64",
    "/x86_64-bottlerocket-linux-gnu/sys-root/usr/lib",
    "/aarch64-bottlerocket-linux-gnu/sys-root/usr/lib",
];

/// Windows' subsystem for Linux: what Linux has of the driver, and Windows' own part of it, which the former opens.
const WSL_DIR: &str = "/usr/lib/wsl/lib";
const WSL_STORE: &str = "/usr/lib/wsl/drivers";

/// Where installers put `nvidia-smi`. NixOS is not among them: its programs run on NixOS only.
const PROGRAM_DIRS: [&str; 7] = [
    "/usr/bin",
    WSL_DIR,
    "/run/nvidia/driver/usr/bin",
    "/usr/local/nvidia/bin",
    "/home/kubernetes/bin/nvidia/bin",
    "/var/lib/nvidia/bin",
    "/opt/nvidia/current/usr/bin",
];

/// One library of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// The file itself.
    pub real: PathBuf,
    /// Every path on this machine that leads to this library or to another build of it (`cuda-compat`), symbolic
    /// links included, sorted.
    pub names: Vec<PathBuf>,
}

/// The two libraries through which programs reach the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Libraries {
    /// CUDA's driver API, `libcuda.so.1`.
    pub cuda: Library,
    /// NVML, `libnvidia-ml.so.1`.
    pub nvml: Library,
}

pub(crate) fn installed(driver_version: &str) -> Result<Libraries> {
    let dirs = library_dirs(Path::new("/"));
    let library = |soname| {
        let found = find_in(&dirs, soname, driver_version);
        found.ok_or_else(|| DriverError::NoLibrary { name: soname, looked_in: joined(&dirs) })
    };
    Ok(Libraries { cuda: library(CUDA_SONAME)?, nvml: library(NVML_SONAME)? })
}

/// The first file of that soname in the usual directories.
pub(crate) fn find(soname: &str) -> Option<PathBuf> {
    let candidates = library_dirs(Path::new("/")).into_iter().map(|dir| dir.join(soname));
    candidates.into_iter().find(|path| path.is_file())
}

/// The nodes through which programs use the GPUs of these minor numbers, as far as they exist.
pub(crate) fn device_nodes(root: &Path, minors: &[u32]) -> Vec<PathBuf> {
    let own = minors.iter().map(|minor| format!("nvidia{minor}"));
    // The last one is all there is in Windows' subsystem for Linux.
    let shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "dxg"].map(str::to_owned);
    let nodes = own.chain(shared).map(|name| root.join("dev").join(name));
    nodes.filter(|node| node.exists()).collect()
}

/// Beginnings of the names of the driver's other libraries: compilers, OpenCL, video encoding and more; video decoding, ray tracing,
/// OpenGL and Vulkan, VDPAU.
const COMPANIONS: [&str; 9] = [
    "libnvidia-",
    "libcuda",
    "libnvcuvid",
    "libnvoptix",
    "libGLX_nvidia",
    "libEGL_nvidia",
    "libGLESv1_CM_nvidia",
    "libGLESv2_nvidia",
    "libvdpau_nvidia",
];

/// Files without which some of those are not found, or do nothing: the loaders of Vulkan and EGL read the first ones.
const COMPANION_DATA: [&str; 5] = [
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin",
];

/// The other libraries of the driver, which are in libcuda's directory (VDPAU's in one below it) and have its version, under all the
/// names they have there; what some of them read; and the driver's program. In Windows' subsystem for Linux versions are not in names:
/// there it is everything in that directory, and the directory that this opens.
pub(crate) fn companions(libraries: &Libraries, driver_version: &str) -> Vec<PathBuf> {
    let Some(dir) = libraries.cuda.real.parent() else { return Vec::new() };
    let suffix = format!(".so.{driver_version}");
    let belongs = |path: &PathBuf| {
        let Some(target) = path.canonicalize().ok() else { return false };
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let hooked = [&libraries.cuda.real, &libraries.nvml.real].contains(&&target);
        let is_same_version =
            name.ends_with(&suffix) && COMPANIONS.iter().any(|start| name.starts_with(start));
        !hooked && (is_same_version || (dir == Path::new(WSL_DIR) && name.contains(".so")))
    };
    let mut files: Vec<PathBuf> = entries(dir).into_iter().filter(belongs).collect();
    files.extend(entries(&dir.join("vdpau")).into_iter().filter(belongs));
    files.extend(COMPANION_DATA.into_iter().map(PathBuf::from).filter(|file| file.is_file()));
    files.extend(
        PROGRAM_DIRS.into_iter().map(|dir| Path::new(dir).join("nvidia-smi")).find(|file| file.is_file()),
    );
    if dir == Path::new(WSL_DIR) {
        files.extend(Some(PathBuf::from(WSL_STORE)).filter(|store| store.is_dir()));
    }
    files
}

fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// All such directories that exist below `root`, in order of preference.
fn library_dirs(root: &Path) -> Vec<PathBuf> {
    let below = |dir: &str| root.join(dir.trim_start_matches('/'));
    let mut dirs: Vec<PathBuf> = USUAL_DIRS.iter().map(|dir| below(dir)).collect();
    dirs.extend(configured_dirs(root).iter().map(|dir| below(dir)));
    dirs.extend(compat_dirs(root));
    let mut found = BTreeSet::new();
    dirs.retain(|dir| dir.is_dir() && found.insert(dir.clone()));
    dirs
}

/// The directories of `/etc/ld.so.conf` and the files next to it. Its `include` lines all mean `ld.so.conf.d/*.conf`.
fn configured_dirs(root: &Path) -> Vec<String> {
    let mut files = vec![root.join("etc/ld.so.conf")];
    files.extend(entries(&root.join("etc/ld.so.conf.d")));
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    texts
        .flat_map(|text| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>())
        .filter(|line| line.starts_with('/'))
        .collect()
}

/// CUDA's forward-compatibility packages bring their own libcuda: `/usr/local/cuda-12.4/compat`.
fn compat_dirs(root: &Path) -> Vec<PathBuf> {
    let toolkits = entries(&root.join("usr/local")).into_iter();
    toolkits
        .filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with("cuda")))
        .map(|dir| dir.join("compat"))
        .collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

fn find_in(dirs: &[PathBuf], soname: &str, driver_version: &str) -> Option<Library> {
    let unversioned = soname.trim_end_matches(".1");
    let versioned = format!("{unversioned}.{driver_version}");
    let mut names = BTreeSet::new();
    let mut real = None;
    for dir in dirs {
        for name in [versioned.as_str(), soname, unversioned] {
            let path = dir.join(name);
            let Ok(target) = path.canonicalize() else { continue };
            // The installed build is preferred to a compatibility build, which has another version's name. A 32-bit copy, or one for
            // another architecture, cannot be loaded by this machine's programs.
            if real.is_none() && !is_foreign(&target) {
                real = Some(target.clone());
            }
            names.extend([path, target]);
        }
    }
    Some(Library { real: real?, names: names.into_iter().collect() })
}

/// Whether this is an ELF file of the 32-bit class or for another architecture.
fn is_foreign(file: &Path) -> bool {
    const MAGIC: &[u8] = b"\x7fELF";
    const CLASS_64: u8 = 2;
    const MACHINE: [u8; 2] = if cfg!(target_arch = "aarch64") { [183, 0] } else { [62, 0] };
    let mut head = [0; 20];
    fs::File::open(file).and_then(|mut file| file.read_exact(&mut head)).is_ok()
        && head.starts_with(MAGIC)
        && (head[4] != CLASS_64 || head[18..] != MACHINE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn file(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn every_name_of_a_library_is_found() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        file(&root, "usr/lib/x86_64-linux-gnu/libcuda.so.550.1");
        symlink("libcuda.so.550.1", root.join("usr/lib/x86_64-linux-gnu/libcuda.so.1")).unwrap();
        symlink("libcuda.so.1", root.join("usr/lib/x86_64-linux-gnu/libcuda.so")).unwrap();
        file(&root, "usr/local/cuda-12.8/compat/libcuda.so.570.1");
        symlink("libcuda.so.570.1", root.join("usr/local/cuda-12.8/compat/libcuda.so.1")).unwrap();
        file(&root, "opt/odd/libcuda.so.1");
        fs::create_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
        fs::write(root.join("etc/ld.so.conf.d/odd.conf"), "# odd\n/opt/odd\n").unwrap();

        let found = find_in(&library_dirs(&root), CUDA_SONAME, "550.1").unwrap();

        assert_eq!(found.real, root.join("usr/lib/x86_64-linux-gnu/libcuda.so.550.1"));
        let names: Vec<_> =
            found.names.iter().map(|name| name.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "opt/odd/libcuda.so.1",
                "usr/lib/x86_64-linux-gnu/libcuda.so",
                "usr/lib/x86_64-linux-gnu/libcuda.so.1",
                "usr/lib/x86_64-linux-gnu/libcuda.so.550.1",
                "usr/local/cuda-12.8/compat/libcuda.so.1",
                "usr/local/cuda-12.8/compat/libcuda.so.570.1",
            ]
        );
        assert_eq!(find_in(&library_dirs(&root), NVML_SONAME, "550.1"), None);
    }

    /// Bottlerocket has no test on a simulated machine: its directory is at the root.
    #[test]
    fn every_layout_is_found() {
        for dir in USUAL_DIRS {
            let root = tempfile::tempdir().unwrap();
            let root = root.path().canonicalize().unwrap();
            let library = format!("{}/libcuda.so.550.1", dir.trim_start_matches('/'));
            file(&root, &library);
            let found = find_in(&library_dirs(&root), CUDA_SONAME, "550.1").unwrap();
            assert_eq!(found.real, root.join(library));
        }
        // Of a kernel, which the loader knows: Flatcar's own.
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let dir = "opt/nvidia/550.1/6.12.1-flatcar/usr/lib64";
        file(&root, &format!("{dir}/libcuda.so.550.1"));
        fs::create_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
        fs::write(root.join("etc/ld.so.conf.d/nvidia.conf"), format!("/{dir}\n")).unwrap();
        assert!(find_in(&library_dirs(&root), CUDA_SONAME, "550.1").is_some());
    }

    #[test]
    fn a_copy_of_another_class_or_architecture_has_a_name_and_is_not_the_library() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let header = |class: u8, machine: u8| {
            let mut head = [0; 64];
            head[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
            head[18] = machine;
            head
        };
        let (own, other) = if cfg!(target_arch = "aarch64") { (183, 62) } else { (62, 183) };
        for (path, header) in [
            ("usr/lib/libcuda.so.550.1", header(1, 3)),
            ("usr/lib64/libcuda.so.550.1", header(2, other)),
            ("opt/odd/libcuda.so.550.1", header(2, own)),
        ] {
            file(&root, path);
            fs::write(root.join(path), header).unwrap();
        }
        fs::create_dir_all(root.join("etc/ld.so.conf.d")).unwrap();
        fs::write(root.join("etc/ld.so.conf.d/odd.conf"), "/opt/odd\n").unwrap();
        let found = find_in(&library_dirs(&root), CUDA_SONAME, "550.1").unwrap();
        assert_eq!(found.real, root.join("opt/odd/libcuda.so.550.1"));
        assert_eq!(found.names.len(), 3, "all are covered");
    }

    #[test]
    fn companions_are_the_other_libraries_of_the_same_driver() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for name in [
            "libcuda.so.550.1",
            "libnvidia-ml.so.550.1",
            "libnvidia-ptxjitcompiler.so.550.1",
            "libnvidia-ptxjitcompiler.so.535.1",
            "libcudadebugger.so.550.1",
            "libcurl.so.550.1",
            "libnvcuvid.so.550.1",
            "libGLX_nvidia.so.550.1",
            "vdpau/libvdpau_nvidia.so.550.1",
        ] {
            file(&root, name);
        }
        symlink("libcuda.so.550.1", root.join("libcuda.so.1")).unwrap();
        symlink("libnvidia-ptxjitcompiler.so.550.1", root.join("libnvidia-ptxjitcompiler.so.1")).unwrap();
        symlink("libnvidia-ptxjitcompiler.so.535.1", root.join("libnvidia-ptxjitcompiler.so.old")).unwrap();
        let library = |name: &str| Library { real: root.join(name), names: Vec::new() };
        let libraries =
            Libraries { cuda: library("libcuda.so.550.1"), nvml: library("libnvidia-ml.so.550.1") };

        let mut found = companions(&libraries, "550.1");
        found.retain(|file| file.starts_with(&root));

        let expected = [
            "libGLX_nvidia.so.550.1",
            "libcudadebugger.so.550.1",
            "libnvcuvid.so.550.1",
            "libnvidia-ptxjitcompiler.so.1",
            "libnvidia-ptxjitcompiler.so.550.1",
            "vdpau/libvdpau_nvidia.so.550.1",
        ];
        assert_eq!(found, expected.map(|name| root.join(name)));
    }
}
