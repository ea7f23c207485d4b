//! Stand-in for a node: a directory with its files. The paths of a slice are checked where a container engine looks for
//! them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use cantle_runtime::MachineRoot;
use cantle_runtime::cdi::{CdiHook, DeviceNode, Edits, Mount};

fn mount(kind: &str, host_path: &str) -> Mount {
    Mount {
        host_path: host_path.to_owned(),
        container_path: "/there".to_owned(),
        kind: kind.to_owned(),
        options: Vec::new(),
    }
}

/// GPU Operator's driver container: the pod has the driver in its own library directory, the node has it below another root.
#[test]
fn paths_of_a_pod_that_its_node_does_not_have_are_found() {
    let node = tempfile::tempdir().unwrap();
    let libraries = node.path().join("run/nvidia/driver/usr/lib64");
    fs::create_dir_all(&libraries).unwrap();
    fs::create_dir_all(node.path().join("dev")).unwrap();
    fs::write(libraries.join("libcuda.so.550.1"), "").unwrap();
    fs::write(node.path().join("dev/nvidia0"), "").unwrap();
    // Absolute, as some distributions have it: it leads to the node's directory, not to this program's.
    symlink("/run/nvidia", node.path().join("nvidia")).unwrap();
    symlink("/nowhere", node.path().join("dangling")).unwrap();
    let edits = Edits {
        device_nodes: ["/dev/nvidia0", "/dev/nvidia9"]
            .map(|path| DeviceNode { path: path.into(), permissions: "rw".to_owned() })
            .to_vec(),
        mounts: vec![
            mount("tmpfs", "tmpfs"),
            mount("bind", "/nvidia/driver/usr/lib64/libcuda.so.550.1"),
            mount("bind", "/usr/lib64/libcuda.so.550.1"),
            mount("bind", "/usr/lib64/libcuda.so.550.1"),
            mount("bind", "/dangling"),
        ],
        hooks: vec![CdiHook {
            hook_name: "createContainer".to_owned(),
            path: "/opt/cantle/lib/cantle".into(),
            args: Vec::new(),
        }],
        ..Default::default()
    };
    let root = MachineRoot::at(node.path()).unwrap();
    let missing = root.missing(edits.host_paths());
    let expected = ["/dangling", "/dev/nvidia9", "/opt/cantle/lib/cantle", "/usr/lib64/libcuda.so.550.1"];
    assert_eq!(missing, expected.map(PathBuf::from));
}

#[test]
fn the_own_root_has_what_this_program_has() {
    let here = std::env::current_exe().unwrap();
    assert!(MachineRoot::own().unwrap().missing([here.as_path()]).is_empty());
}
