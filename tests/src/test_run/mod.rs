//! The programs as they stand in the object, loaded into the kernel with fresh small maps, run packet by packet.
//!
//! `BPF_PROG_TEST_RUN` attaches nothing: the kernel hands the bytes to the program and says verdict and bytes afterwards.

mod hook;
mod load;
mod object;
mod per_cpu;
mod pins;
mod sockets;
mod state_tables;
mod tables;

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader};
use lb_common::abi::{Event, Link, StatKey, link_flags, link_role, map_name};
use lb_common::client_shares::COUNTERS;
use lb_common::outcome::Outcome;
use lb_common::service_cidrs::{self, Cover};
use lb_common::state::SourcePorts;
use lb_tables::vip_filter::all_but;
use lb_tables::{ClientShares, VipFilter};

pub use hook::Hook;
pub use load::load_entry;
use load::verified;
pub use object::{object, workspace};
pub use sockets::Whose;
pub use state_tables::StateTables;
pub use tables::FamilyMaps;

/// What a program did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// The program's return value.
    pub verdict: i32,
    /// The packet afterwards.
    pub bytes: Vec<u8>,
}

/// The kernel runs programs here where no link is said.
pub const LOOPBACK: u32 = 0;
/// Room for what a program may add to a packet: an IPv6 and an ICMP header, and then some.
const GROWTH: usize = 256;
/// Sizes of the maps: enough for any table of a test, quick to make.
const SIZES: [(&str, u32); 36] = [
    ("services4", 64),
    ("services6", 64),
    ("slots", 4096),
    ("backends4", 256),
    ("backends6", 256),
    ("flows4", 4096),
    ("flows6", 4096),
    ("udp_flows4", 4096),
    ("udp_flows6", 4096),
    ("sockets4", 64),
    ("sockets6", 64),
    ("names", 64),
    ("sources4", 256),
    ("sources6", 256),
    ("vips4", 16),
    ("vips6", 16),
    ("networks4", 64),
    ("networks6", 64),
    ("masquerade4", 16),
    ("masquerade6", 16),
    ("endpoints4", 64),
    ("endpoints6", 64),
    ("half_open4", 4096),
    ("half_open6", 4096),
    ("health4", 256),
    ("health6", 256),
    ("affinity4", 4096),
    ("affinity6", 4096),
    ("fragments4", 64),
    ("fragments6", 64),
    ("traffic4", 1),
    ("traffic6", 1),
    ("stats", 1024),
    ("links", 16),
    ("events", 1 << 16),
    ("config", 1),
];

/// The loaded programs and their maps.
pub struct LoadedPrograms {
    ebpf: Ebpf,
    pub tables4: FamilyMaps<4>,
    pub tables6: FamilyMaps<16>,
    pub state4: StateTables<4>,
    pub state6: StateTables<16>,
    links: HashMap<MapData, u32, Link>,
    turns: Array<MapData, u64>,
    adoption: Array<MapData, u32>,
    /// Index of the link that packets arrive by at XDP; 0: the loopback.
    arrives_by: u32,
    outcomes: PerCpuArray<MapData, u64>,
    stats: aya::maps::PerCpuHashMap<MapData, StatKey, u64>,
    events: RingBuf<MapData>,
    cpu_buckets: PerCpuArray<MapData, u64>,
    /// How many packets may run before these are filled again; `None`: nobody fills them.
    until_filled: Option<u32>,
    /// Rules nothing out at first.
    pub(crate) vip_filter: VipFilter,
    pub client_shares: ClientShares,
    service_cidrs: Array<MapData, Cover>,
}

impl LoadedPrograms {
    /// Makes their maps; each program is loaded when it first runs. The calling thread's namespace becomes that of all packets: routes and links are looked up there.
    pub fn load() -> Result<Self> {
        Self::load_by(&mut EbpfLoader::new(), &object()?)
    }

