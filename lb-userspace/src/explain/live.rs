//! The pinned maps, opened for reading alone.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aya::Pod;
use aya::maps::lpm_trie::Key;
use lb_common::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Config, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health,
    Link, LoadSettings, Masquerade, Network, NetworkKey, SOURCE_SERVICE_BITS, Service, ServiceKey, ServiceName, Slot,
    Source, SourceKey, UDP, V4, V6, Vip, VipKey, map_name,
};
use lb_common::limits::ROUND_ROBIN;
use lb_common::service_cidrs::{self, Cover};
use lb_common::state::{SourcePorts, Timeouts};

use super::stored::{Settings, Stored};
use lb_netlink::route;
use lb_tables::{MapError, Table, VipFilterReader};

/// Tables of one family, and those of both. `Option`: maps that the programs own, or that older tables lack.
pub struct Live<const N: usize>
where
    AffinityKey<N>: Pod,
    Backend<N>: Pod,
    EndpointKey<N>: Pod,
    Flow<N>: Pod,
    FlowKey<N>: Pod,
    HalfOpen<N>: Pod,
    Masquerade<N>: Pod,
    NetworkKey<N>: Pod,
    ServiceKey<N>: Pod,
    SourceKey<N>: Pod,
    VipKey<N>: Pod,
{
    services: Table<ServiceKey<N>, Service>,
    slots: Table<u32, Slot>,
    backends: Table<u32, Backend<N>>,
    flows: Table<FlowKey<N>, Flow<N>>,
    udp_flows: Table<FlowKey<N>, Flow<N>>,
    half_open: Table<FlowKey<N>, HalfOpen<N>>,
    health: Table<u32, Health>,
    sources: Table<Key<SourceKey<N>>, Source>,
    networks: Table<Key<NetworkKey<N>>, Network>,
    vips: Table<VipKey<N>, Vip>,
    affinity: Table<AffinityKey<N>, Affinity>,
    endpoints: Table<EndpointKey<N>, Endpoint>,
    masquerade: Table<u32, Masquerade<N>>,
    names: Table<u32, ServiceName>,
    round_robin: Table<u32, u64>,
    client_shares: Table<u32, u32>,
    service_cidrs: Table<u32, Cover>,
    adoption: Option<Table<u32, u32>>,
    fast_path: Table<u32, u32>,
    links: Table<u32, Link>,
    config: Table<u32, Config>,
    settings: Table<u32, LoadSettings>,
    vip_filter: Option<VipFilterReader>,
    buckets: Option<Table<BucketKey, Bucket>>,
    flood_until: Option<Table<u32, u32>>,
}

/// Which of a map's two names the family has.
const fn of_family<const N: usize>(four: &'static str, six: &'static str) -> &'static str {
    if N == V4 { four } else { six }
}

macro_rules! family {
    ($n:expr, $dir:expr, $four:ident, $six:ident) => {
        Table::open_read_only($dir, of_family::<$n>(map_name::$four, map_name::$six))?
    };
}

