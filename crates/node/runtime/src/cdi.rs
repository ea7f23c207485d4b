//! Specs of the Container Device Interface: files that tell a container engine what a named device adds to a container. A
//! slice is such a device. Each slice has a file of its own, so that no other file changes when a slice is created or
//! removed.
//!
//! The format is CDI 0.5.0, the first in which a name may begin with a digit: engines refuse formats that are newer than
//! themselves.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{Durability, write_json};

/// The kind of a slice: vendor and class. `cantle.dev/slice=NAME` is the whole name of one.
pub const SLICE_KIND: &str = "cantle.dev/slice";

/// The kind of a mount whose source is a path of the machine.
pub(crate) const BIND: &str = "bind";

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    cdi_version: String,
    kind: String,
    devices: Vec<CdiDevice>,
}

/// Something that a container can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiDevice {
    /// Its name within the kind: letters, digits and `_ . : -`, with a letter or a digit at both ends.
    pub name: String,
    /// Its changes to the container.
    pub container_edits: Edits,
}

/// The changes to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edits {
    /// `NAME=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes of the machine, under the same path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Mounts; the engine puts them in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Programs that the engine runs before the container's own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<CdiHook>,
}

impl Edits {
    /// Every path of the machine in them: an engine that does not find one of them starts no container.
    pub fn host_paths(&self) -> impl Iterator<Item = &Path> {
        let nodes = self.device_nodes.iter().map(|node| node.path.as_path());
        let mounts = self.mounts.iter().filter(|mount| mount.kind == BIND);
        let hooks = self.hooks.iter().map(|hook| hook.path.as_path());
        nodes.chain(mounts.map(|mount| Path::new(&mount.host_path))).chain(hooks)
    }
}

/// A program of the machine that an engine runs before it starts a container, by the OCI runtime specification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CdiHook {
    /// When it runs.
    pub hook_name: String,
    /// The program.
    pub path: PathBuf,
    /// Its words; the first one is its name.
    pub args: Vec<String>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// On the machine, and in the container.
    pub path: PathBuf,
    /// Of `rwm`, what the container may do.
    pub permissions: String,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// The machine's file; the kind of filesystem if it is none.
    pub host_path: String,
    /// Its path in the container.
    pub container_path: String,
    /// Kind of filesystem: `bind`, `tmpfs`.
    #[serde(rename = "type")]
    pub kind: String,
    /// As for mount(8).
    pub options: Vec<String>,
}

impl Spec {
    /// The slices of one lease or claim.
    #[must_use]
    pub fn of_slices(devices: Vec<CdiDevice>) -> Self {
        Self { cdi_version: "0.5.0".to_owned(), kind: SLICE_KIND.to_owned(), devices }
    }

    /// Puts it into `dir`, whole or not at all, in place of an earlier one with the same id; makes the directory if need be.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, dir: &Path, id: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        // A restart of the machine empties the directory and ends the slices.
        write_json(&file(dir, id), self, Durability::Crash).map_err(|error| error.source)
    }

    /// [`Self::write`] for as long as the result lives.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn publish(&self, dir: &Path, id: &str) -> io::Result<Published> {
        self.write(dir, id)?;
        Ok(Published { dir: dir.to_owned(), id: id.to_owned() })
    }
}

/// A spec that is there for now.
#[derive(Debug)]
pub(crate) struct Published {
    dir: PathBuf,
    id: String,
}

impl Drop for Published {
    fn drop(&mut self) {
        // One that stays names files that go with the slice; the directory is emptied when the machine starts.
        let _ = remove(&self.dir, &self.id);
    }
}

/// Removes what [`Spec::write`] put there; that it is gone already is no error.
///
/// # Errors
/// If the file is there and stays.
pub fn remove(dir: &Path, id: &str) -> io::Result<()> {
    match fs::remove_file(file(dir, id)) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
        _ => Ok(()),
    }
}

/// The ids of all specs of slices in `dir`, in no order; none if there is no such directory.
///
/// # Errors
/// If the directory cannot be read.
pub fn ids(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names
        .filter_map(|name| Some(name.strip_prefix("cantle-")?.strip_suffix(".json")?.to_owned()))
        .collect())
}

/// The qualified name by which a container requests the device `name`.
#[must_use]
pub fn qualified(name: &str) -> String {
    format!("{SLICE_KIND}={name}")
}

/// The name of the device that a container has by this qualified name, if it is one of cantle's.
#[must_use]
pub fn lease_of(qualified: &str) -> Option<&str> {
    qualified.strip_prefix(SLICE_KIND)?.strip_prefix('=')
}

fn file(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("cantle-{id}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        let mount = Mount {
            host_path: "/lib/cantle/shim/libcuda.so.1".to_owned(),
            container_path: "/usr/lib64/libcuda.so.1".to_owned(),
            kind: "bind".to_owned(),
            options: ["bind", "ro"].map(str::to_owned).to_vec(),
        };
        let node = DeviceNode { path: "/dev/nvidia0".into(), permissions: "rw".to_owned() };
        let edits = Edits {
            env: vec!["A=1".to_owned()],
            device_nodes: vec![node],
            mounts: vec![mount],
            hooks: Vec::new(),
        };
        Spec::of_slices(vec![CdiDevice { name: "lease-1".to_owned(), container_edits: edits }])
    }

    /// The names are those of the specification's schema.
    #[test]
    fn the_file_is_what_engines_read() {
        let dir = tempfile::tempdir().unwrap();
        let specs = dir.path().join("run/cdi");
        spec().write(&specs, "lease-1").unwrap();
        let path = specs.join("cantle-lease-1.json");
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "it names what a task has");
        let text = fs::read_to_string(path).unwrap();
        let expected = serde_json::json!({
            "cdiVersion": "0.5.0",
            "kind": "cantle.dev/slice",
            "devices": [{
                "name": "lease-1",
                "containerEdits": {
                    "env": ["A=1"],
                    "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw"}],
                    "mounts": [{
                        "hostPath": "/lib/cantle/shim/libcuda.so.1",
                        "containerPath": "/usr/lib64/libcuda.so.1",
                        "type": "bind",
                        "options": ["bind", "ro"],
                    }],
                },
            }],
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
        assert_eq!(qualified("lease-1"), "cantle.dev/slice=lease-1");
    }

    #[test]
    fn what_is_written_is_found_and_goes_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ids(&dir.path().join("none")).unwrap(), Vec::<String>::new());
        fs::write(dir.path().join("nvidia.yaml"), "another's").unwrap();
        spec().write(dir.path(), "a").unwrap();
        spec().write(dir.path(), "a").unwrap();
        assert_eq!(ids(dir.path()).unwrap(), ["a"]);
        remove(dir.path(), "a").unwrap();
        remove(dir.path(), "a").unwrap();
        drop(spec().publish(dir.path(), "b").unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the other one's stays");
    }
}
