//! The driver's own limits of control groups, and those of the kernel.

use std::path::{Path, PathBuf};

use cantle_driver::{GroupMemory, LimitSupport, simulated};
use cantle_model::LimitBackend;
use tempfile::TempDir;

use crate::Node;

/// Where a test may make a control group of version 2.
fn unified() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    let found = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    let group = Path::new(found.split(' ').nth(1)?).join(format!("cantle-driver-{}", std::process::id()));
    std::fs::create_dir(&group).ok().map(|()| group)
}

#[test]
fn limits_of_control_groups_are_those_of_driver_615() {
    let Some(node) = Node::new() else { return };
    let Some(group) = unified() else { return };
    let (gpu, limits) = (node.uuids().remove(0), node.driver.native_limit());
    let LimitSupport::Unsupported(why) = limits.probe(&gpu, &group) else { panic!("driver 580") };
    assert!(why.starts_with("driver 580.95.05 does not offer them here"), "{why}");
    simulated::set_driver(node.state.path(), "615.71.09", &node.lib_dir).unwrap();
    if limits.probe(&gpu, &group) == LimitSupport::Supported(LimitBackend::Nvml) {
        let refused = limits.set(&gpu, &group, u64::MAX - 1).unwrap_err().to_string();
        assert!(refused.contains("nvmlDeviceSetMemoryLimits_v1 failed on GPU-"), "{refused}");
        limits.set(&gpu, &group, 1 << 30).unwrap();
        let limited = GroupMemory { hard_bytes: Some(1 << 30), used_bytes: 0 };
        assert_eq!(limits.used(&gpu, &group).unwrap(), limited);
        limits.clear(&gpu, &group).unwrap();
        assert_eq!(limits.used(&gpu, &group).unwrap().hard_bytes, None);
    }
    std::fs::remove_dir(&group).unwrap();
    assert!(limits.set(&gpu, &group, 1 << 30).is_err(), "it is gone");
}

/// The kernel of no test machine has the controller: a tree of plain files takes its place.
#[test]
fn where_nvml_has_no_limits_the_kernels_controller_is_asked() {
    let Some(node) = Node::new() else { return };
    let (gpu, limits) = (node.uuids().remove(0), node.driver.native_limit());
    let tree = TempDir::new().unwrap();
    let group = tree.path().join("cantle/lease");
    std::fs::create_dir_all(&group).unwrap();
    let LimitSupport::Unsupported(why) = limits.probe(&gpu, &group) else { panic!("no controller") };
    assert!(
        why.ends_with("the kernel does not show a controller of device memory (dmem, Linux 6.14) here"),
        "{why}"
    );
    let region =
        format!("nvidia/{}/vidmem", &node.driver.location(&gpu).unwrap().pci_bus_id[4..]).to_lowercase();
    std::fs::write(tree.path().join("dmem.capacity"), format!("{region} 42949672960\n")).unwrap();
    assert_eq!(limits.probe(&gpu, &group), LimitSupport::Supported(LimitBackend::Dmem));
    limits.set(&gpu, &group, 1 << 30).unwrap();
    assert_eq!(std::fs::read_to_string(group.join("dmem.max")).unwrap(), format!("{region} 1073741824\n"));
    assert_eq!(limits.used(&gpu, &group).unwrap().hard_bytes, Some(1 << 30));
    limits.clear(&gpu, &group).unwrap();
}
