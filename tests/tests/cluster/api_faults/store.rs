//! A real store that forgets, and one that goes back in time.

use anyhow::Result;
use lb_source::Relist;
use lb_tests::cluster::objects::Objects;
use lb_tests::cluster::{ApiServer, FaultyProxy};

use super::watched_source::{WatchedSource, addresses, direct, endpoints, has, ready, relists, through};

/// While the way is cut, everything changes, etcd is compacted and the server starts anew: the changes in between are gone.
#[tokio::test]
async fn changes_that_the_server_forgot_cost_a_list_and_nothing_else() -> Result<()> {
    let mut server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    for name in ["kept", "dropped"] {
        objects.create_service(name).await?;
        objects.put_endpoints(name, &endpoints([1, 2])).await?;
    }
    let proxy = FaultyProxy::new(None, server.address())?;
    let mut source = WatchedSource::start(through(&server.kubeconfig(), &proxy)).await?;
    let both = |snapshot: &lb_model::Snapshot| ["kept", "dropped"].iter().all(|name| has(snapshot, name));
    let before = source.until("both services", both).await?.revision;

    proxy.cut();
    objects.put_endpoints("kept", &endpoints([2, 3])).await?;
    objects.delete_service("dropped").await?;
    objects.delete_slice("dropped-ipv4").await?;
    objects.create_service("new").await?;
    server.forget().await?;
    proxy.mend();
    let now = source.until("all the changes", |snapshot| {
        ready(snapshot, "kept") == addresses([2, 3]) && !has(snapshot, "dropped") && has(snapshot, "new")
    });
    now.await?;
    let status = source.status_until("no error", |status| status.last_error.is_none()).await?;
    for resource in ["services", "endpointslices"] {
        assert!(relists(&status, resource, Relist::Gone) >= 1, "a list was due: {status:#?}");
    }
    source.insist_since(before, "holding what stays", |snapshot| {
        has(snapshot, "kept") && has(snapshot, "kubernetes") && ready(snapshot, "kept").contains(&addresses([2])[0])
    });
    Ok(())
}

/// The store is restored from a backup: what was made since is gone, what was deleted since is back, versions begin again lower.
#[tokio::test]
async fn a_store_that_was_rolled_back_is_followed_to_the_older_truth_without_a_flush() -> Result<()> {
    let mut server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    objects.create_service("old").await?;
    objects.create_service("web").await?;
    objects.put_endpoints("web", &endpoints([1, 2])).await?;
    let mut source = WatchedSource::start(direct(&server.kubeconfig())).await?;
    source.until("old and web", |snapshot| has(snapshot, "old") && ready(snapshot, "web").len() == 2).await?;

    let backup = server.back_up()?;
    objects.delete_service("old").await?;
    objects.create_service("young").await?;
    // Many versions, so that the server's own first writes do not catch up.
    for round in 0..300 {
        objects.put_slice("web-ipv4", "web", "IPv4", &endpoints([2, 10 + round])).await?;
    }
    let newest = source.until("the last change", |snapshot| {
        ready(snapshot, "web") == addresses([2, 309]) && has(snapshot, "young") && !has(snapshot, "old")
    });
    let before = newest.await?.revision;

    server.roll_back(&backup).await?;
    let now = source.until("the older truth", |snapshot| {
        has(snapshot, "old") && !has(snapshot, "young") && ready(snapshot, "web") == addresses([1, 2])
    });
    now.await?;
    source.insist_since(before, "holding what stays", |snapshot| {
        has(snapshot, "web") && has(snapshot, "kubernetes") && ready(snapshot, "web").contains(&addresses([2])[0])
    });
    // And it follows from there.
    let objects = Objects::new(&server.client().await?);
    objects.put_endpoints("web", &endpoints([7])).await?;
    source.until("a change after it", |snapshot| ready(snapshot, "web") == addresses([7])).await?;
    Ok(())
}
