//! From a write to the API to the first connection that reaches what was written.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::fixture::{Fixture, Side, Written};
use super::objects::{PORT, TARGET_PORT, probed_cluster_ip};
use super::probe::{Knocker, Server, wait_for};
use super::watcher::Watcher;
use crate::statistics::Samples;

/// Clients knock this long before the write.
const BEFORE: Duration = Duration::from_millis(5);
/// How long a change may take to get through.
const LIMIT: Duration = Duration::from_mins(2);
/// How long a watch may take.
const WATCH_LIMIT: Duration = Duration::from_secs(10);
/// The service whose endpoint moves, and the place of its cluster IP.
pub const MOVING: (&str, usize) = ("moving", 2);
/// Place of the first new service's cluster IP.
const FIRST_NEW: usize = 10;

/// What is written to the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiWrite {
    /// The only endpoint of a service is replaced.
    Endpoint,
    /// A service that was not there.
    Service,
}

/// Times of one change in milliseconds since the API confirmed the write. An agent may be earlier: it gets the event at the same time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// From sending the write to its confirmation.
    write: f64,
    watch: f64,
    ballast: f64,
    kube_proxy: Option<f64>,
}

/// Times of many changes of one kind, in milliseconds.
#[derive(Debug)]
pub struct Latency {
    pub change: ApiWrite,
    /// From sending the write to its confirmation.
    pub write: Samples,
    /// From the confirmation until a bare watch told.
    pub watch: Samples,
    /// From the confirmation to the first connection.
    pub ballast: Samples,
    pub kube_proxy: Option<Samples>,
    /// From sending the write to the first connection.
    pub ballast_since_sent: Samples,
    /// kube-proxy's time since sending by Ballast's, of the same change.
    pub ratio: Option<Samples>,
    /// The ratio between two halves of Ballast's changes: how much of a ratio is noise.
    pub noise: f64,
}

/// Clients, servers and the watch, at work.
pub struct Probe<'a> {
    pub fixture: &'a Fixture,
    servers: [Server; 2],
    watcher: Watcher,
    /// Number of the next service that is made.
    next_new: usize,
    /// Which server the moving service has.
    at: usize,
    stop: &'a AtomicBool,
}

impl<'a> Probe<'a> {
    /// Starts servers and watch, and makes the service whose endpoint moves.
    pub fn new(fixture: &'a Fixture, stop: &'a AtomicBool) -> Result<Self> {
        let [first, second] = fixture.servers.addresses();
        let server = |address| Server::start(fixture.servers.netns(), SocketAddrV4::new(address, TARGET_PORT));
        let servers = [server(first)?, server(second)?];
        let (name, number) = MOVING;
        fixture.cluster.create_service(name, probed_cluster_ip(number), first)?;
        let kubeconfig = fixture.cluster.kubeconfig();
        let watcher = Watcher::start(fixture.cluster.netns(), kubeconfig.as_ref())?;
        Ok(Self { fixture, servers, watcher, next_new: 0, at: 0, stop })
    }

    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// Makes a service, or moves the endpoint, `count` times, with `pause` in between. kube-proxy is only waited for if it
    /// runs.
    pub fn measure(
        &mut self,
        change: ApiWrite,
        count: usize,
        with_kube_proxy: bool,
        pause: Duration,
    ) -> Result<Latency> {
        let mut samples = Vec::new();
        for number in 0..count {
            ensure!(!self.stop.load(Ordering::Relaxed), "interrupted");
            samples.push(self.one(change, with_kube_proxy)?);
            // Not always the same, so that no clockwork of an agent is met at the same point each time.
            sleep(pause + pause.mul_f64(f64::from(u32::try_from(number % 7)?) / 7.0));
        }
        Ok(summary(change, &samples))
    }

    /// Removes the services that were made.
    pub fn remove_new(&mut self) -> Result<()> {
        (0..std::mem::take(&mut self.next_new))
            .try_for_each(|number| self.fixture.cluster.delete_service(&new_name(number)))
    }

