//! A store that differs from the API although no watch ever failed: the periodic comparison finds it.

use std::time::Duration;

use anyhow::Result;
use lb_source::{Difference, Restart, SourceStatus};
use lb_tests::cluster::stub::{Lie, ResourceKind};

use super::short_lists::{MANY, fixture, is_full, name, service, slice};
use super::watched_source::{WatchedSource, has, restarts, stub};

/// The mean of a period, which is up to a fifth longer or shorter.
const PERIOD: Duration = Duration::from_secs(1);

fn found(status: &SourceStatus, resource: &str, difference: Difference) -> u64 {
    status.resources.get(resource).and_then(|resource| resource.differences.get(&difference)).copied().unwrap_or(0)
}

#[tokio::test]
async fn what_no_watch_told_is_found_counted_and_repaired() -> Result<()> {
    let (api, first) = fixture().await?;
    drop(first);
    let settings = lb_source::kube::KubeSettings { compare_interval: Some(PERIOD), ..stub(&api) };
    let mut source = WatchedSource::start(settings).await?;
    source.until("everything", is_full).await?;

    api.put_untold(service(MANY + 1));
    api.put_untold(slice(7, 99));
    api.delete_untold(ResourceKind::Service, "default", &name(3));
    source
        .until("all three", |snapshot| {
            let moved = snapshot
                .slices
                .values()
                .any(|slice| slice.endpoints.iter().any(|e| e.address.to_string() == "10.244.7.99"));
            has(snapshot, &name(MANY + 1)) && !has(snapshot, &name(3)) && moved
        })
        .await?;
    let status = source.status_until("all three counted", |status| {
        found(status, "services", Difference::Missing) + found(status, "services", Difference::Extra) == 2
            && found(status, "endpointslices", Difference::Stale) == 1
    });
    let status = status.await?;
    assert_eq!(found(&status, "services", Difference::Missing), 1, "{status:#?}");
    assert!(restarts(&status, "endpointslices", Restart::Compare) >= 1, "a watch that missed something is not trusted");

    // Nothing more is found afterwards, and the count stands.
    let compares = |status: &SourceStatus| status.resources.values().map(|resource| resource.compares).min();
    let done = compares(&status);
    let later = source.status_until("two more rounds", |status| compares(status) >= done.map(|done| done + 2)).await?;
    for resource in ["services", "endpointslices"] {
        assert_eq!(later.resources[resource].differences, status.resources[resource].differences);
    }
    Ok(())
}

/// The comparison itself may be lied to.
#[tokio::test]
async fn a_comparison_with_an_empty_list_removes_nothing() -> Result<()> {
    let (api, first) = fixture().await?;
    drop(first);
    let settings = lb_source::kube::KubeSettings { compare_interval: Some(PERIOD), ..stub(&api) };
    let mut source = WatchedSource::start(settings).await?;
    let before = source.until("everything", is_full).await?.revision;
    for kind in [ResourceKind::Service, ResourceKind::Slice] {
        api.lie(kind, Lie::Empty, 1);
    }
    let done = source.status_until("some rounds", |status| {
        ["services", "endpointslices"]
            .iter()
            .all(|resource| status.resources.get(resource).is_some_and(|r| r.compares >= 3))
    });
    done.await?;
    source.insist_since(before, "complete", is_full);
    Ok(())
}
