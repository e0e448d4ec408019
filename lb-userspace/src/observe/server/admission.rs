//! Which connections a server keeps open: few in all, few of one source, and never one that waits in place of one that asks.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// One source may have this part of the connections.
const SHARES: usize = 4;

/// The open connections of one server, or of several that share a bound.
#[derive(Clone, Debug)]
pub struct Admission(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    open: Mutex<Vec<Entry>>,
}

/// In the order in which they came.
#[derive(Debug)]
struct Entry {
    source: IpAddr,
    /// The whole header of its request has been read.
    asked: Arc<AtomicBool>,
    close: CancellationToken,
}

/// A connection's place; dropped with it.
#[derive(Debug)]
pub struct Permit {
    admission: Admission,
    asked: Arc<AtomicBool>,
    close: CancellationToken,
}

impl Admission {
    /// `most`: connections at a time, at least 4.
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Inner { most: most.max(SHARES), open: Mutex::default() }))
    }

    /// Admits a connection of `peer`. Where there is no room, another one is closed: of the same source if that has its share, else
    /// of all; the oldest one that has not sent its header, else the oldest one.
    pub fn admit(&self, peer: IpAddr) -> Permit {
        let source = source(peer);
        let (asked, close) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let mut open = self.open();
        let of_source = open.iter().filter(|entry| entry.source == source).count();
        if of_source >= self.0.most / SHARES {
            close_one(&mut open, |entry| entry.source == source);
        } else if open.len() >= self.0.most {
            close_one(&mut open, |_| true);
        }
        open.push(Entry { source, asked: asked.clone(), close: close.clone() });
        drop(open);
        Permit { admission: self.clone(), asked, close }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.open().len()
    }
}

fn close_one(open: &mut Vec<Entry>, may: impl Fn(&Entry) -> bool) {
    let candidates = open.iter().enumerate().filter(|(_, entry)| may(entry));
    let chosen = candidates.min_by_key(|(index, entry)| (entry.asked.load(Ordering::Relaxed), *index));
    if let Some((index, _)) = chosen {
        open.remove(index).close.cancel();
    }
}

/// An IPv4 address, or the /64 of an IPv6 address: one host has a whole one.
fn source(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        other @ (IpAddr::V4(_) | IpAddr::V6(_)) => other,
    }
}

impl Permit {
    /// The header was read: the connection is worth more than one that waits.
    pub fn asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Ready when the connection must make room.
    pub async fn closed(&self) {
        self.close.cancelled().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.open().retain(|entry| !Arc::ptr_eq(&entry.asked, &self.asked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn is_closed(permit: &Permit) -> bool {
        permit.close.is_cancelled()
    }

    #[test]
    fn a_source_at_its_share_closes_its_own_oldest_that_waits() {
        let admission = Admission::new(8);
        let greedy = address("192.0.2.1");
        let first = admission.admit(greedy);
        let second = admission.admit(greedy);
        first.asked();
        let other = admission.admit(address("192.0.2.2"));
        let third = admission.admit(greedy);
        assert_eq!([&first, &second, &third, &other].map(is_closed), [false, true, false, false]);
        assert_eq!(admission.count(), 3);
        drop((first, second, third, other));
        assert_eq!(admission.count(), 0, "a place is given back once");
    }

    #[test]
    fn many_sources_together_close_the_oldest_that_waits() {
        let admission = Admission::new(8);
        let permits: Vec<Permit> = (1..=8).map(|last| admission.admit(IpAddr::from([192, 0, 2, last]))).collect();
        permits[0].asked();
        let probe = admission.admit(address("198.51.100.1"));
        let closed: Vec<bool> = permits.iter().map(is_closed).collect();
        assert_eq!(closed, [false, true, false, false, false, false, false, false]);
        assert!(!is_closed(&probe));
        permits.iter().for_each(Permit::asked);
        probe.asked();
        admission.admit(address("198.51.100.2"));
        assert!(is_closed(&permits[0]), "all have asked: the oldest one goes");
        assert_eq!(admission.count(), 7);
    }

    #[test]
    fn a_source_is_an_ipv4_address_or_a_slash_64() {
        assert_eq!(source(address("::ffff:192.0.2.1")), address("192.0.2.1"));
        assert_eq!(source(address("2001:db8:0:1::2")), source(address("2001:db8:0:1:ffff::3")));
        assert_ne!(source(address("2001:db8:0:1::2")), source(address("2001:db8:0:2::2")));
        assert_eq!(source(address("::1")), address("::1"));
    }
}
