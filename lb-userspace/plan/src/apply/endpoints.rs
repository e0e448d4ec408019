//! How other nodes name a backend of this one: by its address and the service port, which may be those of two for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use lb_common::{abi, map};

use super::{
    StoreError,
    elements::{Elements, Results, failed},
    records,
};
use crate::plan::{BackendId, BackendRecord, Loaded, Named, named};
use lb_model::Family;
use lb_tables::Pinned;

/// An agent that was killed may have written a backend and not its name. It is taken for a backend of another node, so that the plan
/// writes both again.
pub(super) fn distrust_unnamed(loaded: &mut Loaded) {
    let names: BTreeMap<(IpAddr, u32), abi::Endpoint> = loaded.endpoints.iter().copied().collect();
    // Several ports of an address have one name, and any of them will do.
    let all = loaded.backends.iter().filter_map(|(id, record)| named(*id, record)).filter(|named| !named.yields);
    let leads = all.filter(|named| names.get(&named.key) == Some(&named.endpoint));
    let good: BTreeSet<(IpAddr, u32)> = leads.map(|named| named.key).collect();
    for (id, record) in &mut loaded.backends {
        if named(*id, record).is_some_and(|named| !named.yields && !good.contains(&named.key)) {
            record.flags &= !abi::backend_flags::LOCAL;
        }
    }
}

/// Names to be written, each with the operation that it is of.
#[derive(Default)]
pub(super) struct Endpoints {
    v4: Elements<abi::EndpointKey<4>, abi::Endpoint>,
    v6: Elements<abi::EndpointKey<16>, abi::Endpoint>,
    yielding: Vec<(usize, Named)>,
}

impl Endpoints {
    pub fn push(&mut self, op: usize, id: BackendId, record: &BackendRecord) {
        let Some(named) = named(id, record) else { return };
        match named.key {
            _ if named.yields => self.yielding.push((op, named)),
            (IpAddr::V4(v4), service) => {
                self.v4.push(op, abi::EndpointKey { address: v4.octets(), service }, named.endpoint);
            }
            (IpAddr::V6(v6), service) => {
                self.v6.push(op, abi::EndpointKey { address: v6.octets(), service }, named.endpoint);
            }
        }
    }

    /// After the backends.
    pub fn write(&self, maps: &Pinned, results: &mut Results) {
        self.v4.write(&maps.of::<map::Endpoints<4>>(), results);
        self.v6.write(&maps.of::<map::Endpoints<16>>(), results);
        for (op, named) in &self.yielding {
            let (service, endpoint) = (named.key.1, named.endpoint);
            let written = match named.key.0 {
                IpAddr::V4(v4) => give_way(maps, &abi::EndpointKey { address: v4.octets(), service }, endpoint),
                IpAddr::V6(v6) => give_way(maps, &abi::EndpointKey { address: v6.octets(), service }, endpoint),
            };
            if let Err(error) = written {
                results[*op] = Err(error);
            }
        }
    }
}

/// Writes the name of one that yields, unless another keeps it.
fn give_way<const N: usize>(
    maps: &Pinned,
    key: &abi::EndpointKey<N>,
    endpoint: abi::Endpoint,
) -> Result<(), StoreError> {
    let endpoints = maps.of::<map::Endpoints<N>>();
    let failed = |error: io::Error| failed(endpoints.name(), "writing", &error);
    if let Some(entry) = endpoints.get(key).map_err(failed)? {
        let family = if N == abi::V4 { Family::V4 } else { Family::V6 };
        let other = maps
            .of::<map::Backends<N>>()
            .get(&entry.backend)
            .map_err(failed)?
            .and_then(|record| records::from_backend(&record));
        let id = BackendId { family, id: entry.backend };
        let named = other.and_then(|record| named(id, &record));
        let Some(address) = records::address(&key.address) else { return Ok(()) };
        if entry == endpoint || named.is_some_and(|named| named.keeps((address, key.service), entry)) {
            return Ok(());
        }
    }
    endpoints.put(key, &endpoint).map_err(failed)
}

/// Takes out what leads another node's choice to an id that is given up. What stays leads nowhere: its generation is over.
pub(super) fn forget(maps: &Pinned, id: BackendId) {
    let _ = match id.family {
        Family::V4 => forget_of::<4>(maps, id.id),
        Family::V6 => forget_of::<16>(maps, id.id),
    };
}

fn forget_of<const N: usize>(maps: &Pinned, id: u32) -> io::Result<()> {
    let endpoints = maps.of::<map::Endpoints<N>>();
    // A backend that is no longer one of this node has been one, and its entry takes room.
    let Some(backend) = maps.of::<map::Backends<N>>().get(&id)? else { return Ok(()) };
    let key = abi::EndpointKey { address: backend.address, service: backend.service };
    if endpoints.get(&key)?.is_some_and(|endpoint| endpoint.backend == id) {
        endpoints.remove(&key)?;
    }
    Ok(())
}
