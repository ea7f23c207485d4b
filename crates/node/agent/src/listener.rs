//! A task of the runtime that asks the server by calls that wait, next to the agent's passes.

use std::time::Duration;

use tokio::task::JoinHandle;

/// The longest wait of such a call. The client gives up after 30 s.
pub(crate) const WAIT: Duration = Duration::from_secs(10);
/// When to ask again after an error.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// It asks until it is closed or dropped.
pub(crate) struct Listener(JoinHandle<()>);

impl Listener {
    pub(crate) fn start(listen: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(listen))
    }

    /// Ends, with its use of the agent's driver.
    pub(crate) async fn close(mut self) {
        self.0.abort();
        // Its result cannot fail this.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}
