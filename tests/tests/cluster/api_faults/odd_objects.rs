//! One odd object never stops the others: after each of them a new Service elsewhere is known, and few of them cost a list.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Client;
use lb_seed::short_or_long;
use lb_source::Restart;
use lb_source::kube::KubeSettings;
use lb_tests::cluster::objects::Objects;
use lb_tests::cluster::odd_objects::{OddObject, odd_objects};
use lb_tests::cluster::stub::{ResourceKind, StubApi, Verb};
use lb_tests::cluster::{ApiServer, SETTLE_LIMIT};
use lb_tests::random::Random;
use serde_json::{Value, json};

use super::watched_source::{WatchedSource, direct, has, restarts, stub};

/// From an odd object to the next change that is known, in the long form, which runs on a quiet machine.
const LIMIT: Duration = Duration::from_secs(5);
/// Lists at most: the first ones, and those after an object whose version cannot be read.
const LISTS_MAX: usize = 60;
/// Refusals of one object, and characters of each.
const REFUSALS_MAX: usize = 9;
const REFUSAL_LENGTH_MAX: usize = 1_000;

fn elsewhere(number: usize) -> Value {
    let [high, low] = u16::try_from(number).expect("few").to_be_bytes();
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("next-{number}"), "namespace": "default"},
        "spec": {"clusterIP": format!("10.96.{high}.{low}"), "ports": [{"port": 80}]},
    })
}

/// Follows all nodes, too.
fn of_all_kinds(settings: KubeSettings) -> KubeSettings {
    KubeSettings { node_name: Some("own".to_owned()), is_direct: true, ..settings }
}

/// All of them, or in the short form some, in random order.
fn some_odd_objects() -> Vec<OddObject> {
    let (mut all, mut random) = (odd_objects(), Random::new(lb_seed::of_run()));
    all.sort_by_cached_key(|_| random.any());
    all.truncate(short_or_long(300, all.len()));
    all
}

/// Waits for the service that was made after an odd object.
async fn next_change(source: &mut WatchedSource, number: usize, odd: &OddObject) -> Result<()> {
    let (begin, name) = (Instant::now(), format!("next-{number}"));
    source.until(&format!("{name}, after {:?} {}", odd.kind, odd.what), |snapshot| has(snapshot, &name)).await?;
    let took = begin.elapsed();
    assert!(took <= short_or_long(SETTLE_LIMIT, LIMIT), "{took:?} after {:?} {}", odd.kind, odd.what);
    Ok(())
}

#[tokio::test]
async fn after_each_odd_object_the_next_change_is_known_and_few_cost_a_list() -> Result<()> {
    let api = StubApi::start(None, Ipv4Addr::LOCALHOST.into())?;
    let mut source = WatchedSource::start(of_all_kinds(stub(&api))).await?;
    source.until("the lists", |snapshot| snapshot.services.is_empty()).await?;
    let all = some_odd_objects();
    for (number, odd) in all.iter().enumerate() {
        api.put_odd(odd);
        // The second one shows that a watch is open again: lists that follow each other without an event between them pause longer.
        for number in [2 * number, 2 * number + 1] {
            api.put(elsewhere(number));
            next_change(&mut source, number, odd).await?;
        }
    }
    let status = source.status();
    let refused: BTreeSet<&str> =
        status.refusals.iter().filter_map(|refusal| refusal.object.split_whitespace().nth(1)).collect();
    let lists = api.requests().iter().filter(|request| request.verb == Verb::List).count();
    println!("{} odd objects: {} are refused, {lists} lists", all.len(), refused.len());
    assert!(lists <= LISTS_MAX, "{lists} lists after {} odd objects", all.len());
    // One in four, and the status names a bounded number.
    assert!(refused.len() > short_or_long(40, 100), "{refused:?}");
    assert!(status.refusals.len() <= REFUSALS_MAX * all.len());
    for refusal in &status.refusals {
        assert!(refusal.to_string().chars().count() <= REFUSAL_LENGTH_MAX, "{refusal}");
        assert!(refusal.reason.chars().count() > 1 && !refusal.object.ends_with('/'), "{refusal}");
    }
    // An agent that starts now finds them all in its lists.
    let mut other = WatchedSource::start(of_all_kinds(stub(&api))).await?;
    let last = format!("next-{}", 2 * all.len() - 1);
    let snapshot = other.until("the lists", |snapshot| has(snapshot, &last)).await?;
    assert!((0..2 * all.len()).all(|number| has(&snapshot, &format!("next-{number}"))));
    Ok(())
}

