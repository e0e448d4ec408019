use lb_common::abi::map_name as name;

use super::*;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const LRU: u32 = 9;
const RING: u32 = 27;

fn map(kind: u32, max_entries: u32, key: &str, value: &str) -> MapDescription {
    let record = |text: &str| -> Record { serde_json::from_str(text).unwrap() };
    MapDescription { kind, max_entries, flags: 0, meaning: 0, key: record(key), value: record(value) }
}

const WORD: &str = r#"{"size":4,"fields":{"":"u32@0"}}"#;
const KEY: &str = r#"{"size":8,"fields":{"src":"u8[4]@0","src_port":"u16@4","pad":"u16@6"}}"#;
const FLOW: &str = r#"{"size":8,"fields":{"tag":"u32@0","backend":"u32@4"}}"#;
const CONFIG: &str = r#"{"size":8,"fields":{"abi_version":"u32@0","programmed_ds":"u32@4"}}"#;

fn set() -> Description {
    let mut set = Description::parse(br#"{"format":1,"abi":10,"maps":{}}"#).unwrap();
    let mut add = |name: &str, map| drop(set.maps.insert(name.to_owned(), map));
    for family in Family::ALL {
        let [flows, udp_flows, half_open] = family.flow_tables();
        add(flows, map(HASH, 64, KEY, FLOW));
        add(udp_flows, map(LRU, 64, KEY, FLOW));
        add(half_open, map(LRU, 64, KEY, FLOW));
    }
    add(name::SLOTS, map(ARRAY, 64, WORD, FLOW));
    add(name::HEALTH4, map(ARRAY, 64, WORD, FLOW));
    add(name::SOCKETS4, map(LRU, 64, KEY, FLOW));
    add(name::STATS, map(HASH, 64, WORD, FLOW));
    add(name::EVENTS, map(RING, 4096, WORD, FLOW));
    add(name::CONFIG, map(ARRAY, 1, WORD, CONFIG));
    add(name::LAYOUT, map(ARRAY, 1, WORD, FLOW));
    set
}

fn change(map: &str, change: impl FnOnce(&mut MapDescription)) -> Description {
    let mut new = set();
    change(new.maps.get_mut(map).unwrap());
    new
}

/// The field is another one now; `None`: it is gone.
fn set_field(record: &mut Record, field: &str, place: Option<&str>) {
    match place {
        Some(place) => record.fields.insert(field.to_owned(), place.parse().unwrap()),
        None => record.fields.remove(field),
    };
}

fn with_field(map: &str, field: &str, place: &str) -> Description {
    change(map, |map| {
        set_field(&mut map.value, field, Some(place));
        map.value.size += 8;
    })
}

#[test]
fn what_is_equal_is_shared_but_for_what_a_set_says_about_itself() {
    for (map, fate) in fates(&set(), &set()).unwrap() {
        let expected = match map.as_str() {
            name::CONFIG => Fate::Copy,
            name::LAYOUT => Fate::Begin,
            _ => Fate::Share,
        };
        assert_eq!(fate, expected, "{map}");
    }
}

#[test]
fn all_flow_tables_of_a_family_move_if_one_differs() {
    for differing in Family::V4.flow_tables() {
        let found = fates(&set(), &change(differing, |map| map.max_entries *= 2)).unwrap();
        assert!(Family::V4.flow_tables().iter().all(|name| found[*name] == Fate::Flows), "{differing}");
        assert!(Family::V6.flow_tables().iter().all(|name| found[*name] == Fate::Share), "{differing}");
    }
}

#[test]
fn what_differs_is_copied_as_its_writers_need_it() {
    for (map, fate) in [
        (name::SLOTS, Fate::Copy),
        (name::HEALTH4, Fate::Copy),
        (name::SOCKETS4, Fate::CopyTwice),
        (name::STATS, Fate::Copy),
        (name::EVENTS, Fate::Begin),
    ] {
        assert_eq!(fates(&set(), &with_field(map, "added", "u32@8")).unwrap()[map], fate, "{map}: a field more");
        assert_eq!(fates(&set(), &change(map, |map| map.max_entries *= 2)).unwrap()[map], fate, "{map}: larger");
    }
}

#[test]
fn a_map_that_is_new_begins_and_one_that_is_gone_is_left() {
    let mut fewer = set();
    fewer.maps.remove(name::SLOTS);
    assert_eq!(fates(&fewer, &set()).unwrap()[name::SLOTS], Fate::Begin);
    assert!(!fates(&set(), &fewer).unwrap().contains_key(name::SLOTS));
}

#[test]
fn what_cannot_be_told_is_refused_by_map_and_field() {
    let key = change(name::FLOWS4, |map| set_field(&mut map.key, "src_port", Some("u32@4")));
    let meaning = change(name::SLOTS, |map| map.meaning = 1);
    let kind = change(name::SLOTS, |map| map.kind = HASH);
    let bytes = change(name::SLOTS, |map| set_field(&mut map.value, "backend", Some("u8[16]@4")));
    let fewer = change(name::SOCKETS4, |map| set_field(&mut map.key, "src_port", None));
    for (new, map, reason) in [
        (key, "flows4", "\"src_port\" was u16@4 and is u32@4"),
        (meaning, "slots", "meaning 0 and 1"),
        (kind, "slots", "another type"),
        (bytes, "slots", "\"backend\" was u32@4 and is u8[16]@4"),
        (fewer, "sockets4", "\"src_port\" was u16@4 and is nothing"),
    ] {
        let text = fates(&set(), &new).unwrap_err().to_string();
        assert!(text.contains(map) && text.contains(reason) && text.contains("ballast cleanup"), "{text}");
    }
}

#[test]
fn counters_that_cannot_be_converted_begin_anew() {
    let kind = change(name::STATS, |map| map.kind = ARRAY);
    assert_eq!(fates(&set(), &kind).unwrap()[name::STATS], Fate::Begin);
}
