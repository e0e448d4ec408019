//! Watches: silent, dead, cut off, late; an API that is frozen or away.

use super::*;
use crate::ApiError;

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_the_last_event_or_bookmark_at_its_end() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.put(Call::Watch, "b", "101");
    fixture.delete(Call::Watch, "a", "102");
    fixture.bookmark(Call::Watch, "109");
    assert_eq!((fixture.held(), fixture.status().proof.unwrap().kind), (vec!["b"], ProofKind::Bookmark));
    // Cut off it is asked for again after a pause, and soon probed.
    fixture.fail(Call::Watch, None);
    let pause = fixture.take_watch(Call::Watch, "109");
    assert!(pause <= Duration::from_secs(12) && pause > Duration::ZERO, "{pause:?}");
    assert_eq!(fixture.status().watch_restarts, [(Restart::Cut, 1)].into());
    assert!(fixture.take_watch(Call::Probe, "109") <= bounds::REOPENED_PROBE_MAX);
    fixture.bookmark(Call::Probe, "110");
    assert_eq!((&fixture.status().last_error, fixture.age()), (&None, Duration::ZERO));
    // At its end it is asked for at once, and that is no restart.
    for version in 111..130 {
        fixture.seconds(20);
        if fixture.open.contains("watch") {
            fixture.bookmark(Call::Watch, &version.to_string());
        }
        if fixture.now + Duration::from_secs(20) > fixture.ends {
            break;
        }
    }
    fixture.pass(fixture.ends - fixture.now);
    let version = fixture.watcher.version.clone().unwrap().to_string();
    fixture.asked.clear();
    fixture.receive(Call::Watch, Received::Ended);
    assert_eq!(fixture.take_watch(Call::Watch, &version), Duration::ZERO);
    assert_eq!(fixture.status().watch_restarts, [(Restart::Cut, 1)].into());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_proven_by_probes_and_its_watch_is_kept() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    for round in 0..4 {
        let silence = fixture.take_watch(Call::Probe, &(100 + round).to_string());
        assert!((Duration::from_secs(22)..=Duration::from_secs(38)).contains(&silence), "{silence:?}");
        fixture.seconds(3);
        fixture.bookmark(Call::Probe, &(101 + round).to_string());
        assert_eq!((fixture.age(), fixture.status().proof.unwrap().kind), (Duration::ZERO, ProofKind::Probe));
        fixture.pass(Duration::ZERO);
        assert!(fixture.open.contains("watch") && !fixture.open.contains("probe"));
    }
    assert_eq!(fixture.status().probes, [(Probed::Fresh, 4)].into());
    assert!(fixture.status().wedged_since.is_none() && fixture.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_found_within_45_s_by_what_it_did_not_bring_and_nothing_is_lost() {
    let first = lb_seed::of_run();
    for seed in first..first + 200 {
        let mut fixture = Fixture::seeded(SETTINGS, seed);
        fixture.take_list();
        fixture.list("100", &["a", "b"]);
        fixture.take_watch(Call::Watch, "100");
        let silent = fixture.now;
        fixture.take_watch(Call::Probe, "100");
        fixture.delete(Call::Probe, "a", "105");
        assert_eq!((fixture.held(), fixture.age()), (vec!["b"], Duration::ZERO), "not even the verdict is waited for");
        fixture.seconds(2);
        assert!(fixture.now - silent <= bounds::FOUND_LIMIT);
        assert!(fixture.status().wedged_since.is_some() && fixture.is_reachable(), "this node's own fault");
        fixture.put(Call::Watch, "c", "106");
        assert_eq!(fixture.held(), ["b", "c"], "the probe is the watch now");
        fixture.seconds(3);
        fixture.receive(Call::Watch, Received::Ended);
        assert_eq!(fixture.take_watch(Call::Watch, "106"), Duration::ZERO);
        assert_eq!(fixture.status().wedged_since, None, "replaced");
        assert_eq!(fixture.status().watch_restarts, [(Restart::MissedEvents, 1)].into());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_dead_watch_in_a_row_stays_wedged_until_one_brings_something() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    for version in ["101", "102"] {
        let (_, _, _) = fixture.next();
        fixture.receive(Call::Probe, Received::Opened);
        fixture.put(Call::Probe, "a", version);
        fixture.seconds(5);
        fixture.receive(Call::Watch, Received::Ended);
        fixture.take_watch(Call::Watch, version);
    }
    assert!(fixture.status().wedged_since.is_some(), "its replacement is dead, too");
    fixture.seconds(20);
    fixture.put(Call::Watch, "a", "103");
    assert_eq!(fixture.status().wedged_since, None);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_was_only_faster_condemns_nothing_and_nothing_is_told_twice() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.take_watch(Call::Probe, "100");
    fixture.put(Call::Probe, "b", "101");
    fixture.delete(Call::Probe, "b", "102");
    fixture.seconds(1);
    fixture.put(Call::Watch, "b", "101");
    assert_eq!(fixture.held(), ["a"], "older than what is known");
    assert!(fixture.open.contains("probe") || fixture.status().probes == [(Probed::Late, 1)].into());
    fixture.delete(Call::Watch, "b", "102");
    fixture.seconds(10);
    assert_eq!((fixture.held(), &fixture.status().probes), (vec!["a"], &[(Probed::Late, 1)].into()));
    assert!(fixture.status().watch_restarts.is_empty() && fixture.open.contains("watch"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_bookmarks_for_long_is_replaced_though_nothing_was_missed() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    let begin = fixture.now;
    while fixture.status().watch_restarts.is_empty() {
        let (call, _, _) = fixture.next();
        assert_eq!(call, Call::Probe);
        fixture.receive(Call::Probe, Received::Opened);
        fixture.seconds(3);
        fixture.bookmark(Call::Probe, "100");
    }
    assert!(fixture.now - begin <= bounds::OVERDUE_LIMIT + bounds::FOUND_LIMIT);
    assert_eq!(fixture.status().watch_restarts, [(Restart::Overdue, 1)].into());
    assert_eq!(fixture.status().wedged_since, None, "nothing was missed here that others have");
    fixture.take_watch(Call::Watch, "100");
}

#[tokio::test(start_paused = true)]
async fn a_frozen_api_is_found_within_45_s_and_the_watch_is_kept() {
    let first = lb_seed::of_run();
    for seed in first..first + 200 {
        let mut fixture = Fixture::seeded(SETTINGS, seed);
        fixture.take_list();
        fixture.list("100", &["a"]);
        fixture.take_watch(Call::Watch, "100");
        fixture.pass(bounds::FOUND_LIMIT);
        assert!(
            !fixture.is_reachable() && fixture.status().last_error.as_ref().unwrap().contains("no answer within 6s")
        );
        assert!(fixture.status().wedged_since.is_none() && fixture.open.contains("watch"), "the API is to blame");
        // It goes on where it stopped.
        fixture.seconds(100);
        fixture.put(Call::Watch, "b", "101");
        assert!(fixture.is_reachable() && fixture.status().last_error.is_none());
        assert_eq!((fixture.held(), fixture.status().watch_restarts.len()), (vec!["a", "b"], 0));
    }
}

/// Lives with an API that gives no answer for a while and then a good one; how long until the proof.
fn proof_after_outage(seed: u64, outage: Duration, refuses: bool, is_gone: bool) -> (Duration, usize) {
    let mut fixture = Fixture::seeded(SETTINGS, seed);
    fixture.take_list();
    fixture.list("100", &["a"]);
    fixture.take_watch(Call::Watch, "100");
    fixture.fail(Call::Watch, None);
    let end = fixture.now + outage;
    let asked = fixture.asked_in_all;
    while fixture.now < end {
        fixture.pass((fixture.watcher.due().max(fixture.now) - fixture.now).min(end - fixture.now));
        for (call, _) in std::mem::take(&mut fixture.asked) {
            if refuses {
                fixture.fail(call, None);
            }
        }
    }
    let asked = fixture.asked_in_all - asked;
    assert!(fixture.age() >= outage && fixture.held() == ["a"]);
    // A question on its way is lost.
    while fixture.age() > bounds::SILENCE {
        assert!(fixture.now - end < Duration::from_mins(2), "no proof");
        fixture.pass(Duration::from_millis(100));
        for (call, question) in std::mem::take(&mut fixture.asked) {
            match question {
                RequestKind::List(_) => fixture.list("900", &["a"]),
                RequestKind::CheckVersion => panic!("every probe brings a bookmark here"),
                RequestKind::Watch(version, _) if is_gone && version == "100" => fixture.fail(call, Some(410)),
                RequestKind::Watch(..) => {
                    fixture.receive(call, Received::Opened);
                    if call == Call::Probe {
                        fixture.seconds(3);
                        fixture.bookmark(Call::Probe, "900");
                    }
                }
            }
        }
    }
    (fixture.now - end, asked)
}

#[tokio::test(start_paused = true)]
async fn after_an_outage_of_any_length_a_proof_comes_within_45_s_and_never_in_a_tight_loop() {
    let mut longest = Duration::ZERO;
    let first = lb_seed::of_run();
    for number in 0..100 {
        for (refuses, is_gone) in [(true, false), (true, true), (false, false), (false, true)] {
            let outage = Duration::from_secs(40 + number * 29);
            let (after, asked) = proof_after_outage(first + number, outage, refuses, is_gone);
            longest = longest.max(after);
            assert!(asked as u64 <= 6 + outage.as_secs() / 15, "{asked} questions in {outage:?}");
        }
    }
    assert!(longest <= bounds::FOUND_LIMIT, "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_probe_under_way_takes_the_place_of_a_watch_that_is_cut_off() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.take_watch(Call::Probe, "100");
    fixture.fail(Call::Watch, None);
    assert!(fixture.open.contains("watch") && !fixture.open.contains("probe"));
    fixture.bookmark(Call::Watch, "101");
    assert_eq!(fixture.status().last_error, None);
    fixture.seconds(5);
    fixture.receive(Call::Watch, Received::Ended);
    assert_eq!(fixture.take_watch(Call::Watch, "101"), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_error_on_the_watch_is_a_cut_and_a_refusal_is_an_answer() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.fail(Call::Watch, None);
    fixture.next();
    fixture.fail(Call::Watch, Some(403));
    assert!(fixture.is_reachable());
    fixture.next();
    fixture.fail(Call::Watch, Some(503));
    assert!(!fixture.is_reachable(), "a proxy without a server behind it");
    assert_eq!(fixture.held(), ["a"]);
}

/// kube-apiserver has no bookmark to send where nothing happened, nor for a resource that is quiet while others change.
#[tokio::test(start_paused = true)]
async fn a_quiet_api_is_proven_fresh_by_its_version_and_is_not_listed() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    // Longer than a watch may be without a word from an API that has something to say.
    for _ in 0..5 {
        fixture.take_watch(Call::Probe, "100");
        fixture.store_is_at("100");
        assert_eq!((fixture.age(), fixture.status().proof.unwrap().kind), (Duration::ZERO, ProofKind::Probe));
    }
    // Others changed. The server knows by now, and says so.
    fixture.take_watch(Call::Probe, "100");
    fixture.store_is_at("107");
    assert_eq!(fixture.take_watch(Call::Probe, "100"), Duration::ZERO);
    fixture.bookmark(Call::Probe, "107");
    assert_eq!(fixture.age(), Duration::ZERO);
    fixture.take_watch(Call::Probe, "107");
    // A server that does not even then is not understood: what it holds is listed.
    fixture.store_is_at("110");
    fixture.take_watch(Call::Probe, "107");
    fixture.seconds(5);
    fixture.receive(Call::Probe, Received::Ended);
    fixture.take_list();
    let status = fixture.status();
    assert_eq!(status.probes, [(Probed::Fresh, 6), (Probed::Unproven, 1)].into());
    assert_eq!(status.relists, [(Relist::First, 1), (Relist::Unproven, 1)].into());
    assert_eq!((status.watch_restarts.len(), status.wedged_since), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_time_is_up_is_not_taken_for_dead_because_of_a_probe() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    let near =
        |fixture: &Fixture| (fixture.ends - Duration::from_secs(4)..fixture.ends).contains(&fixture.watcher.probe_at);
    while !near(&fixture) {
        fixture.seconds(1);
        fixture.bookmark(Call::Watch, "100");
        assert!(fixture.now < fixture.ends, "choose another seed");
    }
    fixture.take_watch(Call::Probe, "100");
    fixture.pass(fixture.ends - fixture.now);
    fixture.receive(Call::Watch, Received::Ended);
    let (call, asked, _) = fixture.next();
    assert!(call == Call::Watch && matches!(asked, RequestKind::Watch(..)), "{asked:?}");
    // The new one is not answered at once, and something changes.
    fixture.fail(Call::Watch, Some(503));
    fixture.put(Call::Probe, "b", "120");
    fixture.seconds(3);
    assert!(fixture.status().wedged_since.is_none());
    assert!(!fixture.status().watch_restarts.contains_key(&Restart::MissedEvents));
}

/// Whatever an event is that ends the watch: it would end each watch from the version before it.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_at_once_twice_from_one_version_is_replaced_by_a_list() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.seconds(1);
    fixture.fail(Call::Watch, Some(500));
    fixture.take_watch(Call::Watch, "100");
    fixture.receive(Call::Watch, Received::Ended);
    assert!(fixture.take_list() <= Duration::from_secs(2));
    fixture.list("110", &["a", "b"]);
    fixture.take_watch(Call::Watch, "110");
    assert_eq!((fixture.held(), fixture.status().relists[&Relist::WatchFails]), (vec!["a", "b"], 1));
    // Watches that last are opened again, and so is one that brought something.
    fixture.fail(Call::Watch, None);
    fixture.take_watch(Call::Watch, "110");
    fixture.put(Call::Watch, "c", "111");
    fixture.fail(Call::Watch, None);
    fixture.take_watch(Call::Watch, "111");
    fixture.pass(bounds::SHORT_WATCH);
    fixture.fail(Call::Watch, None);
    fixture.take_watch(Call::Watch, "111");
    assert_eq!(fixture.status().relists[&Relist::WatchFails], 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_event_tells_that_names_no_object_comes_by_a_list() {
    for call in [Call::Watch, Call::Probe] {
        let mut fixture = Fixture::watching(SETTINGS, &["a"]);
        if call == Call::Probe {
            fixture.take_watch(Call::Probe, "100");
        }
        fixture.receive(call, Received::Unreadable("the API sent an event that names no object".into()));
        assert!(fixture.status().last_error.as_ref().unwrap().contains("names no object"));
        assert_eq!(fixture.status().watch_restarts, [(Restart::Unreadable, 1)].into());
        assert!(fixture.take_list() <= Duration::from_secs(2));
        fixture.list("101", &["b"]);
        fixture.take_watch(Call::Watch, "101");
        assert_eq!((fixture.held(), &fixture.status().last_error), (vec!["b"], &None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_pause_is_not_asked_before() {
    let asked = Some(Duration::from_secs(14));
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.fail(Call::Watch, None);
    let (call, _, _) = fixture.next();
    fixture.receive(call, Received::Failed(Failure { retry_after: asked, ..failure(Some(429)) }));
    assert!((14..=21).contains(&fixture.take_watch(Call::Watch, "100").as_secs()));
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    fixture.receive(Call::List, Received::Failed(Failure { retry_after: asked, ..failure(Some(503)) }));
    assert!((14..=21).contains(&fixture.take_list().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_errors_are_counted_and_timed_until_a_proof() {
    let mut fixture = Fixture::new(SETTINGS);
    let failing =
        |fixture: &Fixture| fixture.status().failing.map(|failing| (failing.error, fixture.now - failing.since));
    fixture.pass(Duration::ZERO);
    for round in 0..3 {
        fixture.take_list();
        let since = failing(&fixture).map(|(_, since)| since);
        fixture.fail(Call::List, Some(403));
        assert_eq!(failing(&fixture), Some((ApiError::Forbidden, since.unwrap_or_default())), "round {round}");
    }
    fixture.take_list();
    fixture.fail(Call::List, Some(503));
    assert_eq!(failing(&fixture), Some((ApiError::Server, Duration::ZERO)), "another error is another cause");
    fixture.take_list();
    fixture.list("100", &["a"]);
    assert_eq!(failing(&fixture), None);
    // A version that the server forgot is no error: a list follows.
    fixture.take_watch(Call::Watch, "100");
    fixture.fail(Call::Watch, Some(410));
    assert_eq!(failing(&fixture), None);
    assert_eq!(fixture.status().errors, [(ApiError::Forbidden, 3), (ApiError::Server, 1)].into());
}