impl<const N: usize> Live<N>
where
    AffinityKey<N>: Pod,
    Backend<N>: Pod,
    EndpointKey<N>: Pod,
    Flow<N>: Pod,
    FlowKey<N>: Pod,
    HalfOpen<N>: Pod,
    Masquerade<N>: Pod,
    NetworkKey<N>: Pod,
    ServiceKey<N>: Pod,
    SourceKey<N>: Pod,
    VipKey<N>: Pod,
{
    /// Opens the set of tables in `dir`. `programs`: the folder of the maps that are pinned with the programs.
    pub fn open(dir: &Path, programs: &Path) -> Result<Self, MapError> {
        Ok(Self {
            services: family!(N, dir, SERVICES4, SERVICES6),
            slots: Table::open_read_only(dir, map_name::SLOTS)?,
            backends: family!(N, dir, BACKENDS4, BACKENDS6),
            flows: family!(N, dir, FLOWS4, FLOWS6),
            udp_flows: family!(N, dir, UDP_FLOWS4, UDP_FLOWS6),
            half_open: family!(N, dir, HALF_OPEN4, HALF_OPEN6),
            health: family!(N, dir, HEALTH4, HEALTH6),
            sources: family!(N, dir, SOURCES4, SOURCES6),
            networks: family!(N, dir, NETWORKS4, NETWORKS6),
            vips: family!(N, dir, VIPS4, VIPS6),
            affinity: family!(N, dir, AFFINITY4, AFFINITY6),
            endpoints: family!(N, dir, ENDPOINTS4, ENDPOINTS6),
            masquerade: family!(N, dir, MASQUERADE4, MASQUERADE6),
            names: Table::open_read_only(dir, map_name::NAMES)?,
            round_robin: Table::open_read_only(dir, map_name::ROUND_ROBIN)?,
            client_shares: Table::open_read_only(dir, map_name::CLIENT_SHARES)?,
            service_cidrs: Table::open_read_only(dir, map_name::SERVICE_CIDRS)?,
            adoption: Table::open_read_only(dir, map_name::ADOPTION).ok(),
            fast_path: Table::open_read_only(dir, map_name::FAST_PATH)?,
            links: Table::open_read_only(dir, map_name::LINKS)?,
            config: Table::open_read_only(dir, map_name::CONFIG)?,
            settings: Table::open_read_only(dir, map_name::SETTINGS)?,
            vip_filter: VipFilterReader::open(dir)?,
            buckets: of_programs(programs, map_name::BUCKETS),
            flood_until: of_programs(programs, map_name::FLOOD_UNTIL),
        })
    }

    /// What the programs were loaded with, as far as the tables show. SNAT ports: the default range, unless they are known otherwise.
    pub fn settings(&self, now_ns: u64, ports: SourcePorts) -> Settings {
        let noted = first(&self.settings).unwrap_or_default();
        Settings {
            now_ns,
            // Any number: what it decides over is shown as chance.
            seed: 1,
            link: 0,
            timeouts: Timeouts::noted(&noted),
            ports,
            client_key: noted.client_key,
            flow_room: self.flows.capacity() / 2,
        }
    }

    /// When, by whom, and in which layout the tables were written.
    pub fn config(&self) -> Option<Config> {
        first(&self.config)
    }
}

/// The one element of a map.
fn first<V: Pod>(table: &Table<u32, V>) -> Option<V> {
    table.get(&0).ok().flatten()
}

/// A map that is pinned with the programs, under its name and their digest. `None`: there is none, or two starts have left one each.
fn of_programs<K: Pod, V: Pod>(folder: &Path, name: &'static str) -> Option<Table<K, V>> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let found = path.file_name().and_then(|found| found.to_str());
        found.is_some_and(|found| found.split_once('-').map_or(found, |(map, _)| map) == name)
    };
    let mut found = entries.filter(is_one);
    let path = found.next().filter(|_| found.next().is_none())?;
    Table::open_path_read_only(&path, name).ok()
}

fn ip<const N: usize>(address: &[u8; N]) -> IpAddr {
    let mut v6 = [0; V6];
    v6[..N].copy_from_slice(address);
    if N == V6 { IpAddr::from(v6) } else { IpAddr::from([v6[0], v6[1], v6[2], v6[3]]) }
}

/// The length of a prefix that holds nothing but the address.
const fn bits<const N: usize>() -> u32 {
    if N == V4 { 32 } else { 128 }
}

