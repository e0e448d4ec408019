//! The order of the run: what is started, changed and looked at, and when.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_tests::cluster::{KubeProxy, Process};

use super::agents::{Ballast, Memory};
use super::fixture::Fixture;
use super::latency::{ApiWrite, Probe};
use super::objects::{stored, stored_slice};
use super::probe::wait_for;
use super::start::{self, Start};
use super::{ControlArguments, FULL, MOST, QUICK, Results, tables};
use crate::machine::load;
use crate::statistics::Samples;

/// Services of a small cluster, with which the work of a change is compared.
const FEW: usize = 10;
/// How long the API server may take to read what was put into its store.
const READ_LIMIT: Duration = Duration::from_mins(3);
/// An agent is asked for its memory so long after the last change.
const CALM: Duration = Duration::from_secs(10);
/// Backends that left drain for so long, so that they are gone when memory is compared.
const DRAIN: &str = "--drain-period=2s";
/// Between changes that kube-proxy also takes part in: longer than its shortest pause between two passes.
const PAUSE_BOTH: Duration = Duration::from_millis(1500);
/// Between changes of Ballast alone.
const PAUSE_ALONE: Duration = Duration::from_millis(20);
/// The room that the largest start needs.
const MOST_SIZES: &str = "--map-sizes=services=131072,names=131072,backends=524288,slots=1048576,vips=131072";

/// The run.
pub struct Bench<'a> {
    pub arguments: &'a ControlArguments,
    pub program: &'a Path,
    pub folder: &'a Path,
    pub fixture: &'a Fixture,
    pub stop: &'a AtomicBool,
}