#[tokio::test]
async fn what_a_real_server_takes_of_odd_objects_stops_nothing() -> Result<()> {
    let server = ApiServer::start().await?;
    let client = server.client().await?;
    let objects = Objects::new(&client);
    let mut source = WatchedSource::start(of_all_kinds(direct(&server.kubeconfig()))).await?;
    source.until("the lists", |snapshot| has(snapshot, "kubernetes")).await?;
    let (mut taken, all) = (0, some_odd_objects());
    for (number, odd) in all.iter().enumerate() {
        let Some(path) = offer(&client, odd).await? else { continue };
        taken += 1;
        objects.create_service(&format!("next-{number}")).await?;
        next_change(&mut source, number, odd).await?;
        objects.delete_service(&format!("next-{number}")).await?;
        ask(&client, "DELETE", &path, "application/json", &Value::Null).await?.context("deleted")?;
    }
    println!("the server took {taken} of {} odd objects", all.len());
    // It takes one in four.
    assert!(taken > all.len() / 10, "{taken} of {}", all.len());
    assert_eq!(restarts(&source.status(), "services", Restart::Cut), 0, "{:#?}", source.status());
    Ok(())
}

/// Makes an odd object at a real server. `None`: the server refuses it.
async fn offer(client: &Client, odd: &OddObject) -> Result<Option<String>> {
    let mut object = odd.object.clone();
    let collection = match odd.kind {
        ResourceKind::Service => "/api/v1/namespaces/default/services",
        ResourceKind::Slice => "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        ResourceKind::Node | ResourceKind::ServiceCidr => "/api/v1/nodes",
    };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        // What the server sets itself, and what keeps an object from being deleted.
        let own = ["resourceVersion", "uid", "finalizers", "managedFields", "deletionTimestamp", "ownerReferences"];
        metadata.retain(|key, _| !own.contains(&key.as_str()) || odd.what.starts_with(&format!("/metadata/{key}")));
        metadata.retain(|key, _| odd.kind != ResourceKind::Node || key != "namespace");
    }
    let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
    let Some(made) = ask(client, "POST", collection, "application/json", &object).await? else { return Ok(None) };
    let name = made["metadata"]["name"].as_str().context("a name")?;
    let path = format!("{collection}/{name}");
    if odd.is_of_status() {
        let change = json!({"status": status});
        let changed = ask(client, "PATCH", &format!("{path}/status"), "application/merge-patch+json", &change).await?;
        if changed.is_none() {
            ask(client, "DELETE", &path, "application/json", &Value::Null).await?.context("deleted")?;
            return Ok(None);
        }
    }
    Ok(Some(path))
}

/// The answer; `None`: it is a refusal.
async fn ask(client: &Client, verb: &str, path: &str, content: &str, body: &Value) -> Result<Option<Value>> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
    // A warning for each of hundreds of unknown fields would be a longer head of an answer than a client takes.
    let path = format!("{path}?fieldValidation=Ignore");
    let request = http::Request::builder().method(verb).uri(path).header("content-type", content).body(body)?;
    match tokio::time::timeout(SETTLE_LIMIT, client.request::<Value>(request)).await? {
        Ok(answer) => Ok(Some(answer)),
        // Some fields that are out of range are an internal error to the server (a health-check node port of -1).
        Err(kube::Error::Api(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
