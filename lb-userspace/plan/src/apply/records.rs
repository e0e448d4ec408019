//! Plain values to the records in the maps and back.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::{
    abi::{self, Backend, SOURCE_SERVICE_BITS, ServiceKey, SourceKey, V4, V6, VipKey},
    map::Prefix,
};

use crate::plan::{BackendRecord, Frontend};
use lb_model::{Family, Protocol};

/// The address of `N` bytes; `None`: not one of this family.
pub(super) fn address<const N: usize>(octets: &[u8; N]) -> Option<IpAddr> {
    match octets.len() {
        V4 => Some(IpAddr::from(<[u8; V4]>::try_from(octets.as_slice()).ok()?)),
        V6 => Some(IpAddr::from(<[u8; V6]>::try_from(octets.as_slice()).ok()?)),
        _ => None,
    }
}

pub(super) fn backend<const N: usize>(record: &BackendRecord, address: [u8; N]) -> Backend<N> {
    Backend {
        address,
        port: record.address.port(),
        state: record.state,
        flags: record.flags,
        generation: record.generation,
        service: record.service,
        deadline_ds: record.deadline_ds,
        drain_ds: record.drain_ds,
        uid_hash: record.uid_hash,
        weight: record.weight,
        pad: 0,
    }
}

pub(super) fn from_backend<const N: usize>(record: &Backend<N>) -> Option<BackendRecord> {
    Some(BackendRecord {
        address: SocketAddr::new(address(&record.address)?, record.port),
        state: record.state,
        flags: record.flags,
        generation: record.generation,
        service: record.service,
        deadline_ds: record.deadline_ds,
        drain_ds: record.drain_ds,
        uid_hash: record.uid_hash,
        weight: record.weight,
    })
}

/// `None`: no frontend of ours has such a key.
pub(super) fn frontend<const N: usize>(key: &ServiceKey<N>) -> Option<Frontend> {
    let protocol = Protocol::from_number(key.protocol).filter(|_| key.pad == 0)?;
    Some(Frontend { address: address(&key.address)?, port: key.port, protocol })
}

pub(super) fn source_key<const N: usize>(service: u32, network: IpNet, address: [u8; N]) -> Prefix<SourceKey<N>> {
    Prefix::new(SOURCE_SERVICE_BITS + u32::from(network.prefix_len()), SourceKey { service, address })
}

/// `None`: no source range of ours has such a key.
pub(super) fn source<const N: usize>(key: &Prefix<SourceKey<N>>) -> Option<(u32, IpNet)> {
    let data = key.data;
    let bits = key.bits.checked_sub(SOURCE_SERVICE_BITS)?;
    let network = IpNet::new(address(&data.address)?, u8::try_from(bits).ok()?).ok()?;
    (network.trunc() == network).then_some((data.service, network))
}

pub(super) fn vip<const N: usize>(key: &VipKey<N>) -> Option<IpAddr> {
    address(&key.address)
}

pub(super) fn no_address(family: Family) -> SocketAddr {
    let unspecified: IpAddr = match family {
        Family::V4 => [0; V4].into(),
        Family::V6 => [0; V6].into(),
    };
    SocketAddr::new(unspecified, 0)
}

/// What the record of an id holds that is not in use.
pub(super) fn free(family: Family, generation: u32) -> BackendRecord {
    BackendRecord {
        address: no_address(family),
        state: abi::backend_state::FREE,
        flags: 0,
        generation,
        service: 0,
        deadline_ds: 0,
        drain_ds: 0,
        uid_hash: 0,
        weight: 0,
    }
}
