//! The layout of the maps is a promise: what a released version wrote, every later one can read.

use std::path::PathBuf;

use lb_common::abi::ABI_VERSION;
use lb_common::maps::TABLES;
use lb_datapath::layout::{Description, fates};
use lb_tests::test_run;

/// Set to write the file of a new layout version.
const WRITE: &str = "BALLAST_WRITE_LAYOUT";

fn released(version: u32) -> PathBuf {
    test_run::workspace().join(format!("tests/released/{version}.layout.json"))
}

fn all_released() -> Vec<(PathBuf, Description)> {
    let entries = std::fs::read_dir(test_run::workspace().join("tests/released")).unwrap();
    let parse = |path: PathBuf| (path.clone(), Description::parse(&std::fs::read(path).unwrap()).unwrap());
    let all: Vec<_> = entries.map(|entry| parse(entry.unwrap().path())).collect();
    assert!(!all.is_empty(), "no layout was released");
    all
}

fn of_the_programs() -> Description {
    let elf = std::fs::read(test_run::workspace().join("target/bpf/ballast.o")).unwrap();
    Description::of_object(&elf, |_| None).unwrap()
}

#[test]
fn the_records_are_those_of_their_layout_version() {
    let (path, now) = (released(ABI_VERSION), of_the_programs());
    if std::env::var_os(WRITE).is_some() {
        // A line for each map.
        let text = serde_json::to_string(&now).unwrap();
        std::fs::write(&path, text.replace("}}},\"", "}}},\n\"") + "\n").unwrap();
    }
    let text = std::fs::read(&path).unwrap_or_else(|error| {
        panic!("{}: {error}; {WRITE}=1 writes the file of a new layout version", path.display())
    });
    let promised = Description::parse(&text).unwrap();
    let names = |set: &Description| set.maps.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&now), names(&promised), "another set of maps needs another ABI_VERSION");
    for (name, map) in &now.maps {
        let promised = &promised.maps[name];
        let same = (&map.key, &map.value, map.kind, map.meaning)
            == (&promised.key, &promised.value, promised.kind, promised.meaning);
        assert!(same, "map {name} has changed: other records need another ABI_VERSION\nis {map:#?}\nwas {promised:#?}");
    }
}

/// A command line tool reads the tables that it finds. It says of a record of another size that it cannot; a map that is missing must not keep it from
/// the others.
#[test]
fn tools_of_this_version_open_the_tables_of_every_released_layout_with_the_same_records() {
    let now = of_the_programs();
    for (path, other) in all_released() {
        let sizes = |set: &Description, name: &str| set.maps.get(name).map(|map| (map.key.size, map.value.size));
        if other.maps.keys().any(|name| sizes(&other, name) != sizes(&now, name)) {
            continue;
        }
        let missing = TABLES.iter().filter(|table| table.is_plain && !other.maps.contains_key(table.name));
        for table in missing {
            assert!(table.is_younger, "{}: map {} is not there: mark it is_younger", path.display(), table.name);
        }
    }
}

#[test]
fn every_released_layout_can_follow_this_one_and_be_followed_by_it() {
    let now = of_the_programs();
    for (path, other) in all_released() {
        for (old, new) in [(&other, &now), (&now, &other)] {
            let fates = fates(old, new).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(fates.len(), new.maps.len());
        }
    }
}
