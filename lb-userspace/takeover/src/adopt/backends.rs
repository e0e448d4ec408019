//! Whether the backend of an adopted UDP connection still is one of its service: by the tables that the agent writes.
//!
//! UDP has no connection that would break. A client that sends on from one port would keep conntrack at a backend that is gone.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use lb_common::abi::{ServiceKey, V4, V6};
use lb_common::map;

use super::entries::octets;
use crate::conntrack::Tuple;
use lb_tables::{MapError, MapSet};

/// The tables of services.
pub(super) struct Backends(MapSet);

/// What one look at the tables has found: the backends of each frontend that was asked for; `None`: there is no such frontend, or it is
/// being written.
#[derive(Default)]
pub(super) struct LookupCache(HashMap<(SocketAddr, u8), Option<BTreeSet<SocketAddr>>>);

impl Backends {
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        MapSet::open_read_only(dir).map(Self)
    }

    /// Whether the connection came by a frontend of Ballast that no longer has its backend. What is no frontend of Ballast is another's.
    pub fn has_lost(&self, look: &mut LookupCache, original: &Tuple, backend: SocketAddr) -> io::Result<bool> {
        let frontend = (original.dst, original.protocol);
        let backends = match look.0.entry(frontend) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(match original.dst.ip() {
                IpAddr::V4(_) => self.of::<V4>(original)?,
                IpAddr::V6(_) => self.of::<V6>(original)?,
            }),
        };
        Ok(backends.as_ref().is_some_and(|backends| !backends.contains(&backend)))
    }

    /// The backends that the frontend sends new connections to, of clients inside and outside.
    fn of<const N: usize>(&self, original: &Tuple) -> io::Result<Option<BTreeSet<SocketAddr>>>
    where
        IpAddr: From<[u8; N]>,
    {
        let (slots_of, backends) = (self.0.of::<map::Slots>(), self.0.of::<map::Backends<N>>());
        let Some(address) = octets(original.dst.ip()) else { return Ok(None) };
        let key = ServiceKey { address, port: original.dst.port(), protocol: original.protocol, pad: 0 };
        let Some(service) = self.0.of::<map::Services<N>>().get(&key)? else { return Ok(None) };
        let mut slots = BTreeSet::new();
        for (base, count) in [(service.slot_base, service.slot_count), (service.external_base, service.external_count)]
        {
            for slot in slots_of.read_range(base, count)? {
                // Written anew at this moment: the next look finds it whole.
                if (slot.service, slot.generation) != (service.id, service.generation) {
                    return Ok(None);
                }
                slots.insert((slot.backend, slot.backend_generation));
            }
        }
        let mut found = BTreeSet::new();
        for (id, generation) in slots {
            let Some(backend) = backends.get(&id)?.filter(|backend| backend.generation == generation) else {
                return Ok(None);
            };
            found.insert(SocketAddr::new(backend.address.into(), backend.port));
        }
        Ok(Some(found))
    }
}
