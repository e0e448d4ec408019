//! Posts Events (`events.k8s.io/v1`) as they fall due.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::ObjectEvent;
use super::schedule::{Post, Posted, Schedule};

/// Who says it.
const CONTROLLER: &str = "ballast";
/// How long the API may take for one Event.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const HTTP_CONFLICT: u16 = 409;
const HTTP_NOT_FOUND: u16 = 404;

/// Posts what `Events` holds, each `later` than it came up, until its sender is gone: all nodes see the same objects at the same
/// time. `wall` is the wall clock.
pub async fn run(
    client: Client,
    node: String,
    mut events: watch::Receiver<BTreeSet<ObjectEvent>>,
    later: Duration,
    wall: fn() -> Timestamp,
) {
    let mut schedule = Schedule::new(Instant::now());
    let (mut failing, mut logged_without_room) = (false, 0);
    loop {
        let now = Instant::now();
        let due = schedule.due(now);
        tokio::select! {
            changed = events.changed() => {
                if changed.is_err() {
                    return;
                }
                schedule.set(&events.borrow_and_update(), now + later);
                let without_room = schedule.without_room();
                if without_room > logged_without_room {
                    tracing::warn!(without_room, "there are more refusals than room for Events");
                }
                logged_without_room = without_room;
            }
            () = sleep_until(due.unwrap_or(now)), if due.is_some() => {
                let Some(post) = schedule.next(Instant::now()) else { continue };
                let (posted, error) = send(&client, &node, &post, wall()).await;
                if let (Some(error), false) = (&error, failing) {
                    tracing::warn!("an Event could not be posted: {error}");
                }
                failing = error.is_some();
                schedule.posted(&post, posted, Instant::now());
            }
        }
    }
}

async fn send(client: &Client, node: &str, post: &Post, now: Timestamp) -> (Posted, Option<String>) {
    let api: Api<Event> = Api::namespaced(client.clone(), post.event().event_namespace());
    let answer = timeout(ANSWER_LIMIT, async {
        match post {
            Post::Create(event) => api.create(&PostParams::default(), &body(event, node, now)).await.map(drop),
            Post::Again { event, count } => {
                let series = serde_json::json!({"series": {"count": count, "lastObservedTime": MicroTime(now)}});
                api.patch(&event.event_name(), &PatchParams::default(), &Patch::Merge(series)).await.map(drop)
            }
        }
    });
    match answer.await {
        Ok(Ok(())) => (Posted::Done, None),
        Ok(Err(kube::Error::Api(status))) if status.code == HTTP_CONFLICT => (Posted::Known, None),
        Ok(Err(kube::Error::Api(status))) if status.code == HTTP_NOT_FOUND && matches!(post, Post::Again { .. }) => {
            (Posted::Forgotten, None)
        }
        Ok(Err(error)) => (Posted::Failed, Some(error.to_string())),
        Err(_) => (Posted::Failed, Some(format!("the API gave no answer within {ANSWER_LIMIT:?}"))),
    }
}

fn body(event: &ObjectEvent, node: &str, now: Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            name: Some(event.event_name()),
            namespace: Some(event.event_namespace().to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        action: Some("Program".to_owned()),
        reason: Some(event.reason.to_owned()),
        note: Some(event.note.clone()),
        type_: Some("Warning".to_owned()),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(node.to_owned()),
        regarding: Some(event.regarding()),
        ..Event::default()
    }
}
