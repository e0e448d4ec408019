//! The comparison with a complete list: what is a difference, what is only on its way.

use super::*;

const EVERY: WatchSettings = WatchSettings {
    patience: 1,
    silence: bounds::SILENCE,
    compare_interval: Some(bounds::COMPARE_INTERVAL),
    expected_objects: 0,
    may_be_unknown: false,
};

/// Waits for the first question of a comparison, while the watch is alive.
fn begun(fixture: &mut Fixture) -> Duration {
    let begin = fixture.now;
    loop {
        fixture.seconds(5);
        if let Some((call, asked)) = fixture.asked.pop() {
            assert_eq!((call, asked), (Call::List, RequestKind::List(None)));
            return fixture.now - begin;
        }
        let version = fixture.watcher.version.clone().unwrap().to_string();
        if fixture.now >= fixture.ends {
            fixture.receive(Call::Watch, Received::Ended);
            fixture.take_watch(Call::Watch, &version);
        }
        fixture.bookmark(Call::Watch, &version);
    }
}

fn versions(fixture: &mut Fixture, list: &str, objects: &[(&str, &str)]) {
    let items = objects.iter().map(|(name, version)| object(name, version)).collect();
    let page = Page { items, version: Version::parse(Some(list)), token: None, bytes: 0 };
    fixture.receive(Call::List, Received::Page(page));
}

