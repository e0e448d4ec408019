//! Service CIDRs of an API that has them, has none, does not know them, or does not show them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{super::held::SERVICE_CIDRS, *};

fn cidr(name: &str, cidrs: &[&str]) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "5"}, "spec": {"cidrs": cidrs}})
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_followed_as_they_come_and_go() {
    let (mut api, _services, _slices) = Api::listed().await;
    assert_eq!(api.service_cidrs(), None, "not listed yet");
    let first = cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]);
    api.cidr().await.list("5", &[first]);
    let watch = api.cidr().await.watch("5");
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.96.0.0/16", "fd00:96::/112"]);
    watch.event("ADDED", &at("6", cidr("more", &["10.97.0.0/24", "10.98.0.0/33"])));
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.96.0.0/16", "10.97.0.0/24", "fd00:96::/112"]);
    assert_eq!(api.status().refusals[0].object, "ServiceCIDR more");
    let mut leaving = at("7", cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    watch.event("MODIFIED", &leaving);
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap().len(), 3, "Services may still have addresses there");
    watch.event("DELETED", &at("8", leaving));
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.97.0.0/24"]);
    assert!(api.status().resources.contains_key(SERVICE_CIDRS));
}

/// Before Kubernetes 1.33.
#[tokio::test(start_paused = true)]
async fn an_api_without_service_cidrs_has_none_and_that_is_no_fault() {
    let (mut api, _services, _slices) = Api::listed().await;
    api.cidr().await.refuse(404);
    api.settle().await;
    let status = api.status();
    assert_eq!(api.service_cidrs(), Some(Vec::new()));
    assert_eq!(
        (status.last_error, status.notes, status.resources[SERVICE_CIDRS].last_error.clone()),
        (None, vec![], None)
    );
    // An upgrade brings them, a step back takes them away.
    let begin = Instant::now();
    api.cidr().await.list("5", &[cidr("kubernetes", &["10.96.0.0/16"])]);
    assert!(begin.elapsed() >= Duration::from_mins(5), "it is asked for rarely");
    let watch = api.cidr().await.watch("5");
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.96.0.0/16"]);
    watch.reset();
    api.cidr().await.refuse(404);
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.96.0.0/16"], "the watch alone proves nothing");
    let list = api.cidr().await;
    assert!(list.is_list());
    list.refuse(404);
    api.settle().await;
    assert_eq!(api.service_cidrs(), Some(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_that_may_not_be_read_are_named_and_stop_nothing_else() {
    let (mut api, services, _slices) = Api::listed().await;
    api.cidr().await.refuse(403);
    api.settle().await;
    let status = api.status();
    assert_eq!(api.service_cidrs(), None, "what is in the tables stays");
    assert!(status.notes[0].starts_with("servicecidrs: ") && status.notes[0].contains("403"), "{:?}", status.notes);
    assert_eq!(status.last_error, None);
    services.event("ADDED", &at("6", service("db")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["db", "web", "web-1"]);
    api.cidr().await.list("7", &[cidr("kubernetes", &["10.96.0.0/16"])]);
    api.settle().await;
    assert_eq!(api.service_cidrs().unwrap(), ["10.96.0.0/16"]);
    assert_eq!(api.status().notes, Vec::<String>::new());
}
