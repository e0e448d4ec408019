//! An API server that sends no bookmark to quiet resources while others change, as kube-apiserver over etcd 3.4: it is not listed again
//! and again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_seed::short_or_long;
use lb_source::Relist;
use lb_source::kube::KubeSettings;
use lb_tests::cluster::SETTLE_LIMIT;
use lb_tests::cluster::stub::{Request, ResourceKind, StubApi, Verb};
use serde_json::json;

use super::short_lists::{MANY, fixture, is_full, name, service};
use super::watched_source::{WatchedSource, has, relists, stub};

const QUIET: [(&str, ResourceKind); 2] = [("services", ResourceKind::Service), ("endpointslices", ResourceKind::Slice)];
/// How long a watch may be silent here. Probes take their true time.
const SILENCE: Duration = Duration::from_millis(200);

/// How often this was asked for since a moment, with this parameter.
fn asked(api: &StubApi, since: Instant, kind: ResourceKind, verb: Verb, parameter: &str) -> usize {
    let is_it = |request: &&Request| {
        let has_parameter = request.query.split('&').any(|given| given == parameter);
        request.at >= since && request.kind == kind && request.verb == verb && has_parameter
    };
    api.requests().iter().filter(is_it).count()
}

#[tokio::test]
async fn quiet_resources_are_listed_once_more_and_then_rarely() -> Result<()> {
    let (api, first) = fixture().await?;
    drop(first);
    api.report_no_progress();
    let start = Instant::now();
    let mut source = WatchedSource::start(KubeSettings { silence: SILENCE, ..stub(&api) }).await?;
    source.until("everything", is_full).await?;
    // Each silence costs two probes. The first one forces a list; the third one begins after what the second one brought.
    let enough = short_or_long(3, 5);
    let probes = |kind| asked(&api, start, kind, Verb::Watch, "timeoutSeconds=5");
    for number in 0.. {
        if QUIET.iter().all(|(_, kind)| probes(*kind) >= enough) {
            break;
        }
        ensure!(start.elapsed() < SETTLE_LIMIT, "probes end: {:#?}", source.status());
        let labels = json!({"round": number.to_string()});
        api.put(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other", "uid": "n", "labels": labels}}),
        );
        tokio::time::sleep(SILENCE).await;
    }
    let status = source.status();
    for (resource, kind) in QUIET {
        assert_eq!(asked(&api, start, kind, Verb::List, "limit=500"), 2, "complete lists of {resource}: {status:#?}");
        assert_eq!(relists(&status, resource, Relist::Unproven), 1, "{resource}: {status:#?}");
    }
    assert_eq!((&status.last_error, status.wedged_since()), (&None, None));
    api.put(service(MANY + 1));
    source.until("a change after it", |snapshot| has(snapshot, &name(MANY + 1))).await?;
    Ok(())
}
