//! Cold starts: an agent that finds nothing in the kernel, and an API full of services.

use std::net::SocketAddrV4;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use lb_tests::cluster::Process;

use super::fixture::Side;
use super::latency::Probe;
use super::objects::{PORT, probed_cluster_ip};
use super::probe::{Knocker, wait_for};

/// How long a start may take.
const LIMIT: Duration = Duration::from_mins(5);
/// How long the log may lag behind.
const LOG_LIMIT: Duration = Duration::from_mins(2);
/// The first and the last service by name, the places of their cluster IPs, and which server has them.
const ENDS: [(&str, usize); 2] = [("aaa-first", 0), ("zzz-last", 1)];
/// What Ballast logs when it begins to ask, and when the first snapshot is written.
const ASKS: &str = " listing";
const WRITTEN: &str = " in the tables";
/// Seconds of a day.
const DAY: f64 = 86_400.0;

/// Seconds since the process was started.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Until connections to the first and to the last service by name had reached their backends.
    pub serves: f64,
    /// Until the first snapshot was in the tables; only Ballast tells.
    pub written: Option<f64>,
    /// From the first list request to the last map write of the first snapshot; only Ballast tells.
    pub list_to_written: Option<f64>,
}

/// Makes the services by which starts are measured.
pub fn prepare(probe: &Probe<'_>) -> Result<()> {
    for ((name, number), endpoint) in ENDS.into_iter().zip(probe.fixture.servers.addresses()) {
        probe.fixture.cluster.create_service(name, probed_cluster_ip(number), endpoint)?;
    }
    Ok(())
}

/// Starts an agent and waits until it serves; the agent runs on.
pub fn cold(
    probe: &Probe<'_>,
    side: &Side,
    log: Option<&Path>,
    stop: &AtomicBool,
    start: impl FnOnce() -> Result<Process>,
) -> Result<(Process, Start)> {
    for index in 0..ENDS.len() {
        probe.server(index).forget();
    }
    let knock = |(_, number)| Knocker::start(side.client.netns(), SocketAddrV4::new(probed_cluster_ip(number), PORT));
    let knockers = ENDS.map(knock);
    let (started, wall) = (Instant::now(), seconds_of_day(SystemTime::now()));
    let process = start()?;
    let client = side.client.addresses().v4.into();
    let mut serves = started;
    for index in 0..ENDS.len() {
        let first = wait_for(LIMIT, stop, || probe.server(index).first(client));
        let first =
            first.with_context(|| format!("nothing is served {LIMIT:?} after the start:\n{}", process.tail()))?;
        serves = serves.max(first);
    }
    drop(knockers);
    let mut result =
        Start { serves: serves.duration_since(started).as_secs_f64(), written: None, list_to_written: None };
    if let Some(log) = log {
        let times = wait_for(LOG_LIMIT, stop, || {
            let text = std::fs::read_to_string(log).ok()?;
            Some((time_of(&text, ASKS), time_of(&text, WRITTEN)?))
        });
        let (asks, written) = times.with_context(|| format!("no first sync in the log:\n{}", process.tail()))?;
        result.written = Some(between(wall, written));
        result.list_to_written = asks.map(|asks| between(asks, written));
    }
    Ok((process, result))
}

/// Time of the first line of the log that holds this, in seconds of the day.
fn time_of(log: &str, what: &str) -> Option<f64> {
    let line = log.lines().find(|line| line.contains(what))?;
    let time = line.split_once('T')?.1.split_once('Z')?.0;
    let mut seconds = 0.0;
    for part in time.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Some(seconds)
}

fn seconds_of_day(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() % DAY
}

/// From one second of a day to another, over midnight if need be.
fn between(from: f64, to: f64) -> f64 {
    let difference = to - from;
    if difference < -DAY / 2.0 { difference + DAY } else { difference }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-11-21T23:59:59.500000Z DEBUG listing resource=\"services\"\n\
                       2026-11-21T23:59:59.600000Z DEBUG listing resource=\"endpointslices\"\n\
                       2026-11-22T00:00:00.250000Z  INFO in the tables revision=1 services=3\n\
                       2026-11-22T00:00:09.000000Z  INFO in the tables revision=2 services=3\n";

    #[test]
    fn the_first_line_counts_and_midnight_does_not() {
        let (asks, written) = (time_of(LOG, ASKS).expect("there"), time_of(LOG, WRITTEN).expect("there"));
        assert!((between(asks, written) - 0.75).abs() < 1e-6);
        assert_eq!(time_of(LOG, " nothing like it"), None);
        assert!((between(10.0, 12.5) - 2.5).abs() < 1e-9);
    }
}
