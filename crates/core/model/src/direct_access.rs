//! The view that a task has of its GPUs where no filter library is between it and them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Device nodes and variables of a task whose limits the driver alone enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectAccess {
    /// Directories of device nodes, and the only files that the task finds in each.
    pub nodes: BTreeMap<PathBuf, Vec<PathBuf>>,
    /// Variables that select its GPUs. They win over all others.
    pub variables: BTreeMap<String, String>,
}
