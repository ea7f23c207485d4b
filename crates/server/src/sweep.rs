//! What nobody asks for: a task whose agent died between taking and starting it goes back to the front of its queue, and
//! how long the queues are and what projects use is noted.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;
use crate::clock::now_us;
use crate::usage;

const EVERY: Duration = Duration::from_secs(10);

/// Looks from time to time, for ever. A task that was taken and not started within `start_within` is lost; who comes later
/// finds it gone.
pub(crate) async fn run(app: Arc<App>, start_within: Duration) {
    let start_within_us = i64::try_from(start_within.as_micros()).unwrap_or(i64::MAX);
    let mut ticks = tokio::time::interval(EVERY.min(start_within));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_us = now_us();
        match app.store.reclaim(now_us.saturating_sub(start_within_us), now_us).await {
            Ok(tasks) => tasks.iter().for_each(|task| tracing::warn!(%task, "never started, queued again")),
            Err(error) => tracing::error!("looking for lost tasks: {error}"),
        }
        if let Some(half_life_ms) = app.usage_half_life_ms
            && let Err(error) = usage::count(&app.store, half_life_ms, now_us).await
        {
            tracing::error!("counting what projects use: {error}");
        }
        if let Err(error) = app.store.sample_queues(now_us).await {
            tracing::error!("noting how long the queues are: {error}");
        }
    }
}