impl Bench<'_> {
    pub fn measure(&self) -> Result<Results> {
        let services = self.arguments.services as usize;
        let amounts = if self.arguments.quick { QUICK } else { FULL };
        let load_before = load();
        say("kernel memory of the maps");
        let ground = tables::Ground {
            client: self.fixture.ballast.client.netns(),
            server: self.fixture.servers.netns(),
            serving: self.fixture.servers.addresses()[0],
        };
        let kernel = tables::measure(&self.ballast(), &ground, self.folder, self.stop)?;
        self.ballast().clean_up()?;

        let mut probe = Probe::new(self.fixture, self.stop)?;
        start::prepare(&probe)?;
        say("changes among few services");
        self.fill(0..FEW)?;
        let agent = self.start_ballast(&probe)?.0;
        let few = self.calls_per_change(&mut probe)?;
        self.end_ballast(agent)?;
        say(&format!("{services} services"));
        self.fill(FEW..services)?;
        let (list_seconds, list_bytes) = self.lists(amounts.starts)?;

        say("starts");
        let (mut ballast_starts, mut kube_proxy_starts) = (Vec::new(), Vec::new());
        let mut kube_proxy = None;
        for number in 1..=amounts.starts {
            let (agent, start) = self.start_ballast(&probe)?;
            ballast_starts.push(start);
            self.end_ballast(agent)?;
            // A start of kube-proxy takes so long that two tell enough.
            if !self.arguments.alone && number <= 2 {
                drop(kube_proxy.take());
                let (process, start) = self.start_kube_proxy(&probe)?;
                kube_proxy = Some(process);
                kube_proxy_starts.push(start);
            }
        }
        let agent = self.start_ballast(&probe)?.0;
        sleep(CALM);
        let started_memory = Memory::of(&agent)?;
        let kube_proxy_memory = kube_proxy.as_ref().map(Memory::of).transpose()?;

        let mut latencies = Vec::new();
        if let Some(kube_proxy) = kube_proxy {
            say("changes, both agents");
            for change in [ApiWrite::Endpoint, ApiWrite::Service] {
                latencies.push(probe.measure(change, amounts.both, true, PAUSE_BOTH)?);
            }
            drop(kube_proxy);
            self.kube_proxy().clean_up()?;
        }
        say("changes, Ballast alone");
        for change in [ApiWrite::Endpoint, ApiWrite::Service] {
            latencies.push(probe.measure(change, amounts.alone, false, PAUSE_ALONE)?);
        }
        let calls_per_change = [few, self.calls_per_change(&mut probe)?];
        probe.remove_new()?;
        say(&format!("{} changes", amounts.many));
        let changes_per_second = self.change_many(services, amounts.many)?;
        sleep(CALM);
        let ballast_memory = [started_memory, Memory::of(&agent)?];
        self.end_ballast(agent)?;

        let (most_start, most_memory) = if self.arguments.quick { (None, None) } else { self.most(&probe)? };
        Ok(Results {
            services,
            amounts,
            load_before,
            load_after: load(),
            list_seconds,
            list_bytes,
            calls_per_change,
            ballast_starts,
            kube_proxy_starts,
            most_start,
            ballast_memory,
            most_memory,
            kube_proxy_memory,
            latencies,
            changes_per_second,
            kernel,
        })
    }

    fn ballast(&self) -> Ballast<'_> {
        Ballast { program: self.program, node: &self.fixture.ballast.node, log: self.folder.join("ballast.log") }
    }

    fn kube_proxy(&self) -> KubeProxy<'_> {
        let kubeconfig = self.fixture.cluster.kubeconfig();
        KubeProxy { node: &self.fixture.kube_proxy.node, kubeconfig, folder: self.folder.to_owned() }
    }

    fn start_ballast(&self, probe: &Probe<'_>) -> Result<(Process, Start)> {
        self.start_ballast_with(probe, &[])
    }

    fn start_ballast_with(&self, probe: &Probe<'_>, more: &[&str]) -> Result<(Process, Start)> {
        let ballast = self.ballast();
        let mut flags = vec!["--source=kube".into(), format!("--kubeconfig={}", self.fixture.cluster.kubeconfig())];
        flags.push(DRAIN.into());
        // The cluster has no Node objects.
        flags.push("--node-wait=0s".into());
        flags.extend(more.iter().map(|flag| (*flag).into()));
        start::cold(probe, &self.fixture.ballast, Some(&ballast.log), self.stop, || ballast.start(&flags))
    }

    /// Ends it and leaves nothing of it in the kernel.
    fn end_ballast(&self, agent: Process) -> Result<()> {
        drop(agent);
        self.ballast().clean_up()
    }

    fn start_kube_proxy(&self, probe: &Probe<'_>) -> Result<(Process, Start)> {
        let kube_proxy = self.kube_proxy();
        kube_proxy.clean_up()?;
        start::cold(probe, &self.fixture.kube_proxy, None, self.stop, || kube_proxy.start())
    }

    /// Puts services into the store and waits until the API server has read them.
    fn fill(&self, numbers: std::ops::Range<usize>) -> Result<()> {
        let cluster = &self.fixture.cluster;
        let target = cluster.count_slices()? + numbers.len();
        let started = Instant::now();
        cluster.store().load(stored(numbers.clone()), self.stop)?;
        let read = || (cluster.count_slices().ok()? >= target).then_some(());
        wait_for(READ_LIMIT, self.stop, read).context("the API server has not read its store in time")?;
        say(&format!("{} services stored and read in {:.1} s", numbers.len(), started.elapsed().as_secs_f64()));
        Ok(())
    }

    /// System calls for one change of an endpoint: the median, so that a backend that has drained meanwhile does not count.
    fn calls_per_change(&self, probe: &mut Probe<'_>) -> Result<f64> {
        const CHANGES: usize = 9;
        let ballast = self.ballast();
        let mut calls = Vec::new();
        for _ in 0..CHANGES {
            let before = ballast.metric("ballast_table_calls_total")?;
            probe.measure(ApiWrite::Endpoint, 1, false, PAUSE_ALONE)?;
            calls.push(ballast.metric("ballast_table_calls_total")? - before);
        }
        Ok(calls.into_iter().collect::<Samples>().median())
    }

    /// Both lists as a bare client gets them, without reading what is in them.
    fn lists(&self, times: usize) -> Result<(Samples, u64)> {
        let (mut seconds, mut bytes) = (Vec::new(), 0);
        for _ in 0..times {
            let started = Instant::now();
            bytes = self.fixture.cluster.fetch_lists()?;
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok((seconds.into_iter().collect(), bytes))
    }

    /// Endpoints come and go as ready, in every service in turn. Returns how many a second.
    fn change_many(&self, services: usize, changes: usize) -> Result<f64> {
        let started = Instant::now();
        let entry = |number: usize| stored_slice(number % services, 1 + number / services);
        self.fixture.cluster.store().change(changes, entry, self.stop)?;
        let rate = f64::from(u32::try_from(changes)?) / started.elapsed().as_secs_f64();
        say(&format!("{rate:.0} changes a second"));
        Ok(rate)
    }

    /// A start with ten times as many services.
    fn most(&self, probe: &Probe<'_>) -> Result<(Option<Start>, Option<Memory>)> {
        say(&format!("{MOST} services"));
        self.fill(self.arguments.services as usize..MOST)?;
        let (agent, start) = self.start_ballast_with(probe, &[MOST_SIZES])?;
        sleep(CALM);
        let memory = Memory::of(&agent)?;
        self.end_ballast(agent)?;
        Ok((Some(start), Some(memory)))
    }
}

/// Tells how far it is.
fn say(text: &str) {
    eprintln!("bench: {text}");
}
