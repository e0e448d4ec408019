//! Objects in any order, more than once, and bad ones, through a real API server.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{Patch, PatchParams};
use lb_model::Snapshot;
use lb_seed::short_or_long;
use lb_tests::cluster::objects::{NAMESPACE, Objects};
use lb_tests::cluster::{ApiServer, Condition, FaultyProxy};
use lb_tests::random::Random;
use serde_json::{Value, json};

use super::watched_source::{WatchedSource, addresses, direct, endpoints, has, ready, through};

const SERVICES: usize = 6;
const WRITES: usize = 60;

/// What is in the cluster.
#[derive(Debug, Default)]
struct Cluster {
    services: BTreeSet<usize>,
    slices: BTreeSet<(usize, usize)>,
}

impl Cluster {
    /// One random write. A slice may come long before its service and stay after it, two slices may hold the same endpoint.
    async fn write(&mut self, objects: &Objects, random: &mut Random) -> Result<()> {
        let (service, slice) = (random.below(SERVICES), random.below(2));
        let (name, slice_name) = (format!("s{service}"), format!("s{service}-{slice}"));
        match random.below(6) {
            0 | 1 if self.services.insert(service) => drop(objects.create_service(&name).await?),
            0 if self.services.remove(&service) => objects.delete_service(&name).await?,
            2 if self.slices.remove(&(service, slice)) => objects.delete_slice(&slice_name).await?,
            _ => {
                self.slices.insert((service, slice));
                let first = u16::try_from(random.below(8))?;
                let count = u16::try_from(random.below(8))?;
                objects.put_slice(&slice_name, &name, "IPv4", &endpoints(first..first + count)).await?;
            }
        }
        Ok(())
    }
}

/// A client that followed every event holds what one list shows. The tables are a function of that alone.
#[tokio::test]
async fn any_order_of_events_ends_in_what_a_list_shows() -> Result<()> {
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    let mut early = WatchedSource::start(direct(&server.kubeconfig())).await?;
    let (mut random, mut cluster) = (Random::new(lb_seed::of_run()), Cluster::default());
    for round in 0..short_or_long(2, 4) {
        for _ in 0..WRITES {
            cluster.write(&objects, &mut random).await?;
        }
        // The mark is the last write: a client that has it has everything before it of its kind.
        objects.create_service(&format!("mark-{round}")).await?;
        objects.put_slice(&format!("mark-{round}"), &format!("mark-{round}"), "IPv4", &endpoints([1])).await?;
        let mark = format!("mark-{round}");
        let marked = |snapshot: &Snapshot| has(snapshot, &mark) && !ready(snapshot, &mark).is_empty();
        let followed = early.until("the mark", marked).await?;
        let mut late = WatchedSource::start(direct(&server.kubeconfig())).await?;
        let listed = late.until("the mark", marked).await?;
        assert_eq!(followed.services, listed.services, "round {round}");
        assert_eq!(followed.slices, listed.slices, "round {round}");
    }
    Ok(())
}

