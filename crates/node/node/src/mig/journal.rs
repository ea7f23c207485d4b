//! Records which placements on a GPU are ours, from before an instance is created until it is destroyed; and where an
//! operation failed lately.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use cantle_driver::GpuInstance;
use cantle_model::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::{NodeError, NodeStore};
use cantle_runtime::files::{self, Durability};

/// A placement of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// NVML's id of the profile.
    pub profile_id: u32,
    /// First memory slice.
    pub start: u32,
    /// The instance there is ours, or is about to be.
    ours: bool,
    /// No instance is made here before then, because one failed: milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    avoid_until_ms: Option<i64>,
}

/// The record of placements on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    places: Vec<JournalEntry>,
}

impl Journal {
    fn path(node: &NodeStore, gpu: &GpuUuid) -> PathBuf {
        node.mig_dir().join(format!("{gpu}.json"))
    }

    /// # Errors
    /// Names the file that cannot be read: its content may not be guessed.
    pub fn read(node: &NodeStore, gpu: &GpuUuid) -> Result<Self, NodeError> {
        Ok(files::read_json(&Self::path(node, gpu))?.unwrap_or_default())
    }

    /// # Errors
    /// Names the file that cannot be written.
    pub fn write(&self, node: &NodeStore, gpu: &GpuUuid) -> Result<(), NodeError> {
        Ok(files::write_json(&Self::path(node, gpu), self, Durability::Crash)?)
    }

    /// The number changes with each written change, of this process or of another.
    pub fn mark(node: &NodeStore, gpu: &GpuUuid) -> u64 {
        let written = std::fs::metadata(Self::path(node, gpu));
        // Each change is a new file, renamed into place.
        written.map_or(0, |file| {
            let nanoseconds = u64::try_from(file.mtime() * 1_000_000_000 + file.mtime_nsec()).unwrap_or(0);
            file.ino().wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ nanoseconds
        })
    }

    /// Is the instance at this placement ours, if there is one?
    #[must_use]
    pub fn claims(&self, profile_id: u32, start: u32) -> bool {
        self.places.iter().any(|place| place.ours && place.is_at(profile_id, start))
    }

    /// Was this instance made by cantle?
    #[must_use]
    pub fn is_ours(&self, instance: &GpuInstance) -> bool {
        self.claims(instance.profile_id, instance.start)
    }

    /// The instance at this placement is ours, or is about to be.
    pub fn claim(&mut self, profile_id: u32, start: u32) {
        self.drop_place(profile_id, start);
        self.places.push(JournalEntry { profile_id, start, ours: true, avoid_until_ms: None });
    }

    /// Something failed there; `ours` if an instance of ours is left.
    pub fn avoid(&mut self, profile_id: u32, start: u32, until_ms: i64, ours: bool) {
        self.drop_place(profile_id, start);
        self.places.push(JournalEntry { profile_id, start, ours, avoid_until_ms: Some(until_ms) });
    }

    /// Forgets the placement.
    pub fn drop_place(&mut self, profile_id: u32, start: u32) {
        self.places.retain(|place| !place.is_at(profile_id, start));
    }

    /// Drops placements where no instance is any more.
    pub fn keep_only(&mut self, instances: &[GpuInstance]) {
        self.places.retain(|place| {
            instances.iter().any(|instance| place.is_at(instance.profile_id, instance.start))
        });
    }

    /// Placements where something failed lately.
    pub fn avoided(&self, now_ms: i64) -> impl Iterator<Item = &JournalEntry> {
        self.places.iter().filter(move |place| place.avoid_until_ms.is_some_and(|until| until > now_ms))
    }
}

impl JournalEntry {
    const fn is_at(&self, profile_id: u32, start: u32) -> bool {
        self.profile_id == profile_id && self.start == start
    }
}
