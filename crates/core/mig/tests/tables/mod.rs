//! Profile tables of real GPUs, for tests; `data/profiles.json` says where they come from.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use cantle_mig::Table;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    gpus: BTreeMap<String, Table>,
}

/// All tables by GPU.
pub(crate) fn tables() -> BTreeMap<String, Table> {
    let file: File = serde_json::from_str(include_str!("../../data/profiles.json")).unwrap();
    file.gpus
}

/// The table of one GPU.
pub(crate) fn table(gpu: &str) -> Table {
    tables().remove(gpu).unwrap()
}
