//! Faults of the connection to a real API server: half-open, mute, slow.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_seed::short_or_long;
use lb_source::{Probed, Reach, Restart, SourceStatus};
use lb_tests::cluster::objects::Objects;
use lb_tests::cluster::{ApiServer, Condition, FaultyProxy};

use super::watched_source::{WatchedSource, addresses, endpoints, has, ready, restarts, silence, through};

/// How long the source waits for an answer to begin.
const ANSWER_LIMIT: Duration = Duration::from_secs(6);

/// A server, a gate in front of it, and a source behind that knows `web` with endpoints 1 and 2.
async fn fixture() -> Result<(ApiServer, FaultyProxy, Objects, WatchedSource)> {
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    let proxy = FaultyProxy::new(None, server.address())?;
    let mut source = WatchedSource::start(through(&server.kubeconfig(), &proxy)).await?;
    source.until("the lists", |snapshot| has(snapshot, "kubernetes")).await?;
    // What is made now comes by the watches: so these are open.
    objects.create_service("web").await?;
    objects.put_endpoints("web", &endpoints([1, 2])).await?;
    source.until("web", |snapshot| ready(snapshot, "web") == addresses([1, 2]) && has(snapshot, "web")).await?;
    Ok((server, proxy, objects, source))
}

/// A server has no bookmark to send where nothing happens, and none for one resource where only others change. Neither may cost
/// every node a complete list all the time.
#[tokio::test]
async fn a_quiet_api_is_proven_fresh_without_listing_again() -> Result<()> {
    let (_server, _gate, objects, mut source) = fixture().await?;
    let proven = |status: &SourceStatus, resource: &str| {
        status.resources.get(resource).and_then(|resource| resource.probes.get(&Probed::Fresh)).copied().unwrap_or(0)
    };
    let both = |status: &SourceStatus, count: u64| {
        ["services", "endpointslices"].iter().all(|resource| proven(status, resource) >= count)
    };
    source.status_until("proven by probes while nothing happens", |status| both(status, 2)).await?;
    let before = proven(&source.status(), "endpointslices");
    for number in 0..8 {
        objects.create_service(&format!("other-{number}")).await?;
        tokio::time::sleep(silence() / 2).await;
    }
    let status =
        source.status_until("proven while others change", |status| proven(status, "endpointslices") >= before + 2);
    let status = status.await?;
    for resource in ["services", "endpointslices"] {
        let lists: u64 = status.resources[resource].relists.values().sum();
        assert_eq!(lists, 1, "{resource}: {status:#?}");
    }
    Ok(())
}

/// The server's words are lost on the connections that there are; the kernel at the other end acknowledges everything.
#[tokio::test]
async fn a_watch_that_goes_deaf_without_an_error_is_found_and_replaced() -> Result<()> {
    let (_server, proxy, objects, mut source) = fixture().await?;
    let before = source.now()?.revision;
    assert!(proxy.set_old(Condition::AnswersLost) > 0, "nothing was connected");
    let start = Instant::now();
    objects.put_endpoints("web", &endpoints([2, 3])).await?;
    source.status_until("a wedged watch", |status| status.wedged_since().is_some()).await?;
    let found = start.elapsed();
    source.until("the change", |snapshot| ready(snapshot, "web") == addresses([2, 3])).await?;
    let known = start.elapsed();
    let status = source.status_until("healed", |status| status.wedged_since().is_none()).await?;
    println!("deaf watch: found after {found:.1?}, the change known after {known:.1?} of {:?} of silence", silence());
    assert_eq!(restarts(&status, "endpointslices", Restart::MissedEvents), 1, "{status:#?}");
    source.insist_since(before, "with endpoint 2, which stays", |snapshot| {
        ready(snapshot, "web").contains(&addresses([2])[0])
    });

    // The new watch works: no probe is needed.
    objects.put_endpoints("web", &endpoints([4])).await?;
    source.until("the next change", |snapshot| ready(snapshot, "web") == addresses([4])).await?;
    Ok(())
}

