//! Which places of a GPU are ours, written before an instance is made there and until it is destroyed; and where
//! something failed lately.

use std::path::PathBuf;

use cantle_driver::GpuInstance;
use cantle_model::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::node::files::{self, Keep};
use crate::{AgentError, Node};

/// A place for an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    /// NVML's id of the profile.
    pub(crate) profile_id: u32,
    /// First unit.
    pub(crate) start: u32,
    /// What is there is ours, or is about to be.
    ours: bool,
    /// What failed here is not tried again before then, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    avoid_until_ms: Option<i64>,
}

/// What we know of places on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    places: Vec<Noted>,
}

impl Journal {
    fn path(node: &Node, gpu: &GpuUuid) -> PathBuf {
        node.mig_dir().join(format!("{gpu}.json"))
    }

    /// # Errors
    /// Names the file that can't be read: what it says may not be guessed.
    pub(crate) fn read(node: &Node, gpu: &GpuUuid) -> Result<Self, AgentError> {
        Ok(files::read_json(&Self::path(node, gpu))?.unwrap_or_default())
    }

    /// # Errors
    /// Names the file that can't be written.
    pub(crate) fn write(&self, node: &Node, gpu: &GpuUuid) -> Result<(), AgentError> {
        files::write_json(&Self::path(node, gpu), self, Keep::UntilBoot)
    }

    pub(crate) fn is_ours(&self, instance: &GpuInstance) -> bool {
        self.places.iter().any(|place| place.ours && place.is_at(instance.profile_id, instance.start))
    }

    /// What is at this place is ours, or is about to be.
    pub(crate) fn claim(&mut self, profile_id: u32, start: u32) {
        self.drop_place(profile_id, start);
        self.places.push(Noted { profile_id, start, ours: true, avoid_until_ms: None });
    }

    /// Something failed there; is something of ours left?
    pub(crate) fn avoid(&mut self, profile_id: u32, start: u32, until_ms: i64, ours: bool) {
        self.drop_place(profile_id, start);
        self.places.push(Noted { profile_id, start, ours, avoid_until_ms: Some(until_ms) });
    }

    pub(crate) fn drop_place(&mut self, profile_id: u32, start: u32) {
        self.places.retain(|place| !place.is_at(profile_id, start));
    }

    /// Drops what no instance is at any more.
    pub(crate) fn keep_only(&mut self, instances: &[GpuInstance]) {
        self.places.retain(|place| {
            instances.iter().any(|instance| place.is_at(instance.profile_id, instance.start))
        });
    }

    /// Places that failed lately.
    pub(crate) fn avoided(&self, now_ms: i64) -> impl Iterator<Item = &Noted> {
        self.places.iter().filter(move |place| place.avoid_until_ms.is_some_and(|until| until > now_ms))
    }
}

impl Noted {
    const fn is_at(&self, profile_id: u32, start: u32) -> bool {
        self.profile_id == profile_id && self.start == start
    }
}
