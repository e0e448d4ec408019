//! What the maps take of the kernel's memory, by its own account: `memlock` in fdinfo.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use aya::maps::MapData;
use lb_common::abi::map_name;
use lb_common::map;
use lb_tables::Pinned;
use lb_tests::topology::NetNs;
use serde::Serialize;
use serde_json::{Value, json};

use super::agents::Ballast;
use super::objects::{self, PORT, TARGET_PORT};
use super::probe::{Server, wait_for};

/// Services that are compared with none, and the backends of each.
const SERVICES: u32 = 1_000;
const BACKENDS: u32 = 10;
/// Connections that are open at the same time.
const CONNECTIONS: u32 = 200;
/// How long the agent may take to follow its manifest.
const LIMIT: Duration = Duration::from_mins(1);
const PATIENCE: Duration = Duration::from_secs(3);
/// The service that is connected to.
const ECHO: Ipv4Addr = Ipv4Addr::new(10, 96, 3, 1);
/// The service with a Maglev table.
const EVEN: Ipv4Addr = Ipv4Addr::new(10, 96, 3, 2);
/// First cluster IP of the others, and first address of their backends.
const FIRST_SERVICE: u32 = u32::from_be_bytes([10, 96, 8, 0]);
const FIRST_BACKEND: u32 = u32::from_be_bytes([172, 20, 0, 1]);

/// Kernel memory in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelMemory {
    /// All maps, with one service in them.
    pub idle: f64,
    /// Entries that one open connection takes in the flow table.
    pub entries_per_connection: f64,
    /// The flow table is allocated as a whole: its size by its capacity, times the entries.
    pub per_connection: f64,
    /// What maps that grow have grown by, and the elements that are used of those that do not.
    pub per_service: f64,
    /// What a service with a Maglev table takes.
    pub per_maglev_service: f64,
    /// A counter, which exists once something was counted: one for a service and each of its backends, by outcome.
    pub per_counter: f64,
}

/// Who connects, and who serves at which address.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    pub client: &'a NetNs,
    pub server: &'a NetNs,
    pub serving: Ipv4Addr,
}

/// Measures with an agent of its own, on a node that has none at the moment.
pub fn measure(ballast: &Ballast<'_>, ground: &Ground<'_>, folder: &Path, stop: &AtomicBool) -> Result<KernelMemory> {
    let manifest = Manifest(folder.join("services.json"));
    let echo = with_slice("echo", ECHO, &[ground.serving]);
    manifest.write(&echo)?;
    let agent = ballast.start(&[format!("--source=file={}", manifest.0.display())])?;
    let maps = Maps(ballast.node.bpffs().join("ballast/tables"));
    let late = || format!("the agent did not follow its manifest:\n{}", agent.tail());
    wait_for(LIMIT, stop, || maps.holds(1)).with_context(late)?;

    let idle = maps.bytes(&map_name::ALL)?;
    let growing = [map_name::SERVICES4, map_name::NAMES];
    let (grown_before, counters_before) = (maps.bytes(&growing)?, maps.bytes(&[map_name::STATS])?);
    let (_server, open) = connect(ground, stop)?;
    let pinned = maps.open()?;
    let flows = f64::from(u32::try_from(pinned.of::<map::Flows<4>>().read()?.len())?) / f64::from(CONNECTIONS);
    let counters = u32::try_from(pinned.stats.keys().flatten().count())?;
    let per_counter = (maps.bytes(&[map_name::STATS])? - counters_before) / f64::from(counters);
    drop(open);

    let many = (0..SERVICES).flat_map(|number| {
        let first = FIRST_BACKEND + number * BACKENDS;
        let backends: Vec<Ipv4Addr> = (first..first + BACKENDS).map(Ipv4Addr::from).collect();
        with_slice(&format!("many-{number}"), Ipv4Addr::from(FIRST_SERVICE + number), &backends)
    });
    manifest.write(&echo.iter().cloned().chain(many).collect::<Vec<_>>())?;
    wait_for(LIMIT, stop, || maps.holds(1 + SERVICES as usize)).with_context(late)?;
    let grown = maps.bytes(&growing)? - grown_before;
    // A Maglev table is so many slots more.
    let backends: Vec<Ipv4Addr> = (0..BACKENDS).map(|number| Ipv4Addr::from(FIRST_BACKEND + number)).collect();
    let mut even = with_slice("even", EVEN, &backends);
    even[0]["metadata"]["annotations"] = json!({"ballast.dev/scheduler": "maglev"});
    manifest.write(&echo.iter().cloned().chain(even).collect::<Vec<_>>())?;
    let maglev_slots = wait_for(LIMIT, stop, || maps.slots_of(EVEN)).with_context(late)?;
    let (slot, backend) = (maps.bytes_per_element(map_name::SLOTS)?, maps.bytes_per_element(map_name::BACKENDS4)?);
    Ok(KernelMemory {
        idle,
        entries_per_connection: flows,
        per_connection: flows * maps.bytes_per_element(map_name::FLOWS4)?,
        per_service: grown / f64::from(SERVICES) + f64::from(BACKENDS) * (slot + backend),
        per_maglev_service: grown / f64::from(SERVICES)
            + f64::from(maglev_slots) * slot
            + f64::from(BACKENDS) * backend,
        per_counter,
    })
}

