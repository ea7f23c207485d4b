//! Limits the number of connections. A connection that has not shown a key yet is a *stranger*. Strangers leave a part of all
//! places to the others, and the strangers of one network leave half of all places to other networks. A new one takes the place
//! of the oldest stranger of its network, or of the network with the most: a client that opens as many connections as possible
//! closes its own, and everybody else is served as before.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The part of all places that the strangers of one network may have is one of this many. Users behind one proxy share an
/// address, so it may have much.
const SHARE: usize = 2;
/// One of this many places is for connections that have shown a key.
const RESERVE: usize = 4;

/// Of each network its strangers, the oldest first.
type Strangers = Mutex<BTreeMap<IpAddr, VecDeque<Arc<Standing>>>>;

#[derive(Clone)]
pub(super) struct ConnectionSlots {
    room: Arc<Semaphore>,
    of_one: usize,
    of_strangers: usize,
    strangers: Arc<Strangers>,
}

/// The server's knowledge about a connection.
#[derive(Debug, Default)]
pub(crate) struct Standing {
    is_known: AtomicBool,
    has_to_go: AtomicBool,
    waits: Mutex<Option<Waker>>,
}

impl Standing {
    /// The connection has shown a key.
    pub(crate) fn has_shown_a_key(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_known(&self) -> bool {
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
    _permit: Option<OwnedSemaphorePermit>,
    network: IpAddr,
    standing: Arc<Standing>,
    strangers: Arc<Strangers>,
}

impl ConnectionSlot {
    pub(super) fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }
}

impl ConnectionSlots {
    pub(super) fn new(room: usize) -> Self {
        Self {
            room: Arc::new(Semaphore::new(room)),
            of_one: room / SHARE,
            of_strangers: room - room / RESERVE,
            strangers: Arc::default(),
        }
    }

    /// Waits until there are fewer connections than there may be in all.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    /// The place of a new connection. A stranger that has to make room for it is marked to close.
    pub(super) fn take(&self, permit: Option<OwnedSemaphorePermit>, address: IpAddr) -> ConnectionSlot {
        let (network, standing) = (network_of(address), Arc::<Standing>::default());
        let mut strangers = lock(&self.strangers);
        for of_one in strangers.values_mut() {
            of_one.retain(|stranger| !stranger.is_known());
        }
        strangers.retain(|_, of_one| !of_one.is_empty());
        let own = strangers.get(&network).map_or(0, VecDeque::len);
        let crowded = if own >= self.of_one {
            Some(network)
        } else if strangers.values().map(VecDeque::len).sum::<usize>() >= self.of_strangers {
            strangers.iter().max_by_key(|(_, of_one)| of_one.len()).map(|(network, _)| *network)
        } else {
            None
        };
        if let Some(oldest) = crowded.and_then(|network| strangers.get_mut(&network)?.pop_front()) {
            oldest.go();
        }
        strangers.entry(network).or_default().push_back(Arc::clone(&standing));
        ConnectionSlot { _permit: permit, network, standing, strangers: Arc::clone(&self.strangers) }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut strangers = lock(&self.strangers);
        if let Some(of_one) = strangers.get_mut(&self.network) {
            of_one.retain(|stranger| !Arc::ptr_eq(stranger, &self.standing));
            if of_one.is_empty() {
                strangers.remove(&self.network);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has one address often has its whole network: 24 bits of IPv4, 64 of IPv6.
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() >> 8 << 8)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_to_go(place: &ConnectionSlot) -> bool {
        place.standing.poll_gone(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn one_network_has_half_and_its_new_ones_replace_its_old_ones() {
        let places = ConnectionSlots::new(8);
        let take = |address: &str| places.take(None, address.parse().unwrap());
        let held = ["10.0.0.1", "::ffff:10.0.0.2", "10.0.0.255", "10.0.0.1"].map(take);
        assert!(!held.iter().any(has_to_go));
        let fifth = take("10.0.0.9");
        assert_eq!(held.each_ref().map(has_to_go), [true, false, false, false]);
        // Other networks: six of eight places are for strangers, and the network that has the most makes room.
        let others = ["10.0.1.1", "2001:db8::1", "2001:db8::2:1"].map(take);
        assert!(!others.iter().any(has_to_go) && !has_to_go(&fifth));
        assert_eq!(held.each_ref().map(has_to_go), [true, true, false, false]);
        drop((held, fifth, others));
        assert!(lock(&places.strangers).is_empty(), "closed connections are forgotten");
    }

    #[test]
    fn who_has_shown_a_key_stays() {
        let places = ConnectionSlots::new(4);
        let take = || places.take(None, "10.0.0.1".parse().unwrap());
        let known = [take(), take()];
        known.iter().for_each(|place| place.standing.has_shown_a_key());
        let strangers: Vec<ConnectionSlot> = (0..10).map(|_| take()).collect();
        assert!(!known.iter().any(has_to_go));
        assert_eq!(strangers.iter().filter(|place| !has_to_go(place)).count(), 2);
        // The negative control: without a key they would have been the first to go.
        assert!(has_to_go(&strangers[0]));
    }
}
