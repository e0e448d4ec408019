//! Adopts the connections of another proxy: those that the host's NAT translated before this node's first start.
//!
//! Each gets two entries in the flow tables, one for each direction, in state `ADOPTED`. Programs leave their packets to the host's NAT. No
//! connection of Ballast gets their tuples. The first start goes in this order:
//!
//! 1. List the translated connections of conntrack, and write their entries. No program is attached yet.
//! 2. Attach the programs. Unknown segments pass while the adoption window is open.
//! 3. Program the services, so that the other proxy gets no new connection. List the connections again, and write those that are new. Give the
//!    connections of IPVS to NAT ([`ipvs`]).
//! 4. Close the window: unknown segments are refused from here on.
//!
//! From then on entries are removed once conntrack has forgotten their connection. An nftables table keeps NAT at work until the last one
//! has ended ([`nat_hooks`]).

mod backends;
mod entries;
mod ipvs;
mod tables;

use std::collections::HashMap;
use std::io;
use std::path::Path;

use lb_common::abi::UDP;

use crate::conntrack::{Conntrack, ConntrackError, Entry, Family, Tuple, nat_hooks, status};
use lb_tables::MapError;

use backends::{Backends, LookupCache};
pub use tables::{AdoptionTables, Room};

/// Why connections could not be adopted, or not be followed.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("flow tables: {0}")]
    Tables(#[from] io::Error),
}

/// A connection with entries in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Adopted {
    reply: Tuple,
    /// Conntrack would take a SYN on its tuple for a new connection, and the entry says so.
    is_over: bool,
}

/// Adopts connections and follows them to their end.
pub struct Adopter {
    tables: AdoptionTables,
    backends: Backends,
    conntrack: Conntrack,
    /// By original tuple.
    adopted: HashMap<Tuple, Adopted>,
    /// How many had no room in the tables.
    without_room: usize,
    /// Why NAT may end with the other proxy's rules; `None`: it does not.
    nat_problem: Option<String>,
}

impl Adopter {
    /// Over the maps pinned in `dir`, in the network namespace of the calling thread.
    pub fn open(dir: &Path) -> Result<Self, AdoptError> {
        let (tables, backends, conntrack) = (AdoptionTables::open(dir)?, Backends::open(dir)?, Conntrack::open()?);
        Ok(Self { tables, backends, conntrack, adopted: HashMap::new(), without_room: 0, nat_problem: None })
    }

    /// The second of `CLOCK_MONOTONIC` at which the adoption window ends; 0: it is closed.
    pub fn window_until_s(&self) -> u32 {
        self.tables.window_until_s()
    }

    /// Unknown segments are refused from here on.
    pub fn close_window(&mut self) -> Result<(), AdoptError> {
        Ok(self.tables.close_window()?)
    }

    /// How many connections are adopted.
    pub fn count(&self) -> usize {
        self.adopted.len()
    }

    /// What an operator should know.
    pub fn problem(&self) -> Option<String> {
        let without_room = (self.without_room > 0).then(|| {
            format!(
                "{} connections of another proxy have no room in the flow tables: they are refused",
                self.without_room
            )
        });
        self.nat_problem.clone().or(without_room)
    }

    /// Takes up what an agent before this one has adopted.
    pub fn restore(&mut self) -> Result<(), AdoptError> {
        self.adopted = self.tables.read()?.into_iter().map(|(original, reply)| (original, adopted(reply))).collect();
        Ok(())
    }

    /// Adopts all translated connections that have no entries yet; returns how many.
    pub fn adopt(&mut self, now_s: u32) -> Result<usize, AdoptError> {
        self.keep_nat_for(!self.adopted.is_empty());
        let before = self.adopted.len();
        self.without_room = 0;
        let (of_nat, of_ipvs) = (self.list()?, self.list_ipvs()?);
        for entry in of_nat.into_iter().chain(of_ipvs) {
            if !self.adopted.contains_key(&entry.original) {
                self.write(&entry, now_s)?;
            }
        }
        self.keep_nat_for(!self.adopted.is_empty());
        Ok(self.adopted.len() - before)
    }

