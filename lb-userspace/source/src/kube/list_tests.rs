//! Lists: gone, rolled back, empty, shrunk, in pages, slow.

use super::*;

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn gone_and_compacted_is_listed_again_and_only_the_difference_changes() {
    for in_the_watch in [false, true] {
        let mut fixture = Fixture::watching(SETTINGS, &["a", "b"]);
        if in_the_watch {
            fixture.receive(
                Call::Watch,
                Received::Failed(Failure { status: Some(410), ..Failure::without_status("too old") }),
            );
        } else {
            fixture.fail(Call::Watch, Some(410));
        }
        assert_eq!(fixture.held(), ["a", "b"], "nothing goes before the list");
        assert!(fixture.take_list() <= Duration::from_secs(2));
        fixture.list("900", &["b", "c"]);
        assert_eq!(fixture.held(), ["b", "c"]);
        fixture.take_watch(Call::Watch, "900");
        assert_eq!(fixture.status().relists, [(Relist::First, 1), (Relist::Gone, 1)].into());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_in_time_is_believed_by_two_lists() {
    // The watch from a version of the future is silent, and so is the probe.
    let mut fixture = Fixture::watching(SETTINGS, &["a", "b"]);
    fixture.take_watch(Call::Probe, "100");
    fixture.store_is_at("69");
    fixture.take_list();
    fixture.list("70", &["a"]);
    assert_eq!(fixture.held(), ["a", "b"], "not by one list");
    assert!(
        fixture.status().confirming.is_some() && fixture.status().last_error.as_ref().unwrap().contains("went back")
    );
    fixture.take_list();
    fixture.list("71", &["a"]);
    assert_eq!((fixture.held(), fixture.status().confirming), (vec!["a"], None));
    fixture.take_watch(Call::Watch, "71");
    let relists = [(Relist::First, 1), (Relist::RolledBack, 2)];
    assert_eq!(fixture.status().relists, relists.into());
    assert_eq!(fixture.went_back, 2, "the others learn of it");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_overtook_our_version_after_it_went_back_is_listed_when_another_resource_noticed() {
    let mut fixture = Fixture::watching(SETTINGS, &["a", "b"]);
    let effects = fixture.watcher.went_back_elsewhere(fixture.now);
    fixture.perform(effects);
    assert_eq!((fixture.held(), fixture.went_back), (vec!["a", "b"], 0), "no echo");
    fixture.take_list();
    fixture.list("130", &["a"]);
    assert_eq!(fixture.held(), ["a"]);
    // While a list is due anyway, there is nothing more to do.
    fixture.take_watch(Call::Watch, "130");
    fixture.fail(Call::Watch, Some(410));
    assert!(fixture.watcher.went_back_elsewhere(fixture.now).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_or_bookmark_that_goes_back_is_not_followed() {
    for bookmark in [false, true] {
        let mut fixture = Fixture::watching(SETTINGS, &["a"]);
        if bookmark {
            fixture.bookmark(Call::Watch, "40");
        } else {
            fixture.delete(Call::Watch, "a", "40");
        }
        assert_eq!(fixture.held(), ["a"]);
        fixture.take_list();
        assert_eq!(fixture.status().relists[&Relist::RolledBack], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_deletes_nothing_before_a_second_one_says_the_same() {
    let mut fixture = Fixture::watching(SETTINGS, &["a"]);
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    fixture.list("200", &[]);
    assert_eq!(fixture.held(), ["a"]);
    let confirming = fixture.status().confirming.unwrap();
    assert_eq!((confirming.held, confirming.listed, confirming.since), (1, 0, fixture.now));
    // The second says something else: neither counts.
    fixture.take_list();
    fixture.list("201", &["a", "b"]);
    assert_eq!(fixture.held(), ["a"]);
    assert!(fixture.status().confirming.is_some());
    fixture.take_list();
    fixture.list("202", &[]);
    fixture.take_list();
    fixture.list("203", &[]);
    assert!(
        fixture.held().is_empty() && fixture.status().confirming.is_none() && fixture.status().last_error.is_none()
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_lost_most_is_confirmed_and_one_that_lost_some_needs_no_second() {
    let all = names(40);
    let mut fixture = Fixture::watching(SETTINGS, &refs(&all));
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    fixture.list("200", &refs(&all[..25]));
    assert_eq!(fixture.held().len(), 25);
    fixture.take_watch(Call::Watch, "200");
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    fixture.list("300", &refs(&all[..12]));
    assert_eq!(fixture.held().len(), 25, "more than half");
    // Others are missing the second time: unconfirmed again.
    fixture.take_list();
    fixture.list("301", &refs(&all[3..15]));
    assert_eq!(fixture.held().len(), 25);
    fixture.take_list();
    fixture.list("302", &refs(&all[..12]));
    fixture.take_list();
    fixture.list("303", &refs(&all[..12]));
    assert_eq!(fixture.held().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn the_first_list_needs_a_second_when_empty_while_tables_exist() {
    let mut fixture = Fixture::new(WatchSettings { expected_objects: 1, ..SETTINGS });
    fixture.take_list();
    fixture.list("5", &[]);
    assert!(fixture.status().confirming.is_some() && fixture.status().proof.is_none());
    fixture.take_list();
    fixture.list("5", &[]);
    fixture.take_watch(Call::Watch, "5");
    assert!(fixture.status().confirming.is_none());
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    fixture.list("5", &[]);
    fixture.take_watch(Call::Watch, "5");
}

#[tokio::test(start_paused = true)]
async fn the_first_list_needs_a_second_when_far_shorter_than_the_tables() {
    let all: Vec<String> = (0..30).map(|index| format!("s{index:02}")).collect();
    let mut fixture = Fixture::new(WatchSettings { expected_objects: 30, ..SETTINGS });
    fixture.take_list();
    fixture.list("5", &refs(&all[..3]));
    assert!(fixture.status().confirming.is_some() && fixture.held().is_empty(), "not believed at once");
    fixture.take_list();
    fixture.list("6", &refs(&all[..3]));
    fixture.take_watch(Call::Watch, "6");
    assert_eq!(fixture.held().len(), 3);
    let mut fixture = Fixture::new(WatchSettings { expected_objects: 30, ..SETTINGS });
    fixture.take_list();
    fixture.list("5", &refs(&all[..20]));
    fixture.take_watch(Call::Watch, "5");
}

#[tokio::test(start_paused = true)]
async fn a_partial_list_is_none_and_goes_on_where_it_broke_off() {
    let mut fixture = Fixture::watching(SETTINGS, &["a", "b", "c"]);
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    fixture.page("200", &["a"], Some("next"));
    assert_eq!(fixture.next().1, RequestKind::List(Some("next".into())));
    fixture.fail(Call::List, None);
    assert_eq!(fixture.held(), ["a", "b", "c"]);
    assert_eq!(fixture.next().1, RequestKind::List(Some("next".into())), "the same page");
    fixture.list("200", &["b"]);
    assert_eq!(fixture.held(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_next_page_is_gone_starts_over() {
    let mut fixture = Fixture::watching(SETTINGS, &["a", "b"]);
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    fixture.page("200", &["x"], Some("next"));
    fixture.next();
    fixture.fail(Call::List, Some(410));
    fixture.take_list();
    fixture.list("210", &["b"]);
    assert_eq!(fixture.held(), ["b"], "nothing of the broken list");
}

#[tokio::test(start_paused = true)]
async fn a_slow_list_that_goes_on_is_not_cut_off_and_one_that_hangs_is() {
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    for _ in 0..60 {
        fixture.seconds(10);
        fixture.receive(Call::List, Received::Progress);
    }
    assert!(fixture.asked.is_empty() && fixture.status().last_error.is_none());
    fixture.pass(bounds::LIST_SILENCE_LIMIT);
    assert!(!fixture.is_reachable() && fixture.status().last_error.is_some());
    fixture.take_list();
}

#[tokio::test(start_paused = true)]
async fn a_list_without_a_version_is_not_taken() {
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    fixture.list("", &["a"]);
    assert!(fixture.held().is_empty() && fixture.status().last_error.is_some());
    fixture.take_list();
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_refused_again_and_again_is_not_asked_for_without_end() {
    // As a store does that went back in time in the middle of a list: it does not know the version of the rest yet.
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    fixture.page("900", &["a"], Some("rest"));
    let mut asked = fixture.next();
    for _ in 0..20 {
        if asked.1 == RequestKind::List(None) {
            break;
        }
        fixture.fail(Call::List, Some(500));
        asked = fixture.next();
        assert!(asked.2 > Duration::ZERO, "not in a loop");
    }
    assert_eq!(asked.1, RequestKind::List(None));
    fixture.list("70", &["b"]);
    assert_eq!(fixture.held(), ["b"], "nothing of the list that broke off");
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_where_it_was_when_the_api_was_only_away_or_busy() {
    let mut fixture = Fixture::new(SETTINGS);
    fixture.take_list();
    fixture.page("900", &["a"], Some("rest"));
    for status in [None, Some(429), Some(503)].into_iter().cycle().take(30) {
        assert_eq!(fixture.next().1, RequestKind::List(Some("rest".into())));
        fixture.fail(Call::List, status);
    }
}
