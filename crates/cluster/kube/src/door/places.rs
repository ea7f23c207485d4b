//! Limits the number of connections. A connection on which no review has arrived yet is a *stranger*. A new connection never
//! waits: where there are too many, it takes the place of the oldest stranger of the address that has the most. So a client that
//! opens as many connections as possible closes its own, and the API server is served as before.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// One of this many parts of all places is the most that one address has.
const SHARE: usize = 4;

/// The connections, the oldest first.
#[derive(Clone)]
pub(super) struct ConnectionSlots {
    guests: Arc<Mutex<Vec<Arc<Guest>>>>,
    all: usize,
}

/// A connection, to those who serve it.
#[derive(Debug)]
pub(crate) struct Guest {
    /// Where it comes from.
    pub(crate) address: IpAddr,
    is_known: AtomicBool,
    has_to_go: AtomicBool,
    waits: Mutex<Option<Waker>>,
}

impl Guest {
    /// A whole review came on this connection.
    pub(crate) fn is_known_now(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Ready once the connection has to make room for another one.
    pub(super) fn poll_gone(&self, context: &Context<'_>) -> Poll<()> {
        if !self.has_to_go.load(Ordering::Acquire) {
            lock(&self.waits).replace(context.waker().clone());
        }
        if self.has_to_go.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn go(&self) {
        self.has_to_go.store(true, Ordering::Release);
        if let Some(waker) = lock(&self.waits).take() {
            waker.wake();
        }
    }
}

/// One connection's; it is free when this goes.
pub(super) struct ConnectionSlot {
    pub(super) guest: Arc<Guest>,
    guests: Arc<Mutex<Vec<Arc<Guest>>>>,
}

impl ConnectionSlots {
    pub(super) fn new(all: usize) -> Self {
        Self { guests: Arc::default(), all }
    }

    /// The place of a new connection. One that has to make room for it is asked to go.
    pub(super) fn take(&self, address: IpAddr) -> ConnectionSlot {
        let address = address.to_canonical();
        let mut guests = lock(&self.guests);
        if let Some(crowded) = self.crowded(&guests, address) {
            let of_it = || guests.iter().enumerate().filter(|(_, guest)| guest.address == crowded);
            let stranger = of_it().find(|(_, guest)| !guest.is_known()).or_else(|| of_it().next());
            if let Some(at) = stranger.map(|(at, _)| at) {
                guests.remove(at).go();
            }
        }
        let (is_known, has_to_go) = (AtomicBool::new(false), AtomicBool::new(false));
        let guest = Arc::new(Guest { address, is_known, has_to_go, waits: Mutex::default() });
        guests.push(Arc::clone(&guest));
        ConnectionSlot { guest, guests: Arc::clone(&self.guests) }
    }

    /// The address of which a connection has to go, before another one of `address` can come in.
    fn crowded(&self, guests: &[Arc<Guest>], address: IpAddr) -> Option<IpAddr> {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        guests.iter().for_each(|guest| *counts.entry(guest.address).or_default() += 1);
        if counts.get(&address).is_some_and(|own| *own >= self.all / SHARE) {
            return Some(address);
        }
        let most = || counts.iter().max_by_key(|(_, count)| **count).map(|(address, _)| *address);
        if guests.len() >= self.all { most() } else { None }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        lock(&self.guests).retain(|guest| !Arc::ptr_eq(guest, &self.guest));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_to_go(place: &ConnectionSlot) -> bool {
        place.guest.poll_gone(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn one_address_replaces_its_own_connections() {
        let places = ConnectionSlots::new(8);
        let take = |address: &str| places.take(address.parse().unwrap());
        let api_server = take("10.0.0.1");
        let held = ["10.0.0.2", "::ffff:10.0.0.2", "10.0.0.2"].map(take);
        assert_eq!(held.each_ref().map(has_to_go), [true, false, false], "two of eight");
        assert!(!has_to_go(&api_server));
    }

    #[test]
    fn many_addresses_leave_room() {
        let places = ConnectionSlots::new(4);
        let take = |address: &str| places.take(address.parse().unwrap());
        let held = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(take);
        let fifth = take("10.0.0.5");
        assert_eq!(held.iter().filter(|place| has_to_go(place)).count(), 1);
        assert!(!has_to_go(&fifth), "the new one comes in");
        drop((held, fifth));
        assert!(lock(&places.guests).is_empty(), "who is gone is forgotten");
    }

    /// Behind one address with strangers: of a NAT, for example.
    #[test]
    fn strangers_go_before_the_api_server() {
        let places = ConnectionSlots::new(8);
        let take = || places.take("10.0.0.1".parse().unwrap());
        let known = take();
        known.guest.is_known_now();
        let strangers: Vec<ConnectionSlot> = (0..20).map(|_| take()).collect();
        assert!(!has_to_go(&known));
        assert_eq!(strangers.iter().filter(|place| !has_to_go(place)).count(), 1);
    }
}
