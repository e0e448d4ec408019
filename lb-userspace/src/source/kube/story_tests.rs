//! Watches: silent, dead, cut off, late; an API that is frozen or away.

use super::*;
use crate::source::ApiError;

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_the_last_event_or_bookmark_at_its_end() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.put(Call::Watch, "b", "101");
    stage.delete(Call::Watch, "a", "102");
    stage.bookmark(Call::Watch, "109");
    assert_eq!((stage.held(), stage.status().proof.unwrap().kind), (vec!["b"], ProofKind::Bookmark));
    // Cut off it is asked for again after a pause, and soon probed.
    stage.fail(Call::Watch, None);
    let pause = stage.take_watch(Call::Watch, "109");
    assert!(pause <= Duration::from_secs(12) && pause > Duration::ZERO, "{pause:?}");
    assert_eq!(stage.status().watch_restarts, [(Restart::Cut, 1)].into());
    assert!(stage.take_watch(Call::Probe, "109") <= bounds::REOPENED_PROBE_MAX);
    stage.bookmark(Call::Probe, "110");
    assert_eq!((&stage.status().last_error, stage.age()), (&None, Duration::ZERO));
    // At its end it is asked for at once, and that is no restart.
    for version in 111..130 {
        stage.seconds(20);
        if stage.open.contains("watch") {
            stage.bookmark(Call::Watch, &version.to_string());
        }
        if stage.now + Duration::from_secs(20) > stage.ends {
            break;
        }
    }
    stage.pass(stage.ends - stage.now);
    let version = stage.follower.version.clone().unwrap().to_string();
    stage.asked.clear();
    stage.hear(Call::Watch, Heard::Ended);
    assert_eq!(stage.take_watch(Call::Watch, &version), Duration::ZERO);
    assert_eq!(stage.status().watch_restarts, [(Restart::Cut, 1)].into());
}

