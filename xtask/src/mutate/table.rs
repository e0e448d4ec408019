//! The seeded mutations as data: which text becomes which, and what that breaks.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One mutation of the programs.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Mutation {
    /// Short name, unique.
    pub name: String,
    /// What a user would suffer: the reason why some test must fail.
    pub breaks: String,
    /// The rungs of which at least one must fail, in the order in which they are tried. An entry is a name, or `rung::part` for those of its tests
    /// whose names contain the part.
    #[serde(default = "default_tests")]
    pub tests: Vec<String>,
    /// All are applied together. Some widen a race, so that the others show.
    #[serde(rename = "edit")]
    pub edits: Vec<Edit>,
}

/// One replacement.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// Path in the checkout, under `lb-ebpf/` or `lb-common/`.
    pub file: String,
    /// Text that the file holds exactly once.
    pub find: String,
    pub replace: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default, rename = "mutation")]
    mutations: Vec<Mutation>,
}

fn default_tests() -> Vec<String> {
    // Half of the rung notices most.
    vec!["packet::ipv4".into(), "packet".into()]
}

/// Reads every `*.toml` of the folder, in the order of their names.
pub fn read(folder: &Path) -> Result<Vec<Mutation>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "toml"));
    files.sort();
    let mut all: Vec<Mutation> = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for mutation in parse(&text).with_context(|| format!("in {}", file.display()))? {
            if all.iter().any(|other| other.name == mutation.name) {
                bail!("two mutations are called {:?}; rename one", mutation.name);
            }
            all.push(mutation);
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Result<Vec<Mutation>> {
    let table: Table = toml::from_str(text)?;
    for mutation in &table.mutations {
        if mutation.edits.is_empty() || mutation.tests.is_empty() {
            bail!("mutation {:?} needs at least one edit and one test", mutation.name);
        }
        for edit in &mutation.edits {
            let inside = ["lb-ebpf/src/", "lb-common/src/"].iter().any(|folder| edit.file.starts_with(folder));
            if !inside || edit.file.contains("..") {
                bail!(
                    "mutation {:?} edits {:?}: only lb-ebpf/src and lb-common/src are copied",
                    mutation.name,
                    edit.file
                );
            }
            if edit.find == edit.replace {
                bail!("mutation {:?} replaces {:?} by itself", mutation.name, edit.find);
            }
        }
    }
    Ok(table.mutations)
}

/// Applies one edit to a copy of the checkout.
pub fn apply(root: &Path, edit: &Edit) -> Result<()> {
    let path = root.join(&edit.file);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let found = text.matches(&edit.find).count();
    if found != 1 {
        bail!(
            "{}: expected the text to be found once, found it {found} times; bring the mutation up to date:\n{}",
            edit.file,
            edit.find
        );
    }
    fs::write(&path, text.replacen(&edit.find, &edit.replace, 1))
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[mutation]]
        name = "reply keeps the backend's address"
        breaks = "the client sees an answer from an address that it never asked"
        [[mutation.edit]]
        file = "lb-ebpf/src/nat.rs"
        find = "a + b"
        replace = "a - b"
    "#;

    #[test]
    fn a_table_reads_with_its_defaults() {
        let table = parse(GOOD).expect("a good table");
        assert_eq!(table[0].tests, ["packet::ipv4", "packet"]);
        assert_eq!(table[0].edits[0].find, "a + b");
    }

    #[test]
    fn an_edit_outside_the_copied_folders_is_refused_by_name() {
        let error = parse(&GOOD.replace("lb-ebpf/src/nat.rs", "lb-userspace/src/lib.rs")).expect_err("outside");
        assert!(error.to_string().contains("reply keeps the backend's address"), "{error}");
    }

    #[test]
    fn text_must_be_found_exactly_once() {
        let root = tempfile::tempdir().expect("a scratch folder");
        fs::create_dir_all(root.path().join("lb-ebpf/src")).expect("made");
        let file = root.path().join("lb-ebpf/src/nat.rs");
        let edit = parse(GOOD).expect("good").remove(0).edits.remove(0);

        fs::write(&file, "x = a + b;").expect("written");
        apply(root.path(), &edit).expect("found once");
        assert_eq!(fs::read_to_string(&file).expect("there"), "x = a - b;");

        let error = apply(root.path(), &edit).expect_err("gone now").to_string();
        assert!(error.contains("found it 0 times"), "{error}");
        fs::write(&file, "a + b + (a + b)").expect("written");
        let error = apply(root.path(), &edit).expect_err("twice").to_string();
        assert!(error.contains("found it 2 times"), "{error}");
    }

    #[test]
    fn every_mutation_of_the_checkout_still_finds_its_text() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        for mutation in read(&root.join("tests/mutations")).expect("the tables read") {
            let copy = tempfile::tempdir().expect("a scratch folder");
            for edit in &mutation.edits {
                let target = copy.path().join(&edit.file);
                fs::create_dir_all(target.parent().expect("in a folder")).expect("made");
                if !target.exists() {
                    fs::copy(root.join(&edit.file), &target).expect("the edited file is in the checkout");
                }
                apply(copy.path(), edit).unwrap_or_else(|error| panic!("{}: {error:#}", mutation.name));
            }
        }
    }

    #[test]
    fn mutations_touch_every_file_of_the_programs() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let mutations = read(&root.join("tests/mutations")).expect("the tables read");
        let touched = |file: &str| mutations.iter().flat_map(|mutation| &mutation.edits).any(|edit| edit.file == file);
        let mut files: Vec<String> = crate::lint::files_of_the_programs(root)
            .iter()
            .map(|file| file.strip_prefix(root).expect("in the checkout").to_string_lossy().into_owned())
            .collect();
        assert!(files.len() > 40, "{files:?}");
        // The list of modules: without one of them nothing builds.
        files.retain(|file| file != "lb-ebpf/src/main.rs" && !touched(file));
        assert!(files.is_empty(), "no mutation touches {files:?}");
    }

    #[test]
    fn every_mutation_names_rungs_that_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        for mutation in read(&root.join("tests/mutations")).expect("the tables read") {
            for tests in &mutation.tests {
                let (rung, _) = crate::test::rung_and_filter(tests);
                let binary = crate::test::module_of(root, rung).expect(&mutation.name).binary;
                assert!(super::super::JUDGES.contains(&binary), "{}: the rung {rung} is in {binary}", mutation.name);
            }
        }
    }
}