/// The way to the API is spoiled again and again in every way there is, while everything changes.
#[tokio::test]
async fn any_order_of_faults_ends_in_what_a_list_shows() -> Result<()> {
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    objects.create_service("kept").await?;
    objects.put_slice("kept", "kept", "IPv4", &endpoints([1])).await?;
    let proxy = FaultyProxy::new(None, server.address())?;
    let mut early = WatchedSource::start(through(&server.kubeconfig(), &proxy)).await?;
    // The API server makes its own Service when it likes.
    let kept = |snapshot: &Snapshot| {
        has(snapshot, "kubernetes") && has(snapshot, "kept") && ready(snapshot, "kept") == addresses([1])
    };
    let before = early.until("what is kept", kept).await?.revision;
    let (mut random, mut cluster) = (Random::new(lb_seed::of_run()), Cluster::default());
    let faults = short_or_long(6, 15);
    for _ in 0..faults {
        let way = *random.of(&[
            Condition::Open,
            Condition::Cut,
            Condition::Mute,
            Condition::AnswersLost,
            Condition::QuestionsLost,
            Condition::Slow { bytes_per_second: 8 * 1024 },
        ]);
        match random.below(3) {
            0 => proxy.set(way),
            1 => proxy.set_new(way),
            _ => drop(proxy.set_old(way)),
        }
        for _ in 0..5 {
            cluster.write(&objects, &mut random).await?;
        }
        tokio::time::sleep(Duration::from_millis(500 + random.any() % 2500)).await;
    }
    // New connections are well again; those that are open stay as they are.
    proxy.set_new(Condition::Open);
    objects.create_service("mark").await?;
    objects.put_slice("mark", "mark", "IPv4", &endpoints([1])).await?;
    let marked = |snapshot: &Snapshot| has(snapshot, "mark") && !ready(snapshot, "mark").is_empty();
    let followed = early.until("the mark", marked).await?;
    let listed = WatchedSource::start(direct(&server.kubeconfig())).await?.until("the mark", marked).await?;
    assert_eq!(followed.services, listed.services);
    assert_eq!(followed.slices, listed.slices);
    early.insist_since(before, "holding what nobody touched", kept);
    Ok(())
}

/// What the API takes and we refuse: the rest is served, also of the same service, and it is said which and why.
#[tokio::test]
async fn bad_objects_are_refused_by_name_and_take_nothing_else_along() -> Result<()> {
    let server = ApiServer::start().await?;
    let client = server.client().await?;
    let objects = Objects::new(&client);
    for name in ["good", "poor"] {
        objects.create_service(name).await?;
        objects.put_slice(&format!("{name}-1"), name, "IPv4", &endpoints([1, 2])).await?;
    }
    let mut source = WatchedSource::start(direct(&server.kubeconfig())).await?;
    source.until("both", |snapshot| ready(snapshot, "good").len() == 2 && ready(snapshot, "poor").len() == 2).await?;

    let slices: Api<EndpointSlice> = Api::namespaced(client, NAMESPACE);
    let slice = |name: &str, kind: &str, address: &str, port: Value| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "poor"}},
            "addressType": kind, "ports": [port], "endpoints": [{"addresses": [address]}],
        })
    };
    let good_port = || json!({"name": "tcp", "protocol": "TCP", "port": 8080});
    let mut nobodys = slice("poor-nobodys", "IPv4", "10.244.9.9", good_port());
    nobodys["metadata"]["labels"] = json!({});
    let bad = [
        slice("poor-names", "FQDN", "example.com", good_port()),
        slice("poor-crowd", "IPv4", "239.1.2.3", good_port()),
        slice("poor-portless", "IPv4", "10.244.0.3", json!({"name": "tcp", "protocol": "TCP"})),
        nobodys,
    ];
    for object in &bad {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        slices.patch(name, &PatchParams::apply("tests"), &Patch::Apply(object)).await?;
    }
    let status = source.status_until("four refusals", |status| status.refusals.len() >= bad.len()).await?;
    let reasons: Vec<String> = status.refusals.iter().map(ToString::to_string).collect();
    for object in &bad {
        let name = format!("EndpointSlice {NAMESPACE}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        assert!(reasons.iter().any(|reason| reason.starts_with(&name)), "{name} is not named: {reasons:#?}");
    }
    let now = source.now()?;
    assert_eq!(ready(&now, "good"), addresses([1, 2]));
    assert!(ready(&now, "poor").starts_with(&addresses([1, 2])), "{:?}", ready(&now, "poor"));
    assert!(!ready(&now, "poor").iter().any(std::net::IpAddr::is_multicast), "{:?}", ready(&now, "poor"));

    for object in &bad {
        objects.delete_slice(object["metadata"]["name"].as_str().unwrap_or_default()).await?;
    }
    source.status_until("no refusal", |status| status.refusals.is_empty()).await?;
    Ok(())
}
