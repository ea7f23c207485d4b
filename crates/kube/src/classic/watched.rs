//! Objects of the cluster as they are known here, and the news that one has changed.

use std::fmt::Debug;

use futures_util::StreamExt as _;
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What is told when something has changed.
#[derive(Clone)]
pub(super) struct Changes(watch::Receiver<()>);

impl Changes {
    /// Those that [`follow`] tells `news` of from now on.
    pub(super) fn of(news: &watch::Sender<()>) -> Self {
        Self(news.subscribe())
    }

    /// The next one that was not asked for yet.
    pub(super) async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody watches any more: the program is ending.
            std::future::pending::<()>().await;
        }
    }
}

/// Follows all objects of `api` in the background.
pub(super) fn follow<K>(api: Api<K>, background: &mut JoinSet<()>, news: watch::Sender<()>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (known, write) = store();
    let events = reflector(write, watcher(api, watcher::Config::default())).default_backoff();
    background.spawn(events.for_each(move |event| {
        if let Err(error) = event {
            tracing::warn!("watching {}: {error}", K::plural(&()));
        }
        news.send_replace(());
        std::future::ready(())
    }));
    known
}