/// What is said to the server is lost, on the connections that there are: open watches go on, new questions must find a new way.
#[tokio::test]
async fn questions_that_never_arrive_are_asked_again() -> Result<()> {
    let (_server, proxy, objects, mut source) = fixture().await?;
    assert!(proxy.set_old(Condition::QuestionsLost) > 0, "nothing was connected");
    for numbers in [[1, 5], [1, 6]] {
        objects.put_endpoints("web", &endpoints(numbers)).await?;
        source.until("the change", |snapshot| ready(snapshot, "web") == addresses(numbers)).await?;
        // A round of probes, which must be heard.
        tokio::time::sleep(silence() * 2).await;
    }
    Ok(())
}

/// Every connection is accepted, and nothing is ever answered on it.
#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_out_of_reach_and_not_this_nodes_fault() -> Result<()> {
    let (_server, proxy, objects, mut source) = fixture().await?;
    proxy.set(Condition::Mute);
    objects.put_endpoints("web", &endpoints([2, 3])).await?;
    // A question about service CIDRs may be the first that is not answered: its error is a note alone.
    let lost = source.status_until("out of reach, and why", |status| {
        matches!(status.api, Some(Reach { reachable: false, .. })) && status.last_error.is_some()
    });
    let lost = lost.await?;
    assert_eq!(lost.wedged_since(), None, "nobody answers: {lost:#?}");
    // The revision may have moved: the server writes the service `kubernetes` and its endpoints when it likes.
    let now = source.now()?;
    assert!(has(&now, "web") && has(&now, "kubernetes"), "a lost API takes nothing away");
    assert_eq!(ready(&now, "web"), addresses([1, 2]), "a lost API changes nothing");
    let accepted = proxy.accepted();
    let mute = Duration::from_secs(short_or_long(3, 10));
    tokio::time::sleep(mute).await;
    let tries = proxy.accepted() - accepted;
    assert!(tries <= 40, "{tries} connections in {mute:?}: a tight loop");

    // What hangs in the gate never comes: only new connections work.
    proxy.set_old(Condition::AnswersLost);
    proxy.set_new(Condition::Open);
    let start = Instant::now();
    source.until("the change", |snapshot| ready(snapshot, "web") == addresses([2, 3])).await?;
    println!("mute API: {tries} connections in {mute:?}; followed again {:.1?} after it answers", start.elapsed());
    source
        .status_until("in reach", |status| {
            matches!(status.api, Some(Reach { reachable: true, .. })) && status.last_error.is_none()
        })
        .await
        .context("afterwards")?;
    Ok(())
}

/// A list takes longer than any single answer may, but something comes all along; in the long form also longer than any silence may last.
#[tokio::test]
async fn a_list_that_trickles_is_waited_for() -> Result<()> {
    const SLICES: u16 = 24;
    let server = ApiServer::start().await?;
    let objects = Objects::new(&server.client().await?);
    objects.create_service("web").await?;
    for number in 0..SLICES {
        let slice = endpoints(number * 100..number * 100 + 100);
        objects.put_slice(&format!("web-{number}"), "web", "IPv4", &slice).await?;
    }
    let proxy = FaultyProxy::new(None, server.address())?;
    let (bytes_per_second, least) = short_or_long((16 * 1024, ANSWER_LIMIT), (4 * 1024, Duration::from_secs(31)));
    proxy.set(Condition::Slow { bytes_per_second });
    let start = Instant::now();
    let mut source = WatchedSource::start(through(&server.kubeconfig(), &proxy)).await?;
    let all = addresses(0..SLICES * 100);
    source.until("all endpoints", |snapshot| ready(snapshot, "web") == all).await?;
    let took = start.elapsed();
    println!("a list at {bytes_per_second} B/s took {took:.1?}");
    assert!(took > least, "not slow: {took:?} shows nothing");
    Ok(())
}
