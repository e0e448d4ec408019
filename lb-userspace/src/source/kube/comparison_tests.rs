//! The comparison with a complete list: what is a difference, what is only on its way.

use super::*;

const EVERY: Settings = Settings {
    patience: 1,
    silence: bounds::SILENCE,
    compare_interval: Some(bounds::COMPARE_INTERVAL),
    expected_objects: 0,
    may_be_unknown: false,
};

/// Waits for the first question of a comparison, while the watch is alive.
fn begun(stage: &mut Stage) -> Duration {
    let begin = stage.now;
    loop {
        stage.seconds(5);
        if let Some((call, asked)) = stage.asked.pop() {
            assert_eq!((call, asked), (Call::List, Asked::List(None)));
            return stage.now - begin;
        }
        let version = stage.follower.version.clone().unwrap().to_string();
        if stage.now >= stage.ends {
            stage.hear(Call::Watch, Heard::Ended);
            stage.take_watch(Call::Watch, &version);
        }
        stage.bookmark(Call::Watch, &version);
    }
}

fn versions(stage: &mut Stage, list: &str, objects: &[(&str, &str)]) {
    let items = objects.iter().map(|(name, version)| object(name, version)).collect();
    let page = Page { items, version: Version::parse(Some(list)), token: None, bytes: 0 };
    stage.hear(Call::List, Heard::Page(page));
}

#[tokio::test(start_paused = true)]
async fn what_is_equal_is_a_proof_and_the_next_comparison_comes_in_its_time() {
    let mut stage = Stage::watching(EVERY, &["a"]);
    for round in 1..=3 {
        let after = begun(&mut stage);
        assert!((Duration::from_mins(4)..=Duration::from_secs(365)).contains(&after), "{after:?}");
        versions(&mut stage, "120", &[("a", "50")]);
        assert_eq!((stage.status().compares, stage.status().differences.len()), (round, 0));
        assert_eq!(stage.status().proof.unwrap().kind, ProofKind::List);
    }
    assert!(stage.open.contains("watch") && stage.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn missing_stale_and_extra_objects_are_counted_and_repaired_after_a_second_list() {
    let mut stage = Stage::watching(EVERY, &["same", "stale", "extra"]);
    begun(&mut stage);
    let list = [("same", "50"), ("stale", "60"), ("missing", "61")];
    versions(&mut stage, "120", &list);
    assert_eq!(stage.held(), ["extra", "same", "stale"], "not by one list");
    assert_eq!(stage.take_list(), bounds::COMPARE_GRACE);
    versions(&mut stage, "121", &list);
    assert_eq!(stage.held(), ["missing", "same", "stale"]);
    let kinds = [(Difference::Missing, 1), (Difference::Stale, 1), (Difference::Extra, 1)];
    assert_eq!(stage.status().differences, kinds.into());
    // The watch that did not bring this is replaced.
    assert_eq!(stage.status().watch_restarts, [(Restart::Compare, 1)].into());
    stage.take_watch(Call::Watch, "100");
    begun(&mut stage);
    versions(&mut stage, "130", &list);
    assert_eq!((stage.status().compares, stage.status().differences.len()), (2, 3), "repaired");
}

#[tokio::test(start_paused = true)]
async fn what_the_watch_brings_a_moment_later_is_no_difference() {
    let mut stage = Stage::watching(EVERY, &["a", "gone"]);
    begun(&mut stage);
    // Changes before and after the list was made.
    stage.put(Call::Watch, "later", "130");
    versions(&mut stage, "120", &[("a", "110"), ("new", "115"), ("slow", "116")]);
    stage.put(Call::Watch, "a", "131");
    stage.delete(Call::Watch, "gone", "132");
    stage.put(Call::Watch, "new", "133");
    stage.take_list();
    // One came before the second list only.
    stage.put(Call::Watch, "slow", "134");
    versions(&mut stage, "134", &[("a", "131"), ("new", "133"), ("slow", "134"), ("later", "130")]);
    assert_eq!((stage.status().compares, stage.status().differences.len()), (1, 0));
    assert_eq!(stage.held(), ["a", "later", "new", "slow"]);
    assert!(stage.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_api_that_lies_empty_once_repairs_nothing() {
    let mut stage = Stage::watching(EVERY, &["a", "b"]);
    begun(&mut stage);
    versions(&mut stage, "120", &[]);
    stage.take_list();
    versions(&mut stage, "121", &[("a", "50"), ("b", "50")]);
    assert_eq!((stage.held(), stage.status().differences.len()), (vec!["a", "b"], 0));
}

#[tokio::test(start_paused = true)]
async fn a_comparison_finds_a_store_that_went_back() {
    let mut stage = Stage::watching(EVERY, &["a", "b"]);
    begun(&mut stage);
    versions(&mut stage, "60", &[("a", "50")]);
    stage.take_list();
    stage.list("61", &["a"]);
    assert_eq!(stage.held(), ["a", "b"]);
    stage.take_list();
    stage.list("62", &["a"]);
    assert_eq!(stage.held(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_comparison_that_fails_changes_nothing_and_comes_again() {
    let mut stage = Stage::watching(EVERY, &["a"]);
    begun(&mut stage);
    stage.fail(Call::List, Some(500));
    assert!(stage.status().last_error.as_ref().unwrap().starts_with("comparison"));
    assert!(begun(&mut stage) <= Duration::from_secs(65));
    assert_eq!((stage.held(), stage.status().compares), (vec!["a"], 0));
    assert!(stage.open.contains("watch"));
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_the_watch_is_cut_off_is_no_difference() {
    let mut stage = Stage::watching(EVERY, &["a"]);
    begun(&mut stage);
    stage.fail(Call::Watch, None);
    assert!(!stage.open.contains("list"), "without a watch there is nothing to compare");
    stage.seconds(15);
    assert!(stage.status().wedged_since.is_none() && stage.status().differences.is_empty());
    assert!(stage.asked.iter().all(|(call, _)| *call == Call::Watch), "{:?}", stage.asked);
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_object_without_a_name_deletes_nothing() {
    let mut stage = Stage::watching(EVERY, &["a", "b"]);
    let list = |stage: &mut Stage, version: &str| {
        let items = vec![object("a", "50"), Item::nameless(1)];
        stage.hear(
            Call::List,
            Heard::Page(Page { items, version: Version::parse(Some(version)), token: None, bytes: 0 }),
        );
    };
    begun(&mut stage);
    list(&mut stage, "120");
    stage.take_list();
    list(&mut stage, "121");
    assert_eq!(stage.held(), ["", "a", "b"], "the one without a name is told of");
    stage.take_watch(Call::Watch, "100");
    // The next complete list finds both: what has gone, and the one without a name.
    begun(&mut stage);
    versions(&mut stage, "130", &[("a", "50")]);
    stage.take_list();
    versions(&mut stage, "131", &[("a", "50")]);
    assert_eq!(stage.held(), ["a"]);
    // The same of a list that is no comparison.
    stage.take_watch(Call::Watch, "100");
    stage.fail(Call::Watch, Some(410));
    stage.take_list();
    list(&mut stage, "140");
    stage.take_watch(Call::Watch, "140");
    assert_eq!(stage.status().objects, 2);
}
