//! One size: an agent with that many services, whose programs are run by hand.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use aya::programs::SchedClassifier;
use lb_tests::topology::Topology;

use crate::fixture::ballast::{Ballast, service};
use crate::fixture::side::Side;
use crate::north_south::frames::ends;
use crate::packet::frames::{ACK, SYN, tcp};
use crate::packet::runner::run;
use crate::packet::subject::programs;

/// The room that the most services need: the same for all sizes.
const SIZES: &str = "--map-sizes=services=131072,names=131072,backends=524288,slots=1048576,vips=131072,flows4=2097152";
/// How soon the last service must be served.
const SOON: Duration = Duration::from_mins(8);
/// Known flows that take turns, and the port of the first.
pub const KNOWN: u16 = 64;
pub const FIRST_KNOWN: u16 = 2_000;
/// The client: nobody, nothing is sent.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 100);

/// Fields in the order in which they must end.
pub struct Subject {
    pub services: usize,
    pub pod_in: SchedClassifier,
    pod_out: SchedClassifier,
    agent: Ballast,
}

impl Subject {
    /// Starts an agent; it may not have read all services yet.
    pub fn start(topology: &Topology, agent: &Path, services: usize, stop: &AtomicBool) -> Result<Self> {
        let agent = Ballast::start(agent, Side::new(topology)?, services, &[SIZES])?;
        let begun = Instant::now();
        let [pod_in, pod_out] = loop {
            match programs(agent.side.node.bpffs()) {
                Ok(found) => break found,
                Err(error) => agent_waits(&agent, begun, stop, &error)?,
            }
        };
        Ok(Self { services, pod_in, pod_out, agent })
    }

    /// Waits until the first and the last service are served, and makes the known flows.
    pub fn prepare(&self, stop: &AtomicBool) -> Result<()> {
        let begun = Instant::now();
        for number in [0, self.services - 1] {
            while let Err(error) = self.open(1, number) {
                agent_waits(&self.agent, begun, stop, &error)?;
            }
        }
        (FIRST_KNOWN..FIRST_KNOWN + KNOWN).try_for_each(|port| self.open(port, 0))
    }

    /// Where packets must be run: routes are looked up there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.agent.side.node.namespace().netns().run(work)
    }

    /// A connection is made: SYN, SYN+ACK, ACK.
    fn open(&self, port: u16, number: usize) -> Result<()> {
        let (from, to) = (client(0, port), service(0, number));
        self.within(|| {
            let sent = run(&self.pod_in, &tcp(from, to, SYN, 1_000, 0))?;
            let [seen, backend] = ends(&sent.bytes)?;
            ensure!(backend != to, "service {number} is not served");
            run(&self.pod_out, &tcp(backend, seen, SYN | ACK, 9_000, 1_001))?;
            run(&self.pod_in, &tcp(from, to, ACK, 1_001, 9_001))?;
            Ok(())
        })
    }
}

/// A client's address and port; another address for each turn.
pub fn client(turn: u32, port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from(u32::from(CLIENT).wrapping_add(turn << 16)), port))
}

fn agent_waits(agent: &Ballast, begun: Instant, stop: &AtomicBool, error: &anyhow::Error) -> Result<()> {
    agent.check()?;
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    ensure!(begun.elapsed() < SOON, "{error:#}, not within {SOON:?}; the agent said:\n{}", agent.tail());
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
