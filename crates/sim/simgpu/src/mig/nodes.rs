//! The device nodes that open an instance. A process that cannot open them does not see the instance; a container gets only
//! the nodes of its own instance. On a machine in a directory, files take their place; elsewhere the nodes exist from the
//! start.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::opened::opened_elsewhere;
use crate::spec::MAX_DEVICES;
use crate::state::{MAX_COMPUTE_INSTANCES, MAX_INSTANCES, Site};

/// The file in which the driver lists the minor number of each capability.
const MINORS: &str = "proc/driver/nvidia-caps/mig-minors";
const NODES: &str = "dev/nvidia-caps";
/// The nodes for making instances and for watching them all.
const CONFIG: usize = 1;
const MONITOR: usize = 2;

/// The driver's own numbers: 135 for each GPU, nine for each GPU instance, the first of them its own.
const fn minor(gpu: usize, instance: usize, compute: Option<usize>) -> usize {
    let own = match compute {
        None => 0,
        Some(compute) => 1 + compute,
    };
    3 + 135 * gpu + 9 * instance + own
}

fn node(dir: &Path, minor: usize) -> PathBuf {
    dir.join(NODES).join(format!("nvidia-cap{minor}"))
}

/// Makes the nodes of a GPU instance and of all compute instances it may have; the caller has the machine's lock. They stay
/// when it is destroyed, because they belong to the place.
pub fn make(site: &Site, gpu: usize, instance: usize) -> io::Result<()> {
    // The kernel makes no nodes; the driver's installation has.
    let Site::Directory(dir) = site else { return Ok(()) };
    let own = node(dir, minor(gpu, instance, None));
    if own.exists() {
        return Ok(());
    }
    for name in ["proc", "proc/driver", "proc/driver/nvidia-caps", "dev", NODES] {
        make_directory(&dir.join(name))?;
    }
    let table = dir.join(MINORS);
    if !table.exists() {
        fs::write(table, minors())?;
    }
    // The GPU instance's is the last: where it is, all are.
    let compute = (0..MAX_COMPUTE_INSTANCES).map(|compute| node(dir, minor(gpu, instance, Some(compute))));
    compute.chain([own]).filter(|node| !node.exists()).try_for_each(|node| {
        let made = File::create(node)?;
        // For every user, whatever the umask of this process.
        made.set_permissions(Permissions::from_mode(0o444))
    })
}

/// Open to all accounts, as the machine's directory is: any of them may make the next instance.
fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o1777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether this process can open the nodes of a compute instance.
pub fn can_open(site: &Site, gpu: usize, instance: usize, compute: usize) -> bool {
    let of = [None, Some(compute)].map(|compute| minor(gpu, instance, compute));
    of.into_iter().all(|minor| File::open(node(site.root(), minor)).is_ok())
}

/// Whether a process other than this one has a node of a GPU instance open, or of one of its compute instances.
pub fn is_open_elsewhere(site: &Site, gpu: usize, instance: usize) -> bool {
    let own = [None].into_iter().chain((0..MAX_COMPUTE_INSTANCES).map(Some)).map(|c| minor(gpu, instance, c));
    opened_elsewhere(&own.map(|minor| node(site.root(), minor)).collect::<Vec<_>>())
}

/// The names of all nodes of a machine's first `gpus` GPUs, and the table that says which instance each of them opens.
pub fn all(gpus: usize) -> (Vec<String>, String) {
    let of_instance = |gpu, instance| {
        [None].into_iter().chain((0..MAX_COMPUTE_INSTANCES).map(Some)).map(move |c| minor(gpu, instance, c))
    };
    let of_gpu = |gpu| (0..MAX_INSTANCES).flat_map(move |instance| of_instance(gpu, instance));
    let numbers = [CONFIG, MONITOR].into_iter().chain((0..gpus).flat_map(of_gpu));
    (numbers.map(|minor| format!("nvidia-cap{minor}")).collect(), minors())
}

fn minors() -> String {
    let mut text = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    for gpu in 0..MAX_DEVICES {
        for instance in 0..MAX_INSTANCES {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "gpu{gpu}/gi{instance}/access {}", minor(gpu, instance, None));
            for compute in 0..MAX_COMPUTE_INSTANCES {
                let number = minor(gpu, instance, Some(compute));
                let _ = writeln!(text, "gpu{gpu}/gi{instance}/ci{compute}/access {number}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_drivers() {
        // From NVIDIA's MIG user guide.
        assert_eq!(minor(31, 14, Some(7)), 4322);
        assert!(minors().contains("\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n"));
    }

    #[test]
    fn nodes_open_their_own_instance_only() {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::Directory(dir.path().to_owned());
        make(&site, 0, 1).unwrap();
        make(&site, 0, 1).unwrap();
        assert!(can_open(&site, 0, 1, 0) && can_open(&site, 0, 1, 7));
        assert!(!can_open(&site, 0, 2, 0) && !can_open(&site, 1, 1, 0));
        fs::remove_file(node(dir.path(), minor(0, 1, Some(0)))).unwrap();
        assert!(!can_open(&site, 0, 1, 0));
    }
}
