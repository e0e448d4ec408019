//! The questions that follow each kind of answer.

use k8s_openapi::api::core::v1::Service;
use serde_json::json;

use super::*;

fn follower() -> (Follower, Instant) {
    let now = Instant::now();
    (Follower::new(1, now), now)
}

fn listed(version: &str) -> Answer<Service> {
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": []});
    Answer::Listed(serde_json::from_value(list).unwrap())
}

fn event(kind: &str, version: &str) -> Answer<Service> {
    let object =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "resourceVersion": version}});
    Answer::Event(serde_json::from_value(json!({"type": kind, "object": object})).unwrap())
}

fn failed(status: Option<u16>) -> Answer<Service> {
    Answer::Failed(Failure { status, reason: "no".into() })
}

fn watch(version: &str, seconds: u32) -> Question {
    Question::Watch { version: version.into(), seconds }
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_the_last_event_or_bookmark() {
    let (mut follower, mut now) = follower();
    let step = follower.step(listed("5"), now);
    assert!(matches!(step.news, Some(News::All(_))));
    assert_eq!((step.pause, step.question), (Duration::ZERO, watch("5", WATCH_SECONDS)));
    for (kind, version) in [("ADDED", "6"), ("MODIFIED", "7"), ("DELETED", "8"), ("BOOKMARK", "9")] {
        let step = follower.step(event(kind, version), now);
        assert!(step.news.is_some());
        assert_eq!((step.pause, step.question), (Duration::ZERO, Question::Next));
    }
    // In its time it is followed at once, cut off it is not.
    now += Duration::from_secs(WATCH_SECONDS.into());
    let step = follower.step(Answer::<Service>::Ended, now);
    assert_eq!((step.pause, step.question), (Duration::ZERO, watch("9", WATCH_SECONDS)));
    follower.step(event("BOOKMARK", "10"), now);
    let step = follower.step(Answer::<Service>::Ended, now);
    assert!(step.pause >= PAUSE_MIN && step.news.is_none());
    assert_eq!(step.question, watch("10", WATCH_SECONDS));
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_a_short_watch_probes_and_a_list_follows_when_it_proves_nothing() {
    let (mut follower, now) = follower();
    follower.step(listed("5"), now);
    let step = follower.step(failed(None), now);
    assert!(matches!(step.news, Some(News::Trouble(_))));
    assert_eq!(step.question, watch("5", PROBE_SECONDS));
    assert!(step.pause >= PAUSE_MIN);
    for unproven in [Answer::<Service>::Ended, Answer::Silent] {
        let step = follower.step(unproven, now);
        assert!(step.news.is_none() && step.pause >= PAUSE_MIN);
        assert_eq!(step.question, Question::List);
        follower.step(listed("6"), now);
        follower.step(failed(None), now);
    }
    follower.step(event("BOOKMARK", "7"), now);
    let step = follower.step(Answer::<Service>::Ended, now + Duration::from_mins(1));
    assert_eq!((step.pause, step.question), (Duration::ZERO, watch("7", WATCH_SECONDS)));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_probed_from_where_it_was() {
    let (mut follower, now) = follower();
    follower.step(listed("5"), now);
    follower.step(event("MODIFIED", "6"), now);
    let step = follower.step(Answer::<Service>::Silent, now);
    assert!(step.news.is_none(), "silence alone is no trouble");
    assert_eq!((step.pause, step.question), (Duration::ZERO, watch("6", PROBE_SECONDS)));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_forgot_is_listed_without_being_trouble() {
    let (mut follower, now) = follower();
    let status = json!({"type": "ERROR", "object": {"status": "Failure", "code": 410, "message": "too old", "reason": "Expired"}});
    let in_the_watch = Answer::Event(serde_json::from_value(status).unwrap());
    for gone in [failed(Some(HTTP_GONE)), in_the_watch] {
        follower.step(listed("5"), now);
        let step = follower.step(gone, now);
        assert!(step.news.is_none());
        assert_eq!(step.question, Question::List);
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_up_to_a_bound_until_a_watch_brings_something() {
    let (mut follower, now) = follower();
    let pauses: Vec<Duration> = (0..20).map(|_| follower.step(failed(None), now).pause).collect();
    assert!(pauses[0] >= PAUSE_MIN && pauses[0] <= 2 * PAUSE_MIN, "{pauses:?}");
    assert!(pauses[10..].iter().all(|pause| (PAUSE_MAX..=2 * PAUSE_MAX).contains(pause)), "{pauses:?}");
    assert!(pauses[10] != pauses[11], "jitter");
    follower.step(listed("5"), now);
    assert!(follower.step(failed(None), now).pause >= PAUSE_MAX, "lists alone come no faster");
    follower.step(event("BOOKMARK", "6"), now);
    assert!(follower.step(failed(None), now).pause <= 2 * PAUSE_MIN);
}

#[tokio::test(start_paused = true)]
async fn a_list_without_a_version_is_not_taken() {
    let (mut follower, now) = follower();
    let step = follower.step(listed(""), now);
    assert!(matches!(step.news, Some(News::Trouble(_))));
    assert_eq!(step.question, Question::List);
}
