//! Limits the number of connections: in total, and from one address. A client that opens as many connections as possible
//! gets at most half, and all others are served as before.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The connections that are left for others while one address has its maximum. Users behind one proxy share an address, so
/// it may have much.
const SHARE: usize = 2;

type Taken = Mutex<BTreeMap<IpAddr, usize>>;

#[derive(Clone)]
pub(super) struct Places {
    room: Arc<Semaphore>,
    of_one: usize,
    taken: Arc<Taken>,
}

/// One connection's; it is free when this goes.
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
    address: IpAddr,
    taken: Arc<Taken>,
}

impl Places {
    pub(super) fn new(room: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(room)), of_one: room / SHARE, taken: Arc::default() }
    }

    /// Waits until there are fewer connections than there may be in all.
    pub(super) async fn room(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.room).acquire_owned().await.ok()
    }

    /// `None` if the address has all that it may have.
    pub(super) fn take(&self, permit: Option<OwnedSemaphorePermit>, address: IpAddr) -> Option<Place> {
        let address = site(address);
        let mut taken = lock(&self.taken);
        let count = taken.entry(address).or_default();
        if *count >= self.of_one {
            return None;
        }
        *count += 1;
        Some(Place { _permit: permit, address, taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

fn lock(taken: &Taken) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One site has all addresses of a network of IPv6 (64 bits).
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_half_to_the_others() {
        let places = Places::new(4);
        let take = |address: &str| places.take(None, address.parse().unwrap());
        let held = [take("10.0.0.1"), take("::ffff:10.0.0.1")];
        assert!(held.iter().all(Option::is_some));
        assert!(take("10.0.0.1").is_none());
        let others = [take("10.0.0.2"), take("2001:db8::1"), take("2001:db8::2:1")];
        assert!(others.iter().all(Option::is_some));
        assert!(take("2001:db8::ffff:0:0:3").is_none(), "the same network");
        drop(held);
        assert!(take("10.0.0.1").is_some(), "it has ended its connections");
        drop(others);
        assert!(lock(&places.taken).is_empty(), "who is gone is forgotten");
    }
}
