//! Each test that `docs/src/faults.md` names is in the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../docs/src/faults.md");
/// Where tests are.
const ROOTS: [&str; 3] = ["lb-common", "lb-userspace", "tests"];

/// A row of the table: the fault's number and the names of its tests.
struct Row {
    number: u32,
    tests: Vec<&'static str>,
}

fn rows() -> Vec<Row> {
    let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| ")).map(|line| line.split(" | "));
    let rows = cells.filter_map(|mut cells| {
        let number = cells.next()?.parse().ok()?;
        // Names stand in backquotes: every second part.
        let tests = cells.last()?.split('`').skip(1).step_by(2).collect();
        Some(Row { number, tests })
    });
    rows.collect()
}

/// `module::function` of every test below a folder. The module is a file's name, and that of each folder that it is in.
fn tests_below(folder: &Path, modules: &[String], found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the sources").flatten() {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let modules: Vec<String> = modules.iter().cloned().chain([stem.clone()]).collect();
        if path.is_dir() {
            if stem != "target" {
                tests_below(&path, &modules, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source file");
            for function in tests_in(&text) {
                found.extend(modules.iter().map(|module| format!("{module}::{function}")));
            }
        }
    }
}

/// Functions with an attribute that ends in `test]`: of this crate, of tokio, and in `proptest!`.
fn tests_in(text: &str) -> Vec<&str> {
    let mut is_test = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.ends_with("test]") || line.starts_with("#[tokio::test");
        } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
            found.extend(rest.split('(').next());
            is_test = false;
        } else if !line.starts_with("//") {
            is_test = false;
        }
    }
    found
}

#[test]
fn every_fault_has_tests_and_each_of_them_is_there() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeSet::new();
    for folder in ROOTS {
        tests_below(&root.join(folder), &[], &mut found);
    }
    let rows = rows();
    let numbers: Vec<u32> = rows.iter().map(|row| row.number).collect();
    assert_eq!(numbers, (1..=46).collect::<Vec<_>>());
    for Row { number, tests } in rows {
        assert!(!tests.is_empty(), "fault {number} has no test");
        let missing: Vec<_> = tests.into_iter().filter(|test| !found.contains(*test)).collect();
        assert!(missing.is_empty(), "fault {number}: no such tests: {missing:?}");
    }
}

#[test]
fn only_functions_with_the_attribute_are_tests() {
    let text = "#[test]\nfn one() {}\nfn two() {}\n#[tokio::test(start_paused = true)]\nasync fn three() {}\n    #[test]\n    // why\n    fn four(x in 0..2) {}\n#[cfg(test)]\nmod tests {}\nfn five() {}\n";
    assert_eq!(tests_in(text), ["one", "three", "four"]);
}
