//! Lists that lack objects: the source deletes nothing before a second list confirms it.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use lb_model::Snapshot;
use lb_source::Relist;
use lb_tests::cluster::stub::{Lie, ResourceKind, StubApi, Verb};
use serde_json::{Value, json};

use super::watched_source::{WatchedSource, has, relists, stub};

/// How many services there are, each with a slice.
pub const MANY: usize = 40;

pub fn service(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name(number), "namespace": "default", "uid": format!("s{number}")},
        "spec": {"clusterIP": format!("10.96.1.{number}"), "ports": [{"name": "http", "port": 80}]},
    })
}

pub fn slice(number: usize, last: u8) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name(number), "namespace": "default", "uid": format!("e{number}"),
            "labels": {"kubernetes.io/service-name": name(number)}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [format!("10.244.{number}.{last}")]}],
    })
}

pub fn name(number: usize) -> String {
    format!("s{number:02}")
}

/// A stub with services and slices, and a source that knows them.
pub async fn fixture() -> Result<(StubApi, WatchedSource)> {
    let api = full()?;
    let mut source = WatchedSource::start(stub(&api)).await?;
    source.until("everything", is_full).await?;
    Ok((api, source))
}

fn full() -> Result<StubApi> {
    let api = StubApi::start(None, Ipv4Addr::LOCALHOST.into())?;
    for number in 1..=MANY {
        api.put(service(number));
        api.put(slice(number, 1));
    }
    Ok(api)
}

pub fn is_full(snapshot: &Snapshot) -> bool {
    snapshot.services.len() == MANY && snapshot.slices.len() == MANY
}

/// What `count` lists of each kind say, after which the watches must list anew.
async fn insist_that_it_is_not_believed(lie: Lie) -> Result<()> {
    let (api, mut source) = fixture().await?;
    let before = source.now()?.revision;
    let asked = api.requests().len();
    for kind in [ResourceKind::Service, ResourceKind::Slice] {
        api.lie(kind, lie, 1);
    }
    api.forget();
    // Something new, so that the end is seen.
    api.put(service(MANY + 1));
    source.until("the truth", |snapshot| has(snapshot, &name(MANY + 1))).await?;
    let status = source.status_until("confirmed", |status| {
        ["services", "endpointslices"].iter().all(|resource| relists(status, resource, Relist::Confirm) > 0)
            && status.resources.values().all(|resource| resource.confirming.is_none())
    });
    status.await?;
    source
        .insist_since(before, "complete", |snapshot| snapshot.services.len() >= MANY && snapshot.slices.len() == MANY);

    // The second list came by another connection, and not from what some server remembers.
    for kind in [ResourceKind::Service, ResourceKind::Slice] {
        let requests = api.requests().split_off(asked);
        let lists: Vec<_> = requests.iter().filter(|r| r.kind == kind && r.verb == Verb::List).collect();
        let [first, second, ..] = &lists[..] else { anyhow::bail!("no second list of {kind:?}: {lists:#?}") };
        assert_ne!(first.peer, second.peer, "the same connection, which may go to the same liar");
        assert!(!second.query.contains("resourceVersion=0"), "{}", second.query);
    }
    Ok(())
}

#[tokio::test]
async fn an_empty_list_removes_nothing_before_it_is_confirmed() -> Result<()> {
    insist_that_it_is_not_believed(Lie::Empty).await
}

#[tokio::test]
async fn a_suddenly_tiny_list_removes_nothing_before_it_is_confirmed() -> Result<()> {
    insist_that_it_is_not_believed(Lie::Few(1)).await
}

#[tokio::test]
async fn a_confirmed_empty_list_is_the_truth() -> Result<()> {
    let (api, mut source) = fixture().await?;
    for number in 1..=MANY {
        api.delete_untold(ResourceKind::Service, "default", &name(number));
        api.delete_untold(ResourceKind::Slice, "default", &name(number));
    }
    api.forget();
    source.until("nothing", |snapshot| snapshot.services.is_empty() && snapshot.slices.is_empty()).await?;
    let status = source.status();
    for resource in ["services", "endpointslices"] {
        assert!(relists(&status, resource, Relist::Confirm) > 0, "taken without a second list: {status:#?}");
    }
    Ok(())
}

/// Deletions that come one by one need no confirmation.
#[tokio::test]
async fn everything_may_be_deleted_by_events() -> Result<()> {
    let (api, mut source) = fixture().await?;
    for number in 1..=MANY {
        api.delete(ResourceKind::Service, "default", &name(number));
        api.delete(ResourceKind::Slice, "default", &name(number));
    }
    source.until("nothing", |snapshot| snapshot.services.is_empty() && snapshot.slices.is_empty()).await?;
    assert_eq!(relists(&source.status(), "services", Relist::Confirm), 0);
    Ok(())
}

/// A node with tables from before starts, and the first answer is that there is nothing.
#[tokio::test]
async fn a_first_list_that_is_empty_is_not_believed_where_tables_exist() -> Result<()> {
    let api = full()?;
    for kind in [ResourceKind::Service, ResourceKind::Slice] {
        api.lie(kind, Lie::Empty, 1);
    }
    let settings = lb_source::kube::KubeSettings { expected_services: 1, ..stub(&api) };
    let mut source = WatchedSource::start(settings).await?;
    source.until("everything", is_full).await?;
    source.insist_since(0, "complete from the start", is_full);
    let lists = api
        .requests()
        .into_iter()
        .filter(|request| request.verb == Verb::List && request.kind == ResourceKind::Service);
    let peers: Vec<_> = lists.map(|request| request.peer).collect();
    assert_ne!(peers.first().context("a list")?, peers.get(1).context("a second list")?);
    Ok(())
}