    /// Compares with conntrack, and removes the entries of connections that it has forgotten. With `is_synced` the tables hold the services as the
    /// source has them: then UDP connections end whose backend is none of their service any more.
    pub fn follow(&mut self, now_s: u32, is_synced: bool) -> Result<(), AdoptError> {
        if is_synced {
            self.release_udp()?;
        }
        let listed: HashMap<Tuple, Entry> = self.list()?.into_iter().map(|entry| (entry.original, entry)).collect();
        let known: Vec<(Tuple, Adopted)> =
            self.adopted.iter().map(|(original, adopted)| (*original, *adopted)).collect();
        for (original, adopted) in known {
            // A list may lack a connection that is there: nothing is removed without having been asked for by itself.
            let entry = match listed.get(&original) {
                Some(entry) => Some(*entry),
                None => {
                    self.conntrack.get(&original)?.filter(|entry| entry.original == original && entry.is_translated())
                }
            };
            match entry {
                Some(entry) if entry.reply == adopted.reply => self.mark(&entry, adopted)?,
                // The other proxy has given the tuple to another connection.
                Some(entry) => {
                    self.forget(&original, adopted)?;
                    self.write(&entry, now_s)?;
                }
                None => self.forget(&original, adopted)?,
            }
        }
        self.keep_nat_for(!self.adopted.is_empty());
        Ok(())
    }

    /// Ends UDP connections whose backend has left their service, in conntrack as well: their next datagram goes to another backend.
    fn release_udp(&mut self) -> Result<(), AdoptError> {
        let of_udp = |(original, _): &(&Tuple, &Adopted)| original.protocol == UDP;
        let known: Vec<_> =
            self.adopted.iter().filter(of_udp).map(|(original, adopted)| (*original, *adopted)).collect();
        let mut look = LookupCache::default();
        for (original, adopted) in known {
            if self.backends.has_lost(&mut look, &original, adopted.reply.src)? {
                self.forget(&original, adopted)?;
                // It may be another connection's by now, which is as good as this one.
                self.conntrack.delete(&original)?;
            }
        }
        Ok(())
    }

    /// All are over: NAT is not needed any more.
    pub fn finish(&mut self) {
        if let Err(error) = nat_hooks::release() {
            tracing::warn!("nftables table {} stays: {error}", nat_hooks::TABLE);
        }
    }

    fn list(&mut self) -> Result<Vec<Entry>, AdoptError> {
        let mut entries = Vec::new();
        for family in Family::ALL {
            entries.extend(self.conntrack.list(family, status::DST_NAT)?);
        }
        entries.retain(Entry::is_translated);
        Ok(entries)
    }

    fn write(&mut self, entry: &Entry, now_s: u32) -> Result<(), AdoptError> {
        match self.tables.write(entry, now_s)? {
            Room::Written => {
                self.adopted.insert(entry.original, Adopted { reply: entry.reply, is_over: entry.is_over() });
            }
            Room::Taken => {}
            Room::Full => self.without_room += 1,
        }
        Ok(())
    }

    /// Notes in the tables that a connection has ended, of which conntrack remembers the end still.
    fn mark(&mut self, entry: &Entry, known: Adopted) -> Result<(), AdoptError> {
        if entry.is_over() && !known.is_over {
            self.tables.mark_over(&entry.original)?;
            self.adopted.insert(entry.original, Adopted { is_over: true, ..known });
        }
        Ok(())
    }

    fn forget(&mut self, original: &Tuple, known: Adopted) -> Result<(), AdoptError> {
        self.tables.remove(original, &known.reply)?;
        self.adopted.remove(original);
        Ok(())
    }

    fn keep_nat_for(&mut self, has_connections: bool) {
        if !has_connections {
            return;
        }
        self.nat_problem = nat_hooks::keep().err().map(|error| {
            format!(
                "adopted connections end when the rules of the other proxy are removed: nftables table {}: {error}",
                nat_hooks::TABLE
            )
        });
    }
}

const fn adopted(reply: Tuple) -> Adopted {
    Adopted { reply, is_over: false }
}