impl<const N: usize> Stored<N> for Live<N>
where
    AffinityKey<N>: Pod,
    Backend<N>: Pod,
    EndpointKey<N>: Pod,
    Flow<N>: Pod,
    FlowKey<N>: Pod,
    HalfOpen<N>: Pod,
    Masquerade<N>: Pod,
    NetworkKey<N>: Pod,
    ServiceKey<N>: Pod,
    SourceKey<N>: Pod,
    VipKey<N>: Pod,
{
    fn service(&self, key: &ServiceKey<N>) -> Option<Service> {
        self.services.get(key).ok()?
    }

    fn services(&self) -> Vec<(ServiceKey<N>, Service)> {
        self.services.read().unwrap_or_default()
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        self.slots.get(&index).ok()?
    }

    fn backend(&self, id: u32) -> Option<Backend<N>> {
        self.backends.get(&id).ok()?
    }

    fn backends(&self, service: u32) -> Vec<(u32, Backend<N>)> {
        let mut found = self.backends.read().unwrap_or_default();
        found.retain(|(_, backend)| backend.service == service);
        found
    }

    fn flow(&self, key: &FlowKey<N>) -> Option<Flow<N>> {
        let table = if key.protocol == UDP { &self.udp_flows } else { &self.flows };
        table.get(key).ok()?
    }

    fn half_open(&self, key: &FlowKey<N>) -> Option<HalfOpen<N>> {
        self.half_open.get(key).ok()?
    }

    fn admitted(&self, service: u32, address: &[u8; N]) -> bool {
        let key = Key::new(SOURCE_SERVICE_BITS + bits::<N>(), SourceKey { service, address: *address });
        matches!(self.sources.get(&key), Ok(Some(_)))
    }

    fn is_ruled_out(&self, address: &[u8; N]) -> bool {
        self.vip_filter.as_ref().is_some_and(|filter| filter.is_ruled_out(ip(address)))
    }

    fn may_be_in_service_cidr(&self, address: &[u8; N]) -> bool {
        let cover = self.service_cidrs.get(&service_cidrs::index::<N>()).ok().flatten();
        cover.is_some_and(|cover| cover.may_hold(address))
    }

    fn health(&self, backend: u32) -> Option<Health> {
        self.health.get(&backend).ok()?
    }

    fn affinity(&self, key: &AffinityKey<N>) -> Option<Affinity> {
        self.affinity.get(key).ok()?
    }

    fn client_share(&self, counter: u32) -> u32 {
        let count = self.client_shares.get(&counter).ok().flatten().unwrap_or_default();
        // Two processors that take the same connection off leave less than nothing.
        count.cast_signed().max(0).cast_unsigned()
    }

    #[expect(clippy::cast_possible_truncation, reason = "as the programs read it")]
    fn round_robin(&self, service: u32) -> u32 {
        let counter = self.round_robin.get(&(service & (ROUND_ROBIN - 1))).ok().flatten();
        counter.unwrap_or_default() as u32
    }

    fn vip(&self, key: &VipKey<N>) -> Option<Vip> {
        self.vips.get(key).ok()?
    }

    fn network(&self, address: &[u8; N]) -> u32 {
        let key = Key::new(bits::<N>(), NetworkKey { address: *address });
        self.networks.get(&key).ok().flatten().map_or(0, |network| network.flags)
    }

    fn masquerade(&self, backend: &[u8; N], turn: u32) -> Option<[u8; N]> {
        let at = |link: u32| self.masquerade.get(&link).ok().flatten();
        let found = route::link_to(backend).and_then(at).or_else(|| at(0));
        found.map(|addresses| *addresses.address(turn))
    }

    fn endpoint(&self, key: &EndpointKey<N>) -> Option<Endpoint> {
        self.endpoints.get(key).ok()?
    }

    fn bucket(&self, key: &BucketKey) -> Option<Bucket> {
        self.buckets.as_ref()?.get(key).ok()?
    }

    fn flood_until_s(&self) -> u32 {
        self.flood_until.as_ref().and_then(first).unwrap_or_default()
    }

    fn adoption(&self) -> u32 {
        self.adoption.as_ref().and_then(first).unwrap_or_default()
    }

    fn fast_path(&self) -> u32 {
        first(&self.fast_path).unwrap_or_default()
    }

    fn link(&self, index: u32) -> Option<Link> {
        self.links.get(&index).ok()?
    }

    fn name(&self, service: u32) -> Option<ServiceName> {
        self.names.get(&service).ok()?
    }
}
