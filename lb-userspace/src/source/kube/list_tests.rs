//! Lists: gone, rolled back, empty, shrunk, in pages, slow.

use super::*;

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn gone_and_compacted_is_listed_again_and_only_the_difference_changes() {
    for in_the_watch in [false, true] {
        let mut stage = Stage::watching(SETTINGS, &["a", "b"]);
        if in_the_watch {
            stage.hear(Call::Watch, Heard::Failed(Failure { status: Some(410), ..Failure::without_status("too old") }));
        } else {
            stage.fail(Call::Watch, Some(410));
        }
        assert_eq!(stage.held(), ["a", "b"], "nothing goes before the list");
        assert!(stage.take_list() <= Duration::from_secs(2));
        stage.list("900", &["b", "c"]);
        assert_eq!(stage.held(), ["b", "c"]);
        stage.take_watch(Call::Watch, "900");
        assert_eq!(stage.status().relists, [(Relist::First, 1), (Relist::Gone, 1)].into());
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_in_time_is_believed_by_two_lists() {
    // The watch from a version of the future is silent, and so is the probe.
    let mut stage = Stage::watching(SETTINGS, &["a", "b"]);
    stage.take_watch(Call::Probe, "100");
    stage.store_is_at("69");
    stage.take_list();
    stage.list("70", &["a"]);
    assert_eq!(stage.held(), ["a", "b"], "not by one list");
    assert!(stage.status().confirming.is_some() && stage.status().last_error.as_ref().unwrap().contains("went back"));
    stage.take_list();
    stage.list("71", &["a"]);
    assert_eq!((stage.held(), stage.status().confirming), (vec!["a"], None));
    stage.take_watch(Call::Watch, "71");
    let relists = [(Relist::First, 1), (Relist::RolledBack, 2)];
    assert_eq!(stage.status().relists, relists.into());
    assert_eq!(stage.went_back, 2, "the others hear of it");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_overtook_our_version_after_it_went_back_is_listed_when_another_resource_noticed() {
    let mut stage = Stage::watching(SETTINGS, &["a", "b"]);
    let effects = stage.follower.went_back_elsewhere(stage.now);
    stage.perform(effects);
    assert_eq!((stage.held(), stage.went_back), (vec!["a", "b"], 0), "no echo");
    stage.take_list();
    stage.list("130", &["a"]);
    assert_eq!(stage.held(), ["a"]);
    // While a list is due anyway, there is nothing more to do.
    stage.take_watch(Call::Watch, "130");
    stage.fail(Call::Watch, Some(410));
    assert!(stage.follower.went_back_elsewhere(stage.now).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_or_bookmark_that_goes_back_is_not_followed() {
    for bookmark in [false, true] {
        let mut stage = Stage::watching(SETTINGS, &["a"]);
        if bookmark {
            stage.bookmark(Call::Watch, "40");
        } else {
            stage.delete(Call::Watch, "a", "40");
        }
        assert_eq!(stage.held(), ["a"]);
        stage.take_list();
        assert_eq!(stage.status().relists[&Relist::RolledBack], 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_deletes_nothing_before_a_second_one_says_the_same() {
    let mut stage = Stage::watching(SETTINGS, &["a"]);
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    stage.list("200", &[]);
    assert_eq!(stage.held(), ["a"]);
    let confirming = stage.status().confirming.unwrap();
    assert_eq!((confirming.held, confirming.listed, confirming.since), (1, 0, stage.now));
    // The second says something else: neither counts.
    stage.take_list();
    stage.list("201", &["a", "b"]);
    assert_eq!(stage.held(), ["a"]);
    assert!(stage.status().confirming.is_some());
    stage.take_list();
    stage.list("202", &[]);
    stage.take_list();
    stage.list("203", &[]);
    assert!(stage.held().is_empty() && stage.status().confirming.is_none() && stage.status().last_error.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_lost_most_is_confirmed_and_one_that_lost_some_is_not_doubted() {
    let all = names(40);
    let mut stage = Stage::watching(SETTINGS, &refs(&all));
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    stage.list("200", &refs(&all[..25]));
    assert_eq!(stage.held().len(), 25);
    stage.take_watch(Call::Watch, "200");
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    stage.list("300", &refs(&all[..12]));
    assert_eq!(stage.held().len(), 25, "more than half");
    // Others are missing the second time: a new doubt.
    stage.take_list();
    stage.list("301", &refs(&all[3..15]));
    assert_eq!(stage.held().len(), 25);
    stage.take_list();
    stage.list("302", &refs(&all[..12]));
    stage.take_list();
    stage.list("303", &refs(&all[..12]));
    assert_eq!(stage.held().len(), 12);
}

#[tokio::test(start_paused = true)]
async fn the_first_list_is_doubted_when_empty_while_tables_exist() {
    let mut stage = Stage::new(Settings { expected_objects: 1, ..SETTINGS });
    stage.take_list();
    stage.list("5", &[]);
    assert!(stage.status().confirming.is_some() && stage.status().proof.is_none());
    stage.take_list();
    stage.list("5", &[]);
    stage.take_watch(Call::Watch, "5");
    assert!(stage.status().confirming.is_none());
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    stage.list("5", &[]);
    stage.take_watch(Call::Watch, "5");
}

#[tokio::test(start_paused = true)]
async fn the_first_list_is_doubted_when_far_shorter_than_the_tables() {
    let all: Vec<String> = (0..30).map(|index| format!("s{index:02}")).collect();
    let mut stage = Stage::new(Settings { expected_objects: 30, ..SETTINGS });
    stage.take_list();
    stage.list("5", &refs(&all[..3]));
    assert!(stage.status().confirming.is_some() && stage.held().is_empty(), "not believed at once");
    stage.take_list();
    stage.list("6", &refs(&all[..3]));
    stage.take_watch(Call::Watch, "6");
    assert_eq!(stage.held().len(), 3);
    let mut stage = Stage::new(Settings { expected_objects: 30, ..SETTINGS });
    stage.take_list();
    stage.list("5", &refs(&all[..20]));
    stage.take_watch(Call::Watch, "5");
}

#[tokio::test(start_paused = true)]
async fn a_partial_list_is_none_and_goes_on_where_it_broke_off() {
    let mut stage = Stage::watching(SETTINGS, &["a", "b", "c"]);
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    stage.page("200", &["a"], Some("next"));
    assert_eq!(stage.next().1, Asked::List(Some("next".into())));
    stage.fail(Call::List, None);
    assert_eq!(stage.held(), ["a", "b", "c"]);
    assert_eq!(stage.next().1, Asked::List(Some("next".into())), "the same page");
    stage.list("200", &["b"]);
    assert_eq!(stage.held(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_next_page_is_gone_starts_over() {
    let mut stage = Stage::watching(SETTINGS, &["a", "b"]);
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    stage.page("200", &["x"], Some("next"));
    stage.next();
    stage.fail(Call::List, Some(410));
    stage.take_list();
    stage.list("210", &["b"]);
    assert_eq!(stage.held(), ["b"], "nothing of the broken list");
}

#[tokio::test(start_paused = true)]
async fn a_slow_list_that_goes_on_is_not_cut_off_and_one_that_hangs_is() {
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    for _ in 0..60 {
        stage.seconds(10);
        stage.hear(Call::List, Heard::Progress);
    }
    assert!(stage.asked.is_empty() && stage.status().last_error.is_none());
    stage.pass(bounds::LIST_SILENCE_LIMIT);
    assert!(!stage.is_reachable() && stage.status().last_error.is_some());
    stage.take_list();
}

#[tokio::test(start_paused = true)]
async fn a_list_without_a_version_is_not_taken() {
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    stage.list("", &["a"]);
    assert!(stage.held().is_empty() && stage.status().last_error.is_some());
    stage.take_list();
}

#[tokio::test(start_paused = true)]
async fn a_page_that_is_refused_again_and_again_is_not_asked_for_without_end() {
    // As a store does that went back in time in the middle of a list: it does not know the version of the rest yet.
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    stage.page("900", &["a"], Some("rest"));
    let mut asked = stage.next();
    for _ in 0..20 {
        if asked.1 == Asked::List(None) {
            break;
        }
        stage.fail(Call::List, Some(500));
        asked = stage.next();
        assert!(asked.2 > Duration::ZERO, "not in a loop");
    }
    assert_eq!(asked.1, Asked::List(None));
    stage.list("70", &["b"]);
    assert_eq!(stage.held(), ["b"], "nothing of the list that broke off");
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_where_it_was_when_the_api_was_only_away_or_busy() {
    let mut stage = Stage::new(SETTINGS);
    stage.take_list();
    stage.page("900", &["a"], Some("rest"));
    for status in [None, Some(429), Some(503)].into_iter().cycle().take(30) {
        assert_eq!(stage.next().1, Asked::List(Some("rest".into())));
        stage.fail(Call::List, status);
    }
}
