//! The device nodes that open a MIG instance: the driver lets in who can open them.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the driver says which capability has which minor number.
const MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// The nodes of GPU instance `instance` (and of its one compute instance) on the GPU with this minor number, as far as
/// the driver knows them.
pub(crate) fn of_instance(gpu_minor: u32, instance: u32) -> Vec<PathBuf> {
    nodes(&fs::read_to_string(MINORS).unwrap_or_default(), gpu_minor, instance)
}

/// Lines are `gpu0/gi1/access 12` and `gpu0/gi1/ci0/access 13`.
fn nodes(minors: &str, gpu_minor: u32, instance: u32) -> Vec<PathBuf> {
    let of_instance = format!("gpu{gpu_minor}/gi{instance}/");
    let wanted = ["access", "ci0/access"].map(|name| format!("{of_instance}{name}"));
    let minor = |line: &str| {
        let (name, minor) = line.split_once(' ')?;
        wanted.iter().any(|wanted| wanted == name).then(|| minor.trim().to_owned())
    };
    let node = |minor| Path::new("/dev/nvidia-caps").join(format!("nvidia-cap{minor}"));
    minors.lines().filter_map(minor).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_two_nodes_and_no_other() {
        let minors = "config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi1/ci1/access 14\n\
                      gpu0/gi11/access 102\ngpu1/gi1/access 147\n";
        let of = |gpu, instance| nodes(minors, gpu, instance);
        let paths = ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"].map(PathBuf::from);
        assert_eq!(of(0, 1), paths);
        assert_eq!(of(1, 1), [PathBuf::from("/dev/nvidia-caps/nvidia-cap147")]);
        assert!(of(2, 1).is_empty());
    }
}
