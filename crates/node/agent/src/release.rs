//! Closes the driver for a while, on request. An open session of its library blocks a reset of the GPU and, before Hopper, a
//! change of its MIG mode.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::AgentError;

/// How long the driver is closed: time for a reset, or for a change of MIG mode.
const RELEASED: Duration = Duration::from_secs(120);
/// How long until another driver is opened, and until one that cannot be is tried again: its installation may not be
/// complete.
const REPLACED: Duration = Duration::from_secs(10);

/// Why an agent no longer serves its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// For good.
    Stopped,
    /// On request, for a while.
    Released,
    /// Another driver has been installed.
    DriverReplaced,
}

impl Ended {
    /// The time for which the driver stays closed; `None`: for good.
    pub(crate) const fn closed_for(self) -> Option<Duration> {
        match self {
            Self::Stopped => None,
            Self::Released => Some(RELEASED),
            Self::DriverReplaced => Some(REPLACED),
        }
    }
}

/// Requests to close the driver: SIGUSR1.
pub(crate) struct Release(Signal);

impl Release {
    pub(crate) fn listen() -> Result<Self, AgentError> {
        signal(SignalKind::user_defined1()).map(Self).map_err(AgentError::Signal)
    }

    /// Returns at the next request.
    pub(crate) async fn asked(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    /// While the driver is closed. A second request ends that early, and so does a stop: then it returns true.
    pub(crate) async fn wait(&mut self, stop: &mut watch::Receiver<bool>, closed: Duration) -> bool {
        tracing::info!(seconds = closed.as_secs(), "the driver is closed");
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => true,
            () = self.asked() => false,
            () = sleep(closed) => false,
        }
    }
}
