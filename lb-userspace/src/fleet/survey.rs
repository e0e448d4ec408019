//! Asks all agents, those that differ again, and then for the services in which they do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, sleep};

use super::STATUS_PATH;
use super::agents::Agents;
use super::answer::{BucketServices, NodeStatus};
use super::client::{ANSWER_BYTES_MAX, Asker};
use super::compare::{Answer, Comparison, ServicesOfTwo, Verdict, differing_buckets, differing_services};
use super::report::{FleetReport, NodeReport, Totals};

/// How many times nodes that differ are asked again, and the pause before each.
const AGAIN: usize = 3;
pub const PAUSE: Duration = Duration::from_secs(1);
/// The services of so many different digests are compared.
const DIGESTS_MAX: usize = 64;

/// How the agents are asked.
#[derive(Clone)]
pub struct Survey {
    pub asker: Asker,
    pub port: u16,
    /// So many agents are asked at the same time.
    pub concurrency: usize,
    /// How long each may take.
    pub limit: Duration,
    /// Before nodes that differ are asked again, mostly [`PAUSE`].
    pub pause: Duration,
}

impl Survey {
    /// The state of all nodes. `progress` hears how many agents were asked.
    pub async fn report(&self, agents: &Agents, progress: impl Fn(usize)) -> FleetReport {
        let began = Instant::now();
        let mut comparison = Comparison::new(self.statuses(agents, agents.addresses.keys(), progress).await);
        let reference_nodes = comparison.reference_nodes();
        for _ in 0..AGAIN {
            let undecided = comparison.undecided();
            if undecided.is_empty() {
                break;
            }
            sleep(self.pause).await;
            let asked = undecided.iter().chain(&reference_nodes);
            let answers = self.statuses(agents, asked, |_| {}).await;
            comparison.again(answers, &reference_nodes, self.pause.as_secs_f64());
        }
        let services = self.services(agents, &comparison, &reference_nodes).await;
        let mut report = report(agents, &comparison, &services);
        report.seconds = began.elapsed().as_secs_f64();
        report
    }

    async fn statuses<'a>(
        &self,
        agents: &Agents,
        nodes: impl Iterator<Item = &'a String>,
        progress: impl Fn(usize),
    ) -> BTreeMap<String, Answer> {
        let questions = nodes.map(|node| async move { (node.clone(), self.status(agents, node).await) });
        let answers = futures::stream::iter(questions).buffer_unordered(self.concurrency.max(1));
        let counted = answers.enumerate().inspect(|(before, _)| progress(before + 1));
        counted.map(|(_, answer)| answer).collect().await
    }

    async fn status(&self, agents: &Agents, node: &str) -> Answer {
        self.ask::<NodeStatus>(agents, node, STATUS_PATH).await
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, agents: &Agents, node: &str, path: &str) -> Result<T, String> {
        let address = agents.addresses.get(node).copied().flatten();
        let address = address.ok_or("its agent's pod has no address yet, or ends")?;
        let address = SocketAddr::new(address, self.port);
        let body = self.asker.ask(address, path, self.limit, ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| format!("{address} answers what is not understood: {error}"))
    }

    /// The services in which digests differ from the reference: nodes of one digest differ in the same ones.
    async fn services(
        &self,
        agents: &Agents,
        comparison: &Comparison,
        reference_nodes: &[String],
    ) -> BTreeMap<String, Vec<String>> {
        let mut nodes = BTreeMap::<&str, &String>::new();
        for (node, answer) in comparison.answers() {
            let is_open = !matches!(comparison.verdict(node), Verdict::Same | Verdict::Starting | Verdict::NoAnswer(_));
            if let (true, Ok(status)) = (is_open, answer)
                && Some(status.digest.as_str()) != comparison.reference()
            {
                nodes.entry(&status.digest).or_insert(node);
            }
        }
        let Some(reference) = reference_nodes.first().filter(|_| !nodes.is_empty()) else { return BTreeMap::new() };
        let chosen = || nodes.iter().take(DIGESTS_MAX);
        let read = async || {
            let reads = chosen().map(|(_, node)| self.services_of_two(agents, node, reference));
            futures::stream::iter(reads).buffered(self.concurrency.max(1)).collect::<Vec<_>>().await
        };
        let before = read().await;
        sleep(self.pause).await;
        let after = read().await;
        let found = chosen().zip(before.iter().zip(&after)).filter_map(|((digest, _), (before, after))| {
            let differing = differing_services(before.as_ref().ok()?, after.as_ref().ok()?);
            Some(((*digest).to_owned(), differing))
        });
        found.collect()
    }

    async fn services_of_two(&self, agents: &Agents, node: &str, reference: &str) -> Result<ServicesOfTwo, String> {
        let of = |name: String| async move { self.status(agents, &name).await };
        let (of_node, of_reference) = tokio::try_join!(of(node.to_owned()), of(reference.to_owned()))?;
        let buckets = differing_buckets(&of_node, &of_reference);
        if buckets.is_empty() {
            return Ok(ServicesOfTwo::default());
        }
        let list: Vec<String> = buckets.iter().map(ToString::to_string).collect();
        let path = format!("{STATUS_PATH}?buckets={}", list.join(","));
        let services = |name: String| {
            let path = &path;
            async move { self.ask::<BucketServices>(agents, &name, path).await }
        };
        let (node, reference) = tokio::try_join!(services(node.to_owned()), services(reference.to_owned()))?;
        Ok(ServicesOfTwo { node, reference })
    }
}

fn report(agents: &Agents, comparison: &Comparison, services: &BTreeMap<String, Vec<String>>) -> FleetReport {
    let mut totals = Totals::default();
    let names: BTreeSet<&String> = agents.addresses.keys().chain(&agents.without).collect();
    let nodes = names.into_iter().map(|node| {
        let verdict = comparison.verdict(node);
        totals.count(&verdict);
        let status = comparison.answers().get(node).and_then(|answer| answer.as_ref().ok());
        let services = status.filter(|_| verdict != Verdict::Same).and_then(|status| services.get(&status.digest));
        NodeReport {
            node: node.clone(),
            state: verdict.state(),
            reason: verdict.reason(),
            version: status.map(|status| status.version.clone()),
            freshness_seconds: status.map(|status| status.freshness_seconds),
            lag_seconds: status.map(|status| status.lag_seconds),
            digest: status.map(|status| status.digest.clone()),
            services: services.cloned().unwrap_or_default(),
        }
    });
    let nodes = nodes.collect();
    FleetReport { reference: comparison.reference().map(str::to_owned), totals, seconds: 0.0, nodes }
}
