//! Packets and updates at the same time: one CPU runs a program, the other one changes its tables.
//!
//! Two services, each with backends of its own; a packet for one of them that comes out addressed to a backend of the other
//! one met a mix of two generations.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aya::maps::{MapData, PerCpuArray};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use etherparse::PacketBuilder;
use lb_common::abi::map_name;
use lb_common::outcome::Outcome;
use lb_plan::apply::KernelStore;
use lb_tables::Pinned;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::test_run::load_entry;

/// Sizes of the maps: all that two services and the flows of a run need. What is not here has the programs' own size.
const SIZES: [(&str, u32); 6] =
    [("slots", 65_536), ("backends4", 64), ("backends6", 64), ("flows4", 16_384), ("flows6", 64), ("events", 1 << 16)];
/// How long a run takes at most. Generous: a test machine may be busy.
const LIMIT: Duration = Duration::from_mins(5);
/// Where the addresses stand in an Ethernet frame with IPv4.
const DESTINATION: std::ops::Range<usize> = 30..34;
/// `TC_ACT_SHOT`.
const DROP: u32 = 2;
/// Port of both services.
pub const PORT: u16 = 80;

/// One of the two services: its cluster IP, and the network of its backends, whose third byte is the service's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject(pub u8);

impl Subject {
    pub const BOTH: [Self; 2] = [Self(1), Self(2)];

    pub fn cluster_ip(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96, 0, self.0)
    }

    pub fn backend(self, number: u8) -> IpAddr {
        Ipv4Addr::new(10, 244, self.0, number).into()
    }

    fn owns(self, backend: [u8; 4]) -> bool {
        backend[..3] == [10, 244, self.0]
    }
}

/// What became of a run's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub packets: u64,
    /// Sent to a backend of the service that they were for.
    pub delivered: u64,
    /// Sent to a backend of the other service.
    pub misdelivered: u64,
    /// Dropped, because the tables kept changing.
    pub torn: u64,
    /// Left as they were: the kernel's hash map missed an entry that was there all the time. It recycles the element of a
    /// replaced entry at once, so a reader that is held up on just that element passes over the entry's new one.
    pub missed: u64,
    /// How often the writer changed a service meanwhile.
    pub updates: u64,
}

/// What the reader tells the writer, and the writer the reader.
#[derive(Default)]
pub struct Progress {
    stop: AtomicBool,
    updates: AtomicU64,
}

impl Progress {
    /// The writer has made an update. Whether it goes on.
    pub fn updated(&self) -> bool {
        self.updates.fetch_add(1, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Programs and maps of one object in the kernel; gone when dropped.
pub struct UpdateRace {
    ebpf: Ebpf,
    outcomes: PerCpuArray<MapData, u64>,
}

impl UpdateRace {
    /// Loads the object and pins its maps in `directory`, which must be on a bpffs, for a store to open.
    pub fn load(object: &Path, directory: &Path) -> Result<(Self, KernelStore)> {
        let bytes = std::fs::read(object).with_context(|| object.display().to_string())?;
        std::fs::create_dir(directory).with_context(|| directory.display().to_string())?;
        let mut loader = EbpfLoader::new();
        for name in map_name::ALL {
            loader.map_pin_path(name, directory.join(name));
        }
        for (name, entries) in SIZES {
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader.load(&bytes).with_context(|| object.display().to_string())?;
        load_entry(&mut ebpf, "pod_in").with_context(|| object.display().to_string())?;
        let outcomes = ebpf.take_map(map_name::OUTCOMES).context("no map outcomes")?.try_into()?;
        Ok((Self { ebpf, outcomes }, KernelStore::new(Pinned::open(directory)?)))
    }

    /// Runs packets on one CPU and `writer` on another one, until `enough` says so, at most for [`LIMIT`]. The writer returns as soon as it is
    /// not to go on.
    pub fn run(
        &self,
        enough: impl Fn(&Tally) -> bool + Send,
        writer: impl FnOnce(&Progress) -> Result<()> + Send,
    ) -> Result<Tally> {
        let (here, there) = two_cpus()?;
        let before = self.torn()?;
        let progress = Progress::default();
        let tally = std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                pin_to(there)?;
                writer(&progress)
            });
            let reading = scope.spawn(|| {
                pin_to(here)?;
                self.read(&progress, enough)
            });
            let tally = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            progress.stop.store(true, Ordering::Relaxed);
            writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            tally
        })?;
        let counted = self.torn()? - before;
        ensure!(counted == tally.torn, "packets were dropped for another reason, {counted} counted as torn: {tally:?}");
        Ok(tally)
    }

    fn read(&self, progress: &Progress, enough: impl Fn(&Tally) -> bool) -> Result<Tally> {
        let program: &SchedClassifier = self.ebpf.program("pod_in").context("loaded")?.try_into()?;
        let mut tally = Tally::default();
        let mut packets = Subject::BOTH.map(|subject| (subject, first_packet(subject)));
        let start = Instant::now();
        let mut out = [0_u8; 256];
        for client in 0_u32.. {
            tally.updates = progress.updates.load(Ordering::Relaxed);
            if enough(&tally) || start.elapsed() > LIMIT {
                break;
            }
            for (subject, packet) in &mut packets {
                set_client(packet, client);
                let options =
                    TestRunOptions { data_in: Some(packet), data_out: Some(&mut out), ..TestRunOptions::default() };
                let ran = program.test_run(options)?;
                tally.packets += 1;
                if ran.return_value == DROP {
                    tally.torn += 1;
                    continue;
                }
                let to: [u8; 4] = out[DESTINATION].try_into()?;
                if subject.owns(to) {
                    tally.delivered += 1;
                } else if Subject::BOTH.iter().any(|other| other.owns(to)) {
                    tally.misdelivered += 1;
                } else if subject.cluster_ip() == Ipv4Addr::from(to) {
                    tally.missed += 1;
                } else {
                    bail!("a packet for {} came out for {}", subject.cluster_ip(), Ipv4Addr::from(to));
                }
            }
        }
        Ok(tally)
    }

    fn torn(&self) -> Result<u64> {
        Ok(self.outcomes.get(&(Outcome::DroppedTorn as u32), 0)?.iter().sum())
    }
}

/// A SYN to the service.
fn first_packet(subject: Subject) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 0], subject.cluster_ip().octets(), 64)
        .tcp(0, PORT, 1, 1024)
        .syn();
    let mut packet = Vec::with_capacity(builder.size(0));
    builder.write(&mut packet, &[]).expect("a buffer takes every write");
    packet
}

/// Makes the packet one of another client: every packet shall be its flow's first. The checksums are not looked at.
fn set_client(packet: &mut [u8], client: u32) {
    let [high, address, port_high, port_low] = client.to_be_bytes();
    packet[28..30].copy_from_slice(&[high, address]);
    packet[34..36].copy_from_slice(&[port_high, port_low]);
}

fn two_cpus() -> Result<(usize, usize)> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    match (cpus.next(), cpus.next()) {
        (Some(one), Some(other)) => Ok((one, other)),
        _ => bail!("a race needs two CPUs, and this process may use one: give it another"),
    }
}

fn pin_to(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
