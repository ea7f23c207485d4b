//! Notifies waiting calls that something in the cluster has changed.

use tokio::sync::watch;

/// Notices of changes.
#[derive(Clone)]
pub(super) struct Changes(watch::Receiver<()>);

impl Changes {
    /// Those that `news` sends from now on.
    pub(super) fn of(news: &watch::Sender<()>) -> Self {
        Self(news.subscribe())
    }

    /// The next one that was not asked for yet.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // No watch runs any more: the program is ending.
            std::future::pending::<()>().await;
        }
    }
}