/// Opens connections through the service, to stay open until they are dropped.
fn connect(ground: &Ground<'_>, stop: &AtomicBool) -> Result<(Server, Vec<TcpStream>)> {
    let server = Server::holding(ground.server, SocketAddrV4::new(ground.serving, TARGET_PORT))?;
    let to = SocketAddr::from((ECHO, PORT));
    let one = || TcpStream::connect_timeout(&to, PATIENCE);
    ground.client.run(|| {
        let first = wait_for(LIMIT, stop, || one().ok()).context("the service of one backend is not served")?;
        let rest = (1..CONNECTIONS).map(|_| one());
        let all = std::iter::once(Ok(first)).chain(rest).collect::<std::io::Result<_>>();
        Ok((server, all.context("a connection through the service")?))
    })
}

fn with_slice(name: &str, cluster_ip: Ipv4Addr, backends: &[Ipv4Addr]) -> [Value; 2] {
    let endpoints: Vec<Value> = backends.iter().map(|address| objects::endpoint(*address, true, 0)).collect();
    [objects::service(name, cluster_ip), objects::slice(name, name, &endpoints)]
}

/// A manifest in a file, replaced in one step.
struct Manifest(PathBuf);

impl Manifest {
    fn write(&self, objects: &[Value]) -> Result<()> {
        let new = self.0.with_extension("new");
        let text: Vec<String> = objects.iter().map(|object| format!("---\n{object}\n")).collect();
        std::fs::write(&new, text.concat()).with_context(|| new.display().to_string())?;
        std::fs::rename(&new, &self.0).with_context(|| self.0.display().to_string())
    }
}

/// The folder where an agent's maps are pinned.
struct Maps(PathBuf);

impl Maps {
    fn open(&self) -> Result<Pinned> {
        Ok(Pinned::open(&self.0)?)
    }

    /// Whether the tables hold so many service ports, each with its frontend.
    fn holds(&self, services: usize) -> Option<()> {
        let maps = self.open().ok()?;
        let count = |found: usize| found == services;
        (count(maps.of::<map::Names>().read().ok()?.len()) && count(maps.of::<map::Services<4>>().read().ok()?.len()))
            .then_some(())
    }

    /// How many slots the service at this address has.
    fn slots_of(&self, cluster_ip: Ipv4Addr) -> Option<u32> {
        let services = self.open().ok()?.of::<map::Services<4>>().read().ok()?;
        let found = services.iter().find(|(key, _)| key.address == cluster_ip.octets());
        found.map(|(_, service)| service.slot_count).filter(|count| *count > 0)
    }

    /// What these maps take together.
    fn bytes(&self, names: &[&str]) -> Result<f64> {
        names.iter().map(|name| Ok(f64::from(u32::try_from(self.fdinfo(name, "memlock")?)?))).sum()
    }

    /// The size of a map that is allocated as a whole, by its capacity.
    fn bytes_per_element(&self, name: &str) -> Result<f64> {
        Ok(self.bytes(&[name])? / f64::from(u32::try_from(self.fdinfo(name, "max_entries")?)?))
    }

    fn fdinfo(&self, name: &str, field: &str) -> Result<u64> {
        let map = MapData::from_pin(self.0.join(name)).with_context(|| format!("opening map {name}"))?;
        let path = format!("/proc/self/fdinfo/{}", map.fd().as_fd().as_raw_fd());
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok());
        value.with_context(|| format!("{path} of map {name} has no {field}"))
    }
}
