//! Looks from time to time for what a dead program has left unfinished.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_driver::Installation;
use cantle_model::{Lease, LeaseId};

use super::{CheckpointHelper, LOCK_LIMIT, Out, Result, Suspender, budget, is_unfinished};
use crate::store::NodeStore;

/// Brings unfinished suspensions of a node to their end, in a thread of its own: the driver may take its time.
#[derive(Debug)]
pub struct Recovery {
    installation: Installation,
    is_at_work: Arc<AtomicBool>,
}

impl Recovery {
    /// For the node of these GPUs.
    #[must_use]
    pub fn new(installation: &Installation) -> Self {
        Self { installation: installation.clone(), is_at_work: Arc::default() }
    }

    /// Brings what is unfinished among the leases of the node to its end. Returns at once.
    pub fn look(&self, node: &NodeStore, leases: &[Lease]) {
        if !leases.iter().any(is_unfinished) || self.is_at_work.swap(true, Ordering::AcqRel) {
            return;
        }
        let (installation, node, is_at_work) =
            (self.installation.clone(), node.clone(), Arc::clone(&self.is_at_work));
        std::thread::spawn(move || {
            if let Err(error) = recover(&installation, &node) {
                tracing::warn!(%error, "an unfinished suspension stays for the next look");
            }
            is_at_work.store(false, Ordering::Release);
        });
    }
}

fn recover(installation: &Installation, node: &NodeStore) -> Result<()> {
    with_suspender(installation, node, |suspender| suspender.recover())
}

/// Suspends a task so that another one gets its slices; it comes back as soon as there is room. Takes as long as the driver does.
///
/// # Errors
/// As [`Suspender::suspend`].
pub fn make_room(installation: &Installation, node: &NodeStore, id: &LeaseId) -> Result<()> {
    let parked_memory = budget(node)?;
    with_suspender(installation, node, |suspender| {
        suspender.parked_memory = parked_memory;
        suspender.suspend_as(id, Out::ForAnother).map(drop)
    })
}

/// Brings a task back that was suspended for another one, if there is room for it now.
///
/// # Errors
/// As [`Suspender::resume`].
pub(crate) fn bring_back(installation: &Installation, node: &NodeStore, id: &LeaseId) -> Result<()> {
    with_suspender(installation, node, |suspender| suspender.resume(id, None).map(drop))
}

fn with_suspender(
    installation: &Installation,
    node: &NodeStore,
    work: impl FnOnce(&mut Suspender<'_>) -> Result<()>,
) -> Result<()> {
    let driver = cantle_driver::open(installation)?;
    let gpus = driver.gpus()?;
    let mut helper = CheckpointHelper::default();
    let mut suspender = Suspender {
        driver: driver.as_ref(),
        node,
        gpus: &gpus,
        helper: &mut helper,
        parked_memory: None,
        lock_limit: LOCK_LIMIT,
    };
    work(&mut suspender)
}