    /// Loads them with these ports to translate to. They take the table of established connections to have so much room.
    pub fn load_with(ports: SourcePorts, room: u32) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        loader
            .override_global("SNAT_PORT_FIRST", &ports.first, true)
            .override_global("SNAT_PORT_COUNT", &ports.count, true)
            .override_global("REUSED_PORT_FIRST", &ports.reused_first, true)
            .override_global("REUSED_PORT_COUNT", &ports.reused_count, true);
        let entries = 2 * room;
        loader.override_global("FLOWS4_ENTRIES", &entries, true).override_global("FLOWS6_ENTRIES", &entries, true);
        Self::load_by(&mut loader, &object()?)
    }

    /// Loads those of another object. More half-open flows than so many in a second are too many. They take the table of established
    /// connections to have so much room, and hash clients with this key.
    pub fn load_from(object: &Path, most_half_open: u32, room: u32, client_key: u32) -> Result<Self> {
        Self::load_pinned(object, most_half_open, room, client_key, None)
    }

    /// [`Self::load_from`] with every map pinned in this folder of a bpf file system, which it makes.
    pub fn load_pinned(
        object: &Path,
        most_half_open: u32,
        room: u32,
        client_key: u32,
        pins: Option<&Path>,
    ) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        loader.override_global("MOST_HALF_OPEN", &most_half_open, true);
        let entries = 2 * room;
        loader.override_global("FLOWS4_ENTRIES", &entries, true).override_global("FLOWS6_ENTRIES", &entries, true);
        loader.override_global("CLIENT_KEY", &client_key, true);
        Self::load_and_pin(&mut loader, object, pins)
    }

    fn load_by(loader: &mut EbpfLoader<'_>, path: &Path) -> Result<Self> {
        Self::load_and_pin(loader, path, None)
    }

    fn load_and_pin(loader: &mut EbpfLoader<'_>, path: &Path, pins: Option<&Path>) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        for (name, entries) in SIZES {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader.load(&bytes).with_context(|| format!("loading {}", path.display()))?;
        if let Some(pins) = pins {
            pins::all(&ebpf, pins)?;
        }
        let slots = MapData::from_id(map_id(&ebpf, "slots")?)?;
        let tables4 = FamilyMaps::take(&mut ebpf, MapData::from_id(slots.info()?.id())?)?;
        let tables6 = FamilyMaps::take(&mut ebpf, slots)?;
        let (state4, state6) = (StateTables::take(&mut ebpf)?, StateTables::take(&mut ebpf)?);
        let links = take(&mut ebpf, map_name::LINKS)?.try_into()?;
        let turns = take(&mut ebpf, "round_robin")?.try_into()?;
        let adoption = take(&mut ebpf, map_name::ADOPTION)?.try_into()?;
        let outcomes = take(&mut ebpf, "outcomes")?.try_into()?;
        let stats = take(&mut ebpf, "stats")?.try_into()?;
        let events = take(&mut ebpf, "events")?.try_into()?;
        let cpu_buckets = take(&mut ebpf, "cpu_buckets")?.try_into()?;
        let service_cidrs = take(&mut ebpf, map_name::SERVICE_CIDRS)?.try_into()?;
        // It stays where it is: programs that are not loaded yet refer to it by its descriptor.
        let Some(Map::Array(map)) = ebpf.map(map_name::VIP_FILTER) else { bail!("vip_filter is no array") };
        let vip_filter = VipFilter::map(map)?;
        let Some(Map::Array(map)) = ebpf.map(map_name::CLIENT_SHARES) else { bail!("client_shares is no array") };
        let client_shares = ClientShares::map(map)?;
        Ok(Self {
            vip_filter,
            client_shares,
            service_cidrs,
            ebpf,
            tables4,
            tables6,
            state4,
            state6,
            links,
            turns,
            adoption,
            arrives_by: 0,
            outcomes,
            stats,
            events,
            cpu_buckets,
            until_filled: Some(0),
        })
    }

    /// From here on, every address is ruled out that is not made known.
    pub fn know_nobody(&self) {
        self.vip_filter.write(&all_but(std::iter::empty()));
    }

    /// The address is no longer ruled out: it becomes that of a service.
    pub fn know(&self, address: IpAddr) {
        self.vip_filter.know(address);
    }

    /// Until when unknown segments are left to the host's stack, seconds of `CLOCK_MONOTONIC`; 0: never.
    pub fn set_adoption(&mut self, until_s: u32) -> Result<()> {
        Ok(self.adoption.set(0, until_s, 0)?)
    }

    /// All service CIDRs of the family are within this cover from now on.
    pub fn set_cover<const N: usize>(&mut self, cover: Cover) -> Result<()> {
        Ok(self.service_cidrs.set(service_cidrs::index::<N>(), cover, 0)?)
    }

    /// Packets arrive by this link at XDP from now on; one that leaves by it again is sent, not redirected.
    pub fn arrive_by(&mut self, link: u32) {
        self.arrives_by = link;
    }

    /// Tells the programs that XDP may redirect packets to this link.
    pub fn set_sends(&mut self, link: u32) -> Result<()> {
        self.set_link(link, Link { peer_netns_id: -1, role: link_role::EXTERNAL, flags: link_flags::XDP_SENDS })
    }

    /// Tells the programs of a link.
    pub fn set_link(&mut self, link: u32, value: Link) -> Result<()> {
        Ok(self.links.insert(link, value, 0)?)
    }

    /// Runs the program of a hook on a packet. `None`: the kernel takes no such packet for a test run.
    pub fn run(&mut self, hook: Hook, packet: &[u8]) -> Result<Option<Ran>> {
        self.run_at(hook, LOOPBACK, packet)
    }

    /// The same at this link; a program of XDP takes [`LoadedPrograms::arrive_by`]'s.
    pub fn run_at(&mut self, hook: Hook, link: u32, packet: &[u8]) -> Result<Option<Ran>> {
        self.fill_buckets()?;
        let mut bytes = vec![0; packet.len() + GROWTH];
        let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut bytes), ..TestRunOptions::default() };
        let program = verified(&mut self.ebpf, hook)?;
        // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let arrival: Vec<u8> =
            [0, u32::try_from(packet.len())?, 0, self.arrives_by, 0, 0].map(u32::to_ne_bytes).concat();
        let result = if hook == Hook::Xdp {
            <&Xdp>::try_from(program)?.test_run(TestRunOptions { ctx_in: Some(&arrival), ..options })
        } else {
            // `struct __sk_buff` up to `ingress_ifindex` and `ifindex`. Each packet has come by a link, as all have but the node's own.
            let context: Vec<u8> = [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, link].map(u32::to_ne_bytes).concat();
            let context = if link == LOOPBACK { &context[..40] } else { &context };
            <&SchedClassifier>::try_from(program)?.test_run(TestRunOptions { ctx_in: Some(context), ..options })
        };
        let result = match result {
            Ok(result) => result,
            Err(aya::programs::ProgramError::SyscallError(error))
                if error.io_error.raw_os_error() == Some(libc::EINVAL) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error).with_context(|| format!("running {}", hook.program())),
        };
        bytes.truncate(result.data_size_out as usize);
        Ok(Some(Ran { verdict: result.return_value.cast_signed(), bytes }))
    }

    /// The program of a hook at tc, to be run by hand.
    pub fn entry(&mut self, hook: Hook) -> Result<&SchedClassifier> {
        let [program] = self.entries([hook])?;
        Ok(program)
    }

    /// The programs of these hooks at tc.
    pub fn entries<const N: usize>(&mut self, hooks: [Hook; N]) -> Result<[&SchedClassifier; N]> {
        for hook in hooks {
            verified(&mut self.ebpf, hook)?;
        }
        let all = hooks.map(|hook| {
            let program =
                self.ebpf.program(hook.program()).with_context(|| format!("no program {}", hook.program()))?;
            Ok::<_, anyhow::Error>(<&SchedClassifier>::try_from(program)?)
        });
        let all = all.into_iter().collect::<Result<Vec<_>>>()?;
        all.try_into().map_err(|_| anyhow::anyhow!("as many as there are hooks"))
    }

    /// Counters by outcome, summed over the CPUs.
    pub fn outcomes(&self) -> Result<Vec<u64>> {
        (0..Outcome::COUNT).map(|number| Ok(self.outcomes.get(&u32::try_from(number)?, 0)?.iter().sum())).collect()
    }

    /// Counters by service and backend, summed over the CPUs; taken away, so that the next call shows what came since.
    pub fn take_stats(&mut self) -> Result<Vec<(StatKey, u64)>> {
        let all: Vec<_> = self
            .stats
            .iter()
            .map(|item| item.map(|(key, values)| (key, values.iter().sum::<u64>())))
            .collect::<Result<_, _>>()?;
        for (key, _) in &all {
            self.stats.remove(key)?;
        }
        Ok(all.into_iter().filter(|(_, count)| *count != 0).collect())
    }

    /// The event records that came since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(record) = self.events.next() {
            assert_eq!(record.len(), size_of::<Event>(), "an event record of another size");
            // SAFETY: as many bytes as the record has, and every pattern of them is one; they need no alignment.
            events.push(unsafe { record.as_ptr().cast::<Event>().read_unaligned() });
        }
        events
    }

    /// A map that only an edited copy of the programs has; `.bss` holds its variables.
    pub fn take_map(&mut self, name: &str) -> Result<Map> {
        take(&mut self.ebpf, name)
    }

    /// Empties all tables but the counters.
    pub fn clear(&mut self) -> Result<()> {
        self.tables4.clear()?;
        self.tables6.clear()?;
        self.state4.clear()?;
        self.state6.clear()?;
        (0..COUNTERS).for_each(|counter| self.client_shares.set(counter, 0));
        self.set_adoption(0)?;
        self.set_cover::<4>(Cover::default())?;
        self.set_cover::<16>(Cover::default())?;
        // Tests number few services, from 1.
        for service in 0..64 {
            self.turns.set(service, 0, 0)?;
        }
        self.take_stats().map(drop)
    }
}

fn map_id(ebpf: &Ebpf, name: &str) -> Result<u32> {
    let map = ebpf.map(name).with_context(|| format!("no map {name}"))?;
    match map {
        Map::Array(data) => Ok(data.info()?.id()),
        _ => bail!("map {name} is no array"),
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<Map> {
    ebpf.take_map(name).with_context(|| format!("no map {name}"))
}

/// Every key of a hash map.
fn keys<K: aya::Pod, V: aya::Pod>(map: &HashMap<MapData, K, V>) -> Result<Vec<K>> {
    Ok(map.keys().collect::<Result<_, _>>()?)
}
