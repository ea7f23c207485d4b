//! Nothing is forgotten: a task whose agent died between taking and starting it goes back to the front of its queue.

use std::sync::Arc;
use std::time::Duration;

use crate::app::App;
use crate::clock::now_us;

/// Agents start a task within seconds of taking it. Who comes later than this finds it gone.
const LOST_AFTER_US: i64 = 60_000_000;
const EVERY: Duration = Duration::from_secs(10);

/// Looks from time to time, for ever.
pub(crate) async fn run(app: Arc<App>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now_us = now_us();
        match app.store.reclaim(now_us - LOST_AFTER_US, now_us).await {
            Ok(tasks) => tasks.iter().for_each(|task| tracing::warn!(%task, "never started, queued again")),
            Err(error) => tracing::error!("looking for lost tasks: {error}"),
        }
    }
}
