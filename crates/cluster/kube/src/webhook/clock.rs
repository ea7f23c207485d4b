//! Compares this replica's clock with the API server's: a certificate of a clock that is ahead is not valid there yet, and the
//! API server would refuse each pod whose call reaches this replica.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, header};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;
use tokio::time::{sleep, timeout};

use super::authorities::SKEW_S;
use super::metrics::Metrics;

/// A replica is ready while its clock differs by less than this: half of what its certificates allow.
const MAX_SKEW_S: i64 = SKEW_S / 2;
const LOOK_EVERY: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps the replica ready, or not, without end. Where the API server does not answer, it stays as it was.
pub(super) async fn keep_compared(client: Client, metrics: Arc<Metrics>) -> Infallible {
    loop {
        compare(&client, &metrics).await;
        sleep(LOOK_EVERY).await;
    }
}

/// Compares once.
pub(super) async fn compare(client: &Client, metrics: &Metrics) {
    let Some(skew_s) = skew_s(client).await else { return };
    let is_off = skew_s.abs() >= MAX_SKEW_S;
    if metrics.clock_is_off(is_off) != is_off {
        match is_off {
            true => tracing::error!(
                skew_s,
                "this node's clock differs from the API server's: this replica is not ready until it is set"
            ),
            false => tracing::info!("this node's clock is the API server's again"),
        }
    }
}

/// How much this clock is ahead, in seconds; none if that is not known.
async fn skew_s(client: &Client) -> Option<i64> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let answer = timeout(PATIENCE, client.send(request)).await.ok()?.ok()?;
    let date = read(answer.headers().get(header::DATE)?.to_str().ok()?)?;
    Some(Timestamp::now().as_second() - date)
}

/// The seconds since 1970 of a date as HTTP has it.
fn read(date: &str) -> Option<i64> {
    rfc2822::DateTimeParser::new().parse_timestamp(date).ok().map(Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http() {
        assert_eq!(read("Fri, 27 Nov 2026 22:10:00 GMT"), Some(1_795_817_400));
        assert_eq!(read("yesterday"), None);
    }
}
