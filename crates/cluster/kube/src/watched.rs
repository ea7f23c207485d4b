//! The cached copies of the cluster's objects, kept current by watches.

use std::fmt::Debug;

use futures_util::StreamExt as _;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// Follows the objects of `api` that `which` selects, in the background. `lean` removes unused fields from each object;
/// `seen` is called with each event when the store has it.
pub(crate) fn follow<K>(
    background: &mut JoinSet<()>,
    api: Api<K>,
    which: Config,
    lean: impl FnMut(&mut K) + Send + 'static,
    mut seen: impl FnMut(&Event<K>) + Send + 'static,
) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (known, known_in) = store();
    let events = reflector(known_in, watcher(api, which).modify(lean)).default_backoff();
    background.spawn(events.for_each(move |event| {
        match event {
            Ok(event) => seen(&event),
            Err(error) => tracing::warn!("watching {}: {error}", K::plural(&())),
        }
        std::future::ready(())
    }));
    known
}

/// For [`follow`]: all of each object is read.
pub(crate) const fn keep<K>(_: &mut K) {}
