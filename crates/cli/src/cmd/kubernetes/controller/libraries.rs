//! `cantle controller libraries`: copies the libraries from the image to a directory of the node, where pods find them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantle_node::NodeError;
use cantle_runtime::files::FileError;
use clap::Args;

use crate::context::{CommandResult, Context};
use crate::error::{ErrorKind, as_kind};

/// `cantle controller libraries`
#[derive(Args, Debug)]
pub(super) struct LibrariesArgs {
    /// Copy to this directory; files that are there under the same names are replaced
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
}

pub(super) fn libraries(context: &Context, args: &LibrariesArgs) -> CommandResult {
    copy(&context.dirs.lib, &args.to).map_err(NodeError::from)?;
    let program = std::env::current_exe().map_err(as_kind(ErrorKind::Failed))?;
    // The node's engine runs it: see `cantle_kube::COVER_PROGRAM`.
    copy_file(&program, &args.to.join(cantle_kube::COVER_PROGRAM)).map_err(NodeError::from)?;
    Ok(ExitCode::SUCCESS)
}

/// Running pods have the old files mapped: these stay as they are, and new ones take their names.
fn copy(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::create_dir_all(to).map_err(|error| FileError::new(to, error))?;
    let entries = fs::read_dir(from).map_err(|error| FileError::new(from, error))?;
    for entry in entries {
        let path = entry.map_err(|error| FileError::new(from, error))?.path();
        let Some(name) = path.file_name() else { continue };
        let target = to.join(name);
        if path.is_dir() {
            copy(&path, &target)?;
            continue;
        }
        copy_file(&path, &target)?;
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), FileError> {
    let new = to.with_added_extension("new");
    fs::copy(from, &new).map_err(|error| FileError::new(&new, error))?;
    fs::rename(&new, to).map_err(|error| FileError::new(to, error))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_in_use_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        fs::create_dir_all(from.join("shim/gate")).unwrap();
        fs::write(from.join("shim/gate/libcuda.so.1"), "old").unwrap();
        copy(&from, &to).unwrap();
        let mut mapped = fs::File::open(to.join("shim/gate/libcuda.so.1")).unwrap();
        fs::write(from.join("shim/gate/libcuda.so.1"), "new").unwrap();
        copy(&from, &to).unwrap();
        let mut content = String::new();
        mapped.read_to_string(&mut content).unwrap();
        assert_eq!(content, "old");
        assert_eq!(fs::read_to_string(to.join("shim/gate/libcuda.so.1")).unwrap(), "new");
        assert_eq!(fs::read_dir(to.join("shim/gate")).unwrap().count(), 1, "nothing else is left there");
    }
}
