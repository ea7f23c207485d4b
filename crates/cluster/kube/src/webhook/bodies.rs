//! Reads the bodies of calls within bounds: of bytes in memory, of time, and of values that a body can become. A client needs
//! no key, so what it announces counts before any of it is read.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::http::StatusCode;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::door::Guest;

/// A pod has at most 1.5 MiB, and a review of a change has two of them.
const MAX_BYTES: usize = 4 << 20;
/// A body of an ordinary pod. All connections together may have such a body at once.
const SMALL_BYTES: usize = 64 << 10;
/// All larger bodies together.
const LARGE_BYTES: usize = 32 << 20;
/// Those of connections on which no review has arrived yet.
const STRANGERS_BYTES: usize = LARGE_BYTES / 2;
/// Those of one address, until a review has arrived.
const STRANGER_BYTES: usize = LARGE_BYTES / 4;
/// A body that takes longer is refused. The API server sends it at once, and waits for ten seconds by default.
const ARRIVAL: Duration = Duration::from_secs(10);
/// Of `[0,0,…]` each two bytes become 32: a body of many values is no pod.
const MAX_VALUES: usize = 200_000;

/// A refused body: the status and the reason for the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

/// The bodies under way.
pub(super) struct Bodies {
    large: Mutex<Large>,
    /// One large body is read into values at a time.
    turn: Semaphore,
}

#[derive(Default)]
struct Large {
    known: usize,
    strangers: BTreeMap<IpAddr, usize>,
}

/// Room for one large body, until this goes.
struct BodyPermit<'a> {
    large: &'a Mutex<Large>,
    bytes: usize,
    /// The address, if it counts as a stranger's.
    stranger: Option<IpAddr>,
}

impl Default for Bodies {
    fn default() -> Self {
        Self { large: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl Bodies {
    /// The JSON of a body.
    ///
    /// # Errors
    /// [`Refused`] if it is too large, too late or no JSON, or if too much of others is under way.
    pub(super) async fn json(&self, guest: &Guest, body: Body) -> Result<Value, Refused> {
        // Of unknown length, it may become as long as any.
        let length =
            body.size_hint().upper().map_or(MAX_BYTES, |upper| usize::try_from(upper).unwrap_or(usize::MAX));
        if length > MAX_BYTES {
            let why = format!("a review of {length} bytes; at most {MAX_BYTES} are read");
            return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        if length <= SMALL_BYTES {
            return parse(&read(body, SMALL_BYTES).await?);
        }
        let _room = self.room(guest, length)?;
        let bytes = read(body, length).await?;
        let late = |_| Refused(StatusCode::SERVICE_UNAVAILABLE, "too many large reviews".to_owned());
        let turn = timeout(ARRIVAL, self.turn.acquire()).await.map_err(late)?;
        let _turn = turn.map_err(|error| Refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
        if bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() > MAX_VALUES {
            let why = format!("a review of more than {MAX_VALUES} values is none of a pod");
            return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, why));
        }
        parse(&bytes)
    }

    fn room(&self, guest: &Guest, bytes: usize) -> Result<BodyPermit<'_>, Refused> {
        let mut large = lock(&self.large);
        let of_strangers: usize = large.strangers.values().sum();
        let own = large.strangers.get(&guest.address).copied().unwrap_or(0);
        let is_full = large.known + of_strangers + bytes > LARGE_BYTES;
        let is_crowded = own + bytes > STRANGER_BYTES || of_strangers + bytes > STRANGERS_BYTES;
        if is_full || is_crowded && !guest.is_known() {
            let why = "too many large reviews at once; try again".to_owned();
            return Err(Refused(StatusCode::SERVICE_UNAVAILABLE, why));
        }
        let stranger = (!guest.is_known()).then_some(guest.address);
        match stranger {
            Some(address) => *large.strangers.entry(address).or_default() += bytes,
            None => large.known += bytes,
        }
        Ok(BodyPermit { large: &self.large, bytes, stranger })
    }
}

impl Drop for BodyPermit<'_> {
    fn drop(&mut self) {
        let mut large = lock(self.large);
        match self.stranger {
            None => large.known -= self.bytes,
            Some(address) => {
                let left = large.strangers.remove(&address).map_or(0, |bytes| bytes - self.bytes);
                if left > 0 {
                    large.strangers.insert(address, left);
                }
            }
        }
    }
}

fn lock(large: &Mutex<Large>) -> MutexGuard<'_, Large> {
    large.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(body: Body, limit: usize) -> Result<Bytes, Refused> {
    match timeout(ARRIVAL, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(Refused(StatusCode::BAD_REQUEST, format!("the body did not arrive: {error}"))),
        Err(_) => {
            let why = format!("the body did not arrive within {} s", ARRIVAL.as_secs());
            Err(Refused(StatusCode::REQUEST_TIMEOUT, why))
        }
    }
}

fn parse(bytes: &[u8]) -> Result<Value, Refused> {
    serde_json::from_slice(bytes)
        .map_err(|error| Refused(StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}")))
}