    fn one(&mut self, change: ApiWrite, with_kube_proxy: bool) -> Result<Sample> {
        let (name, cluster_ip, kind) = match change {
            ApiWrite::Endpoint => (MOVING.0.to_owned(), probed_cluster_ip(MOVING.1), "slice"),
            ApiWrite::Service => (new_name(self.next_new), probed_cluster_ip(FIRST_NEW + self.next_new), "service"),
        };
        let mut sides: Vec<&Side> = vec![&self.fixture.ballast];
        sides.extend(with_kube_proxy.then_some(&self.fixture.kube_proxy));
        let to = SocketAddrV4::new(cluster_ip, PORT);
        let knockers: Vec<Knocker> = sides.iter().map(|side| Knocker::start(side.client.netns(), to)).collect();
        sleep(BEFORE);
        let target = if change == ApiWrite::Endpoint { 1 - self.at } else { 0 };
        self.servers[target].forget();
        let written = self.write(change, &name, cluster_ip, target)?;
        let mut arrivals = Vec::new();
        for side in &sides {
            arrivals.push(self.arrival(side, target).with_context(|| format!("{change:?} {name}"))?);
        }
        drop(knockers);
        let told = || self.watcher.last(kind, &name).filter(|at| *at >= written.sent);
        let watch = wait_for(WATCH_LIMIT, self.stop, told).context("the bare watch did not tell of a change")?;
        let since_done = |at: Instant| milliseconds(written.done, at);
        Ok(Sample {
            write: milliseconds(written.sent, written.done),
            watch: since_done(watch),
            ballast: since_done(arrivals[0]),
            kube_proxy: arrivals.get(1).map(|at| since_done(*at)),
        })
    }

    fn write(&mut self, change: ApiWrite, name: &str, cluster_ip: Ipv4Addr, target: usize) -> Result<Written> {
        let endpoint = self.fixture.servers.addresses()[target];
        match change {
            ApiWrite::Endpoint => {
                self.at = target;
                self.fixture.cluster.move_endpoint(name, endpoint)
            }
            ApiWrite::Service => {
                self.next_new += 1;
                self.fixture.cluster.create_service(name, cluster_ip, endpoint)
            }
        }
    }

    fn arrival(&self, side: &Side, target: usize) -> Result<Instant> {
        let client = side.client.addresses().v4.into();
        wait_for(LIMIT, self.stop, || self.servers[target].first(client))
            .with_context(|| format!("no connection from {} within {LIMIT:?}", side.client.namespace().name()))
    }
}

fn new_name(number: usize) -> String {
    format!("new-{number:04}")
}

fn milliseconds(from: Instant, to: Instant) -> f64 {
    let positive = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
    positive(from, to) - positive(to, from)
}

fn summary(change: ApiWrite, samples: &[Sample]) -> Latency {
    let all = |of: &dyn Fn(&Sample) -> f64| -> Samples { samples.iter().map(of).collect() };
    let since_sent = |sample: &Sample| sample.write + sample.ballast;
    let both: Vec<(f64, f64)> =
        samples.iter().filter_map(|sample| Some((sample.write + sample.kube_proxy?, since_sent(sample)))).collect();
    let half =
        |odd: usize| -> f64 { samples.iter().skip(odd).step_by(2).map(since_sent).collect::<Samples>().median() };
    Latency {
        change,
        write: all(&|sample| sample.write),
        watch: all(&|sample| sample.watch),
        ballast: all(&|sample| sample.ballast),
        kube_proxy: (!both.is_empty()).then(|| samples.iter().filter_map(|sample| sample.kube_proxy).collect()),
        ballast_since_sent: all(&since_sent),
        ratio: (!both.is_empty()).then(|| both.iter().map(|(theirs, ours)| theirs / ours).collect()),
        noise: half(1) / half(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_of_the_same_change_since_it_was_sent() {
        let sample = |write, ballast, kube_proxy| Sample { write, watch: 0.0, ballast, kube_proxy };
        let samples = [sample(5.0, -1.0, Some(395.0)), sample(5.0, 5.0, Some(1995.0)), sample(8.0, 2.0, Some(2.0))];
        let latency = summary(ApiWrite::Endpoint, &samples);
        let ratio = latency.ratio.expect("kube-proxy ran");
        assert!((ratio.median() - 100.0).abs() < 1e-9 && (ratio.quantile(1.0) - 200.0).abs() < 1e-9);
        assert!((latency.ballast_since_sent.median() - 10.0).abs() < 1e-9);
        assert!((latency.noise - 10.0 / 7.0).abs() < 1e-9, "second, by the median of first and third");
        let alone = [Sample { kube_proxy: None, ..samples[0] }];
        assert!(summary(ApiWrite::Service, &alone).kube_proxy.is_none());
    }

    #[test]
    fn what_comes_early_is_negative() {
        let start = Instant::now();
        let later = start + Duration::from_millis(3);
        assert!((milliseconds(start, later) - 3.0).abs() < 1e-9);
        assert!((milliseconds(later, start) + 3.0).abs() < 1e-9);
    }
}