#[tokio::test(start_paused = true)]
async fn first_comparisons_of_all_nodes_are_spread_over_all_of_the_interval() {
    let first = lb_seed::of_run();
    let mut sixths = [0; 6];
    for seed in first..first + 300 {
        let mut fixture = Fixture::seeded(EVERY, seed);
        fixture.take_list();
        fixture.list("100", &["a"]);
        fixture.take_watch(Call::Watch, "100");
        let after = begun(&mut fixture).as_secs() * 6 / bounds::COMPARE_INTERVAL.as_secs();
        sixths[usize::try_from(after.min(5)).unwrap()] += 1;
    }
    // On average 50.
    assert!(sixths.iter().all(|nodes| (15..=95).contains(nodes)), "{sixths:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_equal_is_a_proof_and_the_next_comparison_comes_in_its_time() {
    let mut fixture = Fixture::watching(EVERY, &["a"]);
    for round in 1..=3 {
        let after = begun(&mut fixture);
        let least = if round == 1 { Duration::ZERO } else { Duration::from_mins(48) };
        assert!((least..=Duration::from_secs(72 * 60 + 5)).contains(&after), "{after:?}");
        versions(&mut fixture, "120", &[("a", "50")]);
        assert_eq!((fixture.status().compares, fixture.status().differences.len()), (round, 0));
        assert_eq!(fixture.status().proof.unwrap().kind, ProofKind::List);
    }
    assert!(fixture.open.contains("watch") && fixture.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn missing_stale_and_extra_objects_are_counted_and_repaired_after_a_second_list() {
    let mut fixture = Fixture::watching(EVERY, &["same", "stale", "extra"]);
    begun(&mut fixture);
    let list = [("same", "50"), ("stale", "60"), ("missing", "61")];
    versions(&mut fixture, "120", &list);
    assert_eq!(fixture.held(), ["extra", "same", "stale"], "not by one list");
    assert_eq!(fixture.take_list(), bounds::COMPARE_GRACE);
    versions(&mut fixture, "121", &list);
    assert_eq!(fixture.held(), ["missing", "same", "stale"]);
    let kinds = [(Difference::Missing, 1), (Difference::Stale, 1), (Difference::Extra, 1)];
    assert_eq!(fixture.status().differences, kinds.into());
    // The watch that did not bring this is replaced.
    assert_eq!(fixture.status().watch_restarts, [(Restart::Compare, 1)].into());
    fixture.take_watch(Call::Watch, "100");
    begun(&mut fixture);
    versions(&mut fixture, "130", &list);
    assert_eq!((fixture.status().compares, fixture.status().differences.len()), (2, 3), "repaired");
}

#[tokio::test(start_paused = true)]
async fn what_the_watch_brings_a_moment_later_is_no_difference() {
    let mut fixture = Fixture::watching(EVERY, &["a", "gone"]);
    begun(&mut fixture);
    // Changes before and after the list was made.
    fixture.put(Call::Watch, "later", "130");
    versions(&mut fixture, "120", &[("a", "110"), ("new", "115"), ("slow", "116")]);
    fixture.put(Call::Watch, "a", "131");
    fixture.delete(Call::Watch, "gone", "132");
    fixture.put(Call::Watch, "new", "133");
    fixture.take_list();
    // One came before the second list only.
    fixture.put(Call::Watch, "slow", "134");
    versions(&mut fixture, "134", &[("a", "131"), ("new", "133"), ("slow", "134"), ("later", "130")]);
    assert_eq!((fixture.status().compares, fixture.status().differences.len()), (1, 0));
    assert_eq!(fixture.held(), ["a", "later", "new", "slow"]);
    assert!(fixture.status().watch_restarts.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_api_that_lies_empty_once_repairs_nothing() {
    let mut fixture = Fixture::watching(EVERY, &["a", "b"]);
    begun(&mut fixture);
    versions(&mut fixture, "120", &[]);
    fixture.take_list();
    versions(&mut fixture, "121", &[("a", "50"), ("b", "50")]);
    assert_eq!((fixture.held(), fixture.status().differences.len()), (vec!["a", "b"], 0));
}

#[tokio::test(start_paused = true)]
async fn a_comparison_finds_a_store_that_went_back() {
    let mut fixture = Fixture::watching(EVERY, &["a", "b"]);
    begun(&mut fixture);
    versions(&mut fixture, "60", &[("a", "50")]);
    fixture.take_list();
    fixture.list("61", &["a"]);
    assert_eq!(fixture.held(), ["a", "b"]);
    fixture.take_list();
    fixture.list("62", &["a"]);
    assert_eq!(fixture.held(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_comparison_that_fails_changes_nothing_and_comes_again() {
    let mut fixture = Fixture::watching(EVERY, &["a"]);
    begun(&mut fixture);
    fixture.fail(Call::List, Some(500));
    assert!(fixture.status().last_error.as_ref().unwrap().starts_with("comparison"));
    assert!(begun(&mut fixture) <= Duration::from_secs(65));
    assert_eq!((fixture.held(), fixture.status().compares), (vec!["a"], 0));
    assert!(fixture.open.contains("watch"));
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_the_watch_is_cut_off_is_no_difference() {
    let mut fixture = Fixture::watching(EVERY, &["a"]);
    begun(&mut fixture);
    fixture.fail(Call::Watch, None);
    assert!(!fixture.open.contains("list"), "without a watch there is nothing to compare");
    fixture.seconds(15);
    assert!(fixture.status().wedged_since.is_none() && fixture.status().differences.is_empty());
    assert!(fixture.asked.iter().all(|(call, _)| *call == Call::Watch), "{:?}", fixture.asked);
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_object_without_a_name_deletes_nothing() {
    let mut fixture = Fixture::watching(EVERY, &["a", "b"]);
    let list = |fixture: &mut Fixture, version: &str| {
        let items = vec![object("a", "50"), Item::nameless(1)];
        fixture.receive(
            Call::List,
            Received::Page(Page { items, version: Version::parse(Some(version)), token: None, bytes: 0 }),
        );
    };
    begun(&mut fixture);
    list(&mut fixture, "120");
    fixture.take_list();
    list(&mut fixture, "121");
    assert_eq!(fixture.held(), ["", "a", "b"], "the one without a name is reported");
    fixture.take_watch(Call::Watch, "100");
    // The next complete list finds both: what has gone, and the one without a name.
    begun(&mut fixture);
    versions(&mut fixture, "130", &[("a", "50")]);
    fixture.take_list();
    versions(&mut fixture, "131", &[("a", "50")]);
    assert_eq!(fixture.held(), ["a"]);
    // A list that is no comparison shows such an object, too.
    fixture.take_watch(Call::Watch, "100");
    fixture.fail(Call::Watch, Some(410));
    fixture.take_list();
    list(&mut fixture, "140");
    fixture.take_watch(Call::Watch, "140");
    assert_eq!(fixture.status().objects, 2);
}
