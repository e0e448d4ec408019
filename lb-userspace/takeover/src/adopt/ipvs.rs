//! Connections that kube-proxy made in its IPVS mode: NAT takes them over from IPVS.
//!
//! IPVS translates these connections, and conntrack follows them (kube-proxy sets `net.ipv4.vs.conntrack`): the reply tuple of their entry has the
//! backend, but no bit of the status says NAT. Each entry is replaced by one with the same two tuples and NAT. The connection is adopted
//! then as those of kube-proxy's other modes are. Its virtual service must stay until it ends: conntrack forgets it when IPVS does.
//!
//! Until programs and services are there, IPVS goes on: programs leave the connections to it under entries of adopted ones.
//! Programs hold the packets of a connection while its entry is replaced. A packet between removal and insertion could get another source port by
//! masquerade. Packets of the host's own processes meet no program before netfilter, so the kernel does both steps at one request.

use std::path::Path;
use std::time::Duration;

use super::{AdoptError, Adopter, Room};
use crate::conntrack::{Entry, Family, NewEntry, status};
use lb_tables::pause::pause;

/// The kernel has this file while IPVS is loaded.
const CONNECTIONS: &str = "/proc/thread-self/net/ip_vs_conn";
/// Connections that are held together.
const TOGETHER: usize = 64;
/// After this, no CPU works on a packet any more that found its entry unheld.
const IN_FLIGHT: Duration = Duration::from_millis(2);
/// A packet that was on its way may bring the old entry back: how often it is replaced.
const ATTEMPTS: usize = 4;
/// The least that conntrack keeps a connection without a packet.
const LEAST_TIMEOUT: Duration = Duration::from_secs(30);

impl Adopter {
    /// Gives the connections of IPVS to NAT, and adopts them. The programs must be attached.
    pub fn adopt_ipvs(&mut self, now_s: u32) -> Result<(), AdoptError> {
        let found = self.list_ipvs()?;
        if found.is_empty() {
            return Ok(());
        }
        self.keep_nat_for(true);
        let mut lost = 0;
        for together in found.chunks(TOGETHER) {
            lost += self.take_over(together, now_s)?;
        }
        if lost > 0 {
            tracing::warn!(connections = lost, "IPVS connections are refused: others have their tuples in conntrack");
        }
        Ok(())
    }

    /// Connections of IPVS that were answered.
    pub(super) fn list_ipvs(&mut self) -> Result<Vec<Entry>, AdoptError> {
        let mut found = Vec::new();
        if !Path::new(CONNECTIONS).exists() {
            return Ok(found);
        }
        for family in Family::ALL {
            found.extend(self.conntrack.list(family, status::SEEN_REPLY)?);
        }
        found.retain(|entry| entry.is_of_ipvs() && !entry.is_over());
        Ok(found)
    }

    /// Returns how many could not be given.
    fn take_over(&mut self, connections: &[Entry], now_s: u32) -> Result<usize, AdoptError> {
        let mut lost = 0;
        let mut held = Vec::new();
        for entry in connections {
            match self.tables.hold(entry, now_s)? {
                Room::Written => held.push(entry),
                Room::Taken => {}
                Room::Full => self.without_room += 1,
            }
        }
        pause(IN_FLIGHT);
        let mut failed = None;
        // None stays held, whatever becomes of another.
        for entry in held {
            let replaced = self.replace(entry);
            if let Ok(true) = replaced {
                self.tables.release(&entry.original, &entry.reply)?;
                self.adopted.insert(entry.original, super::adopted(entry.reply));
            } else {
                self.tables.remove(&entry.original, &entry.reply)?;
                self.adopted.remove(&entry.original);
                lost += 1;
            }
            failed = failed.or(replaced.err());
        }
        failed.map_or(Ok(lost), Err)
    }

    /// `false`: another connection has one of its tuples.
    fn replace(&mut self, entry: &Entry) -> Result<bool, AdoptError> {
        let new = with_nat(entry);
        for _ in 0..ATTEMPTS {
            // The kernel would choose another source port if the reply tuple were taken.
            if self.conntrack.replace(&new)?
                && self.conntrack.get(&new.original)?.is_some_and(|found| found.reply == entry.reply)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The connection as NAT is to know it.
fn with_nat(entry: &Entry) -> NewEntry {
    let source = entry.reply.dst;
    NewEntry {
        original: entry.original,
        backend: entry.reply.src,
        source: (source != entry.original.src).then_some(source),
        is_answered: true,
        timeout: entry.timeout.max(LEAST_TIMEOUT),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::TCP;

    use super::*;
    use crate::conntrack::{Tuple, tcp_state};

    fn entry(reply_to: &str, bits: u32) -> Entry {
        let tuple = |src: &str, dst: &str| Tuple {
            src: src.parse().expect("an address"),
            dst: dst.parse().expect("an address"),
            protocol: TCP,
        };
        Entry {
            original: tuple("10.1.0.7:40000", "10.96.0.1:80"),
            reply: tuple("10.1.1.9:8080", reply_to),
            status: status::CONFIRMED | status::SEEN_REPLY | bits,
            state: Some(tcp_state::ESTABLISHED),
            timeout: Duration::from_hours(1),
        }
    }

    #[test]
    fn a_connection_of_ipvs_has_a_changed_reply_tuple_and_no_destination_nat() {
        let of_ipvs = entry("10.1.0.7:40000", 0);
        assert!(of_ipvs.is_of_ipvs() && !of_ipvs.is_translated());
        assert!(entry("192.0.2.1:61000", status::SRC_NAT).is_of_ipvs(), "masqueraded");
        let of_nat = entry("10.1.0.7:40000", status::DST_NAT);
        assert!(!of_nat.is_of_ipvs() && of_nat.is_translated());
        let plain = Entry { reply: of_ipvs.original.reversed(), ..of_ipvs };
        assert!(!plain.is_of_ipvs());
        let masqueraded =
            Entry { reply: Tuple { dst: "192.0.2.1:61000".parse().expect("an address"), ..plain.reply }, ..plain };
        assert!(!masqueraded.is_of_ipvs(), "no service");
    }

    #[test]
    fn nat_keeps_both_tuples_and_the_time_that_is_left() {
        let new = with_nat(&entry("10.1.0.7:40000", 0));
        assert_eq!((new.backend.to_string(), new.source), ("10.1.1.9:8080".to_owned(), None));
        assert_eq!(new.timeout, Duration::from_hours(1));
        let new = with_nat(&Entry { timeout: Duration::ZERO, ..entry("192.0.2.1:61000", status::SRC_NAT) });
        assert_eq!((new.source, new.timeout), (Some("192.0.2.1:61000".parse().expect("an address")), LEAST_TIMEOUT));
    }
}
