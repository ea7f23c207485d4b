//! The requests of pods so far, from which placement predicts future ones.

use std::borrow::Borrow;
use std::collections::BTreeSet;

use cantle_sched::{Demand, Mix, Observed, Queue};
use k8s_openapi::api::core::v1::Pod;

use super::{queue, slice_of, waiting_of};
use crate::cluster::ClusterView;
use crate::{ObjectExt as _, SliceName};

/// Counts the request of each pod with a slice once. Instances of MIG are left out, because no node is nominated for them.
#[derive(Debug, Default)]
pub struct Requests {
    observed: Observed,
    /// Pods that are counted and still there, by their UIDs.
    counted: BTreeSet<String>,
}

impl Requests {
    /// Counts the new ones among all pods that are there.
    pub fn see(&mut self, view: &ClusterView, live: &[impl Borrow<Pod>]) {
        let queue = Queue::new(queue(), Vec::new());
        let mut there = BTreeSet::new();
        for pod in live.iter().map(Borrow::<Pod>::borrow) {
            let is_shared = slice_of(pod).is_some_and(|name| !matches!(name, SliceName::Mig { .. }));
            let Some(uid) = pod.uid().filter(|_| is_shared) else { continue };
            if !self.counted.contains(&uid)
                && let Some(waiting) = waiting_of(view, pod)
            {
                self.observed.count(&Demand::of(&queue, &waiting));
            }
            there.insert(uid);
        }
        self.counted = there;
    }

    /// The expected requests: none before a hundred pods.
    #[must_use]
    pub fn mix(&self) -> Mix {
        self.observed.mix()
    }
}