#[tokio::test(start_paused = true)]
async fn a_quiet_cluster_is_proven_by_probes_and_its_watch_is_kept() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    for round in 0..4 {
        let silence = stage.take_watch(Call::Probe, &(100 + round).to_string());
        assert!((Duration::from_secs(22)..=Duration::from_secs(38)).contains(&silence), "{silence:?}");
        stage.seconds(3);
        stage.bookmark(Call::Probe, &(101 + round).to_string());
        assert_eq!((stage.age(), stage.status().proof.unwrap().kind), (Duration::ZERO, ProofKind::Probe));
        stage.pass(Duration::ZERO);
        assert!(stage.open.contains("watch") && !stage.open.contains("probe"));
    }
    assert_eq!(stage.status().probes, [(Probed::Fresh, 4)].into());
    assert!(stage.status().wedged_since.is_none() && stage.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_found_within_45_s_by_what_it_did_not_bring_and_nothing_is_lost() {
    let first = lb_seed::of_run();
    for seed in first..first + 200 {
        let mut stage = Stage::seeded(SETTINGS, seed);
        stage.take_list();
        stage.list("100", &["a", "b"]);
        stage.take_watch(Call::Watch, "100");
        let silent = stage.now;
        stage.take_watch(Call::Probe, "100");
        stage.delete(Call::Probe, "a", "105");
        assert_eq!((stage.held(), stage.age()), (vec!["b"], Duration::ZERO), "not even the verdict is waited for");
        stage.seconds(2);
        assert!(stage.now - silent <= bounds::FOUND_LIMIT);
        assert!(stage.status().wedged_since.is_some() && stage.is_reachable(), "this node's own fault");
        stage.put(Call::Watch, "c", "106");
        assert_eq!(stage.held(), ["b", "c"], "the probe is the watch now");
        stage.seconds(3);
        stage.hear(Call::Watch, Heard::Ended);
        assert_eq!(stage.take_watch(Call::Watch, "106"), Duration::ZERO);
        assert_eq!(stage.status().wedged_since, None, "replaced");
        assert_eq!(stage.status().watch_restarts, [(Restart::MissedEvents, 1)].into());
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_dead_watch_in_a_row_stays_wedged_until_one_brings_something() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    for version in ["101", "102"] {
        let (_, _, _) = stage.next();
        stage.hear(Call::Probe, Heard::Opened);
        stage.put(Call::Probe, "a", version);
        stage.seconds(5);
        stage.hear(Call::Watch, Heard::Ended);
        stage.take_watch(Call::Watch, version);
    }
    assert!(stage.status().wedged_since.is_some(), "its replacement is dead, too");
    stage.seconds(20);
    stage.put(Call::Watch, "a", "103");
    assert_eq!(stage.status().wedged_since, None);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_was_only_faster_condemns_nothing_and_nothing_is_told_twice() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.take_watch(Call::Probe, "100");
    stage.put(Call::Probe, "b", "101");
    stage.delete(Call::Probe, "b", "102");
    stage.seconds(1);
    stage.put(Call::Watch, "b", "101");
    assert_eq!(stage.held(), ["a"], "older than what is known");
    assert!(stage.open.contains("probe") || stage.status().probes == [(Probed::Late, 1)].into());
    stage.delete(Call::Watch, "b", "102");
    stage.seconds(10);
    assert_eq!((stage.held(), &stage.status().probes), (vec!["a"], &[(Probed::Late, 1)].into()));
    assert!(stage.status().watch_restarts.is_empty() && stage.open.contains("watch"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_bookmarks_for_long_is_replaced_though_nothing_was_missed() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    let begin = stage.now;
    while stage.status().watch_restarts.is_empty() {
        let (call, _, _) = stage.next();
        assert_eq!(call, Call::Probe);
        stage.hear(Call::Probe, Heard::Opened);
        stage.seconds(3);
        stage.bookmark(Call::Probe, "100");
    }
    assert!(stage.now - begin <= bounds::OVERDUE_LIMIT + bounds::FOUND_LIMIT);
    assert_eq!(stage.status().watch_restarts, [(Restart::Overdue, 1)].into());
    assert_eq!(stage.status().wedged_since, None, "nothing was missed here that others have");
    stage.take_watch(Call::Watch, "100");
}

#[tokio::test(start_paused = true)]
async fn a_frozen_api_is_found_within_45_s_and_the_watch_is_kept() {
    let first = lb_seed::of_run();
    for seed in first..first + 200 {
        let mut stage = Stage::seeded(SETTINGS, seed);
        stage.take_list();
        stage.list("100", &["a"]);
        stage.take_watch(Call::Watch, "100");
        stage.pass(bounds::FOUND_LIMIT);
        assert!(!stage.is_reachable() && stage.status().last_error.as_ref().unwrap().contains("no answer within 6s"));
        assert!(stage.status().wedged_since.is_none() && stage.open.contains("watch"), "the API is to blame");
        // It goes on where it stopped.
        stage.seconds(100);
        stage.put(Call::Watch, "b", "101");
        assert!(stage.is_reachable() && stage.status().last_error.is_none());
        assert_eq!((stage.held(), stage.status().watch_restarts.len()), (vec!["a", "b"], 0));
    }
}

/// Lives with an API that gives no answer for a while and then a good one; how long until the proof.
fn proof_after_outage(seed: u64, outage: Duration, refuses: bool, is_gone: bool) -> (Duration, usize) {
    let mut stage = Stage::seeded(SETTINGS, seed);
    stage.take_list();
    stage.list("100", &["a"]);
    stage.take_watch(Call::Watch, "100");
    stage.fail(Call::Watch, None);
    let end = stage.now + outage;
    let asked = stage.asked_in_all;
    while stage.now < end {
        stage.pass((stage.follower.due().max(stage.now) - stage.now).min(end - stage.now));
        for (call, _) in std::mem::take(&mut stage.asked) {
            if refuses {
                stage.fail(call, None);
            }
        }
    }
    let asked = stage.asked_in_all - asked;
    assert!(stage.age() >= outage && stage.held() == ["a"]);
    // A question on its way is lost.
    while stage.age() > bounds::SILENCE {
        assert!(stage.now - end < Duration::from_mins(2), "no proof");
        stage.pass(Duration::from_millis(100));
        for (call, question) in std::mem::take(&mut stage.asked) {
            match question {
                Asked::List(_) => stage.list("900", &["a"]),
                Asked::CheckVersion => panic!("every probe brings a bookmark here"),
                Asked::Watch(version, _) if is_gone && version == "100" => stage.fail(call, Some(410)),
                Asked::Watch(..) => {
                    stage.hear(call, Heard::Opened);
                    if call == Call::Probe {
                        stage.seconds(3);
                        stage.bookmark(Call::Probe, "900");
                    }
                }
            }
        }
    }
    (stage.now - end, asked)
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
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.take_watch(Call::Probe, "100");
    stage.fail(Call::Watch, None);
    assert!(stage.open.contains("watch") && !stage.open.contains("probe"));
    stage.bookmark(Call::Watch, "101");
    assert_eq!(stage.status().last_error, None);
    stage.seconds(5);
    stage.hear(Call::Watch, Heard::Ended);
    assert_eq!(stage.take_watch(Call::Watch, "101"), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_error_on_the_watch_is_a_cut_and_a_refusal_is_an_answer() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.fail(Call::Watch, None);
    stage.next();
    stage.fail(Call::Watch, Some(403));
    assert!(stage.is_reachable());
    stage.next();
    stage.fail(Call::Watch, Some(503));
    assert!(!stage.is_reachable(), "a proxy without a server behind it");
    assert_eq!(stage.held(), ["a"]);
}

/// kube-apiserver has no bookmark to send where nothing happened, nor for a resource that is quiet while others change.
#[tokio::test(start_paused = true)]
async fn a_quiet_api_is_proven_fresh_by_its_version_and_is_not_listed() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    // Longer than a watch may be without a word from an API that has something to say.
    for _ in 0..5 {
        stage.take_watch(Call::Probe, "100");
        stage.store_is_at("100");
        assert_eq!((stage.age(), stage.status().proof.unwrap().kind), (Duration::ZERO, ProofKind::Probe));
    }
    // Others changed. The server knows by now, and says so.
    stage.take_watch(Call::Probe, "100");
    stage.store_is_at("107");
    assert_eq!(stage.take_watch(Call::Probe, "100"), Duration::ZERO);
    stage.bookmark(Call::Probe, "107");
    assert_eq!(stage.age(), Duration::ZERO);
    stage.take_watch(Call::Probe, "107");
    // A server that does not even then is not understood: what it holds is listed.
    stage.store_is_at("110");
    stage.take_watch(Call::Probe, "107");
    stage.seconds(5);
    stage.hear(Call::Probe, Heard::Ended);
    stage.take_list();
    let status = stage.status();
    assert_eq!(status.probes, [(Probed::Fresh, 6), (Probed::Unproven, 1)].into());
    assert_eq!(status.relists, [(Relist::First, 1), (Relist::Unproven, 1)].into());
    assert_eq!((status.watch_restarts.len(), status.wedged_since), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_time_is_up_is_not_taken_for_dead_because_of_a_probe() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    let near = |stage: &Stage| (stage.ends - Duration::from_secs(4)..stage.ends).contains(&stage.follower.probe_at);
    while !near(&stage) {
        stage.seconds(1);
        stage.bookmark(Call::Watch, "100");
        assert!(stage.now < stage.ends, "choose another seed");
    }
    stage.take_watch(Call::Probe, "100");
    stage.pass(stage.ends - stage.now);
    stage.hear(Call::Watch, Heard::Ended);
    let (call, asked, _) = stage.next();
    assert!(call == Call::Watch && matches!(asked, Asked::Watch(..)), "{asked:?}");
    // The new one is not answered at once, and something changes.
    stage.fail(Call::Watch, Some(503));
    stage.put(Call::Probe, "b", "120");
    stage.seconds(3);
    assert!(stage.status().wedged_since.is_none());
    assert!(!stage.status().watch_restarts.contains_key(&Restart::MissedEvents));
}

/// Whatever an event is that ends the watch: it would end each watch from the version before it.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_lost_at_once_twice_from_one_version_is_replaced_by_a_list() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.seconds(1);
    stage.fail(Call::Watch, Some(500));
    stage.take_watch(Call::Watch, "100");
    stage.hear(Call::Watch, Heard::Ended);
    assert!(stage.take_list() <= Duration::from_secs(2));
    stage.list("110", &["a", "b"]);
    stage.take_watch(Call::Watch, "110");
    assert_eq!((stage.held(), stage.status().relists[&Relist::WatchFails]), (vec!["a", "b"], 1));
    // Watches that last are opened again, and so is one that brought something.
    stage.fail(Call::Watch, None);
    stage.take_watch(Call::Watch, "110");
    stage.put(Call::Watch, "c", "111");
    stage.fail(Call::Watch, None);
    stage.take_watch(Call::Watch, "111");
    stage.pass(bounds::SHORT_WATCH);
    stage.fail(Call::Watch, None);
    stage.take_watch(Call::Watch, "111");
    assert_eq!(stage.status().relists[&Relist::WatchFails], 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_event_tells_that_names_no_object_comes_by_a_list() {
    for call in [Call::Watch, Call::Probe] {
        let mut stage = Stage::watching(SETTINGS, &["a"]);
        if call == Call::Probe {
            stage.take_watch(Call::Probe, "100");
        }
        stage.hear(call, Heard::Unreadable("the API sent an event that names no object".into()));
        assert!(stage.status().last_error.as_ref().unwrap().contains("names no object"));
        assert_eq!(stage.status().watch_restarts, [(Restart::Unreadable, 1)].into());
        assert!(stage.take_list() <= Duration::from_secs(2));
        stage.list("101", &["b"]);
        stage.take_watch(Call::Watch, "101");
        assert_eq!((stage.held(), &stage.status().last_error), (vec!["b"], &None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_pause_is_not_asked_before() {
    let asked = Some(Duration::from_secs(14));
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.fail(Call::Watch, None);
    let (call, _, _) = stage.next();
    stage.hear(call, Heard::Failed(Failure { retry_after: asked, ..failure(Some(429)) }));
    assert!((14..=21).contains(&stage.take_watch(Call::Watch, "100").as_secs()));
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    stage.hear(Call::List, Heard::Failed(Failure { retry_after: asked, ..failure(Some(503)) }));
    assert!((14..=21).contains(&stage.take_list().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_errors_are_counted_and_timed_until_a_proof() {
    let mut stage = Stage::new(SETTINGS);
    let failing = |stage: &Stage| stage.status().failing.map(|failing| (failing.error, stage.now - failing.since));
    stage.pass(Duration::ZERO);
    for round in 0..3 {
        stage.take_list();
        let since = failing(&stage).map(|(_, since)| since);
        stage.fail(Call::List, Some(403));
        assert_eq!(failing(&stage), Some((ApiError::Forbidden, since.unwrap_or_default())), "round {round}");
    }
    stage.take_list();
    stage.fail(Call::List, Some(503));
    assert_eq!(failing(&stage), Some((ApiError::Server, Duration::ZERO)), "another error is another cause");
    stage.take_list();
    stage.list("100", &["a"]);
    assert_eq!(failing(&stage), None);
    // A version that the server forgot is no error: a list follows.
    stage.take_watch(Call::Watch, "100");
    stage.fail(Call::Watch, Some(410));
    assert_eq!(failing(&stage), None);
    assert_eq!(stage.status().errors, [(ApiError::Forbidden, 3), (ApiError::Server, 1)].into());
}
