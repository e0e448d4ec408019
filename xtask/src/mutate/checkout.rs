//! The copy of the checkout that mutations are applied to: the programs, the crate that they share, and its tests.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::table::{self, Edit};

/// `fuzz` holds the corpus of tests of lb-common and one of their bodies, `tests/seed` is a crate that they need.
const FOLDERS: [&str; 4] = ["lb-ebpf", "lb-common", "fuzz", "tests/seed"];
/// What all packages of the workspace are built from.
const WHOLE: [&str; 6] = ["lb-ebpf", "lb-common", "lb-userspace", "fuzz", "tests", "xtask"];

/// A copy of the checkout, whose workspace is lb-common alone unless it is a whole one.
#[derive(Debug)]
pub struct Checkout {
    pub root: PathBuf,
}

impl Checkout {
    /// Makes the copy in the folder `copy`, or brings it back to what the checkout holds. Equal files keep their times, so that cargo builds no more
    /// than a mutation changes.
    pub fn restore_to(root: &Path, copy: PathBuf) -> Result<Self> {
        for folder in FOLDERS {
            restore_folder(&root.join(folder), &copy.join(folder))?;
        }
        restore_file(&fs::read(root.join("Cargo.lock")).context("cannot read Cargo.lock")?, &copy.join("Cargo.lock"))?;
        restore_file(manifest(root)?.as_bytes(), &copy.join("Cargo.toml"))?;
        Ok(Self { root: copy })
    }

    /// [`Self::restore_to`] with every package of the workspace, for edits that the agent is built with.
    pub fn restore_whole_to(root: &Path, copy: PathBuf) -> Result<Self> {
        for folder in WHOLE {
            restore_folder(&root.join(folder), &copy.join(folder))?;
        }
        for file in ["Cargo.lock", "Cargo.toml"] {
            restore_file(&fs::read(root.join(file)).with_context(|| format!("cannot read {file}"))?, &copy.join(file))?;
        }
        Ok(Self { root: copy })
    }

    /// Applies all edits of a mutation.
    pub fn mutate(&self, edits: &[Edit]) -> Result<()> {
        edits.iter().try_for_each(|edit| table::apply(&self.root, edit))
    }
}

/// The workspace's manifest: lb-common inherits from it.
fn manifest(root: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).context("cannot read the workspace's Cargo.toml")?;
    let mut manifest: toml::Table = text.parse().context("the workspace's Cargo.toml is not TOML")?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut).context("no [workspace]")?;
    workspace.insert("members".into(), vec!["lb-common"].into());
    workspace.remove("default-members");
    workspace.insert("exclude".into(), vec!["lb-ebpf", "fuzz"].into());
    // Profiles name packages that are no members here.
    manifest.remove("profile");
    Ok(manifest.to_string())
}

fn restore_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let mut names: BTreeSet<OsString> = BTreeSet::new();
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        if entry.file_name() == "target" {
            continue;
        }
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        names.insert(entry.file_name());
        if entry.file_type()?.is_dir() {
            restore_folder(&source, &target)?;
        } else {
            let bytes = fs::read(&source).with_context(|| format!("cannot read {}", source.display()))?;
            restore_file(&bytes, &target)?;
        }
    }
    for entry in fs::read_dir(to).with_context(|| format!("cannot read {}", to.display()))? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            remove(&entry)?;
        }
    }
    Ok(())
}

/// Removes a file, or a folder with all that it holds.
pub fn remove(entry: &DirEntry) -> Result<()> {
    let path = entry.path();
    let removed = if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

fn restore_file(bytes: &[u8], target: &Path) -> Result<()> {
    if fs::read(target).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    fs::write(target, bytes).with_context(|| format!("cannot write {}", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_holds_the_programs_and_a_workspace_of_lb_common_alone() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let copy = scratch.path().join("checkout");
        Checkout::restore_to(root, copy.clone()).expect("copied");
        assert!(copy.join("lb-ebpf/Cargo.lock").exists() && copy.join("lb-common/src/abi/mod.rs").exists());
        assert!(copy.join("fuzz/corpus").exists() && !copy.join("lb-ebpf/target").exists());
        let manifest = fs::read_to_string(copy.join("Cargo.toml")).expect("written");
        assert!(manifest.contains("members = [\"lb-common\"]"), "{manifest}");
        assert!(manifest.contains("edition"), "what lb-common inherits is there: {manifest}");
        let tree = duct::cmd!("cargo", "tree", "--offline", "-p", "lb-common").dir(&copy).stderr_to_stdout();
        let output = tree.stdout_capture().unchecked().run().expect("cargo is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    #[test]
    fn a_copy_is_restored_and_equal_files_keep_their_times() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let copy = scratch.path().join("checkout");
        Checkout::restore_to(root, copy.clone()).expect("copied");
        let (changed, equal) = (copy.join("lb-common/src/state.rs"), copy.join("lb-common/src/words.rs"));
        let stray = copy.join("lb-common/src/stray.rs");
        fs::write(&changed, "mutated").expect("written");
        fs::write(&stray, "left over").expect("written");
        let before = equal.metadata().and_then(|m| m.modified()).expect("a time");
        Checkout::restore_to(root, copy).expect("restored");
        let state = fs::read_to_string(root.join("lb-common/src/state.rs")).expect("there");
        assert_eq!(fs::read_to_string(&changed).expect("there"), state);
        assert!(!stray.exists());
        assert_eq!(equal.metadata().and_then(|m| m.modified()).expect("a time"), before);
    }
}
