//! The measurement: connections in blocks, arms taking turns.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_tests::topology::Place;
use socket2::SockRef;

use crate::network::Network;
use crate::statistics::Samples;

/// Size of request and of response.
pub const MESSAGE_BYTES: usize = 64;
/// Connections of one arm before the other's turn.
const BLOCK: u32 = 10;
/// How long one step of a connection may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// One way to reach a backend.
#[derive(Clone, Copy)]
pub struct Arm<'a> {
    pub name: &'static str,
    client: &'a Place,
    to: SocketAddr,
}

/// Two ways side by side.
#[derive(Clone, Copy)]
struct Comparison<'a> {
    meaning: &'static str,
    tested: Arm<'a>,
    reference: Arm<'a>,
}

/// What came of a comparison.
#[derive(Debug)]
pub struct Outcome {
    pub family: &'static str,
    pub tested: &'static str,
    pub reference: &'static str,
    pub meaning: &'static str,
    /// Rate of the tested way by that of the reference (time of the reference by that of the tested), one for each round.
    pub ratio: Samples,
    /// Median time of a connection in each round, in microseconds.
    pub tested_us: Samples,
    pub reference_us: Samples,
}

/// Measures all comparisons, `rounds` times each after one that does not count.
pub fn measure(network: &Network, rounds: u32, connections: u32, stop: &AtomicBool) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (family, index) in [("IPv4", 0), ("IPv6", 1)] {
        for comparison in comparisons(network, index) {
            outcomes.push((family, comparison, Vec::new()));
        }
    }
    for number in 0..=rounds {
        for (_, comparison, samples) in &mut outcomes {
            let sample = round(comparison, connections, stop)?;
            if number > 0 {
                samples.push(sample);
            }
        }
    }
    let outcome = |(family, comparison, samples): (&'static str, Comparison<'_>, Vec<[f64; 2]>)| Outcome {
        family,
        tested: comparison.tested.name,
        reference: comparison.reference.name,
        meaning: comparison.meaning,
        ratio: samples.iter().map(|[a, b]| b / a).collect(),
        tested_us: samples.iter().map(|[a, _]| *a).collect(),
        reference_us: samples.iter().map(|[_, b]| *b).collect(),
    };
    Ok(outcomes.into_iter().map(outcome).collect())
}

fn comparisons(network: &Network, family: usize) -> [Comparison<'_>; 3] {
    let (served, bare) = (&network.served, &network.bare);
    let service = Arm { name: "through the cluster IP", client: served.client(), to: Network::cluster_ips()[family] };
    let direct = Arm { name: "direct", client: served.client(), to: served.direct()[family] };
    let without = Arm { name: "direct, node without Ballast", client: bare.client(), to: bare.direct()[family] };
    [
        Comparison { meaning: "what a service costs", tested: service, reference: direct },
        Comparison { meaning: "what passing by costs", tested: direct, reference: without },
        Comparison { meaning: "noise (the same twice)", tested: direct, reference: direct },
    ]
}

/// A round: blocks of a few connections, A B B A, so that a slow drift of the machine falls on both alike. Returns each
/// arm's median time, which a preemption in between does not move.
fn round(comparison: &Comparison<'_>, connections: u32, stop: &AtomicBool) -> Result<[f64; 2]> {
    let (a, b) = (comparison.tested, comparison.reference);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..connections.div_ceil(2 * BLOCK) {
        for (index, arm) in [(0, a), (1, b), (1, b), (0, a)] {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let block = block(arm.client, arm.to, BLOCK);
            times[index].extend(block.with_context(|| format!("{}: {}", arm.name, arm.to))?);
        }
    }
    Ok(times.map(|times| times.into_iter().map(|time| time.as_secs_f64() * 1e6).collect::<Samples>().median()))
}

/// Makes connections one after the other; returns the times from connect to the response.
pub fn block(client: &Place, to: SocketAddr, connections: u32) -> Result<Vec<Duration>> {
    client.run(|| (0..connections).map(|_| one(to)).collect())
}

fn one(to: SocketAddr) -> Result<Duration> {
    let request = [b'?'; MESSAGE_BYTES];
    let mut response = [0; MESSAGE_BYTES];
    let started = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&request)?;
    stream.read_exact(&mut response)?;
    let time = started.elapsed();
    ensure!(response == request, "{to} answered something else");
    // Ends it with a RST: no port waits in TIME-WAIT, however many connections are made.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(time)
}
