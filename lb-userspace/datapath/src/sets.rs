//! Sets of tables: a folder of pinned maps for each, and the one in force.
//!
//! `<bpffs>/ballast/tables` is a symbolic link to the set in force, `tables-<layout version>-<number>`. A rename replaces it in one step.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    DatapathError,
    pins::{Created, IN_FORCE},
};

/// A set's name begins so.
const PREFIX: &str = "tables-";
/// Name of the link before it takes the place of [`IN_FORCE`].
const COMING: &str = "coming";
/// Both names.
pub(super) const LINKS: [&str; 2] = [IN_FORCE, COMING];

/// The set in force; `None`: there is none yet.
pub(super) fn in_force(root: &Path) -> Option<PathBuf> {
    let set = root.join(fs::read_link(root.join(IN_FORCE)).ok()?);
    set.is_dir().then_some(set)
}

/// Every set.
pub(super) fn all(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let is_set = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    let mut sets: Vec<_> = entries.map(|entry| entry.path()).filter(is_set).collect();
    sets.sort();
    sets
}

/// Makes the folder of another set, with a number that no set has.
pub(super) fn make(root: &Path, abi: u32, created: &mut Created) -> Result<PathBuf, DatapathError> {
    let number = all(root).iter().filter_map(|set| set.to_str()?.rsplit('-').next()?.parse::<u64>().ok()).max();
    let set = root.join(format!("{PREFIX}{abi}-{}", number.unwrap_or(0) + 1));
    created.folder(&set)?;
    Ok(set)
}

/// Puts a set in force for every reader that opens tables from now on.
pub(super) fn put_in_force(root: &Path, set: &Path) -> Result<(), DatapathError> {
    if in_force(root).as_deref() == Some(set) {
        return Ok(());
    }
    let (coming, link) = (root.join(COMING), root.join(IN_FORCE));
    // Of an agent that was killed here.
    let _ = fs::remove_file(&coming);
    let name = set.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(name, &coming).map_err(DatapathError::file("make", &coming))?;
    fs::rename(&coming, &link).map_err(DatapathError::file("rename", &coming))
}

/// A folder has a name that begins so while the pins in it are removed.
const REMOVED: &str = "removed-";

/// Folders whose removal was begun, and ended by a kill.
pub(super) fn half_removed(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVED));
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

/// Removes what is left of folders whose removal was begun.
pub(super) fn finish_removals(root: &Path) -> Result<(), DatapathError> {
    half_removed(root).iter().try_for_each(|folder| empty(folder))
}

/// Removes the pins of every set but these. The maps go when no program refers to them.
pub(super) fn remove_others(root: &Path, kept: &[&Path]) -> Result<(), DatapathError> {
    for set in all(root).into_iter().filter(|set| !kept.contains(&set.as_path())) {
        remove_folder(&set)?;
    }
    Ok(())
}

/// Removes a folder and the pins in it. The folder loses its name first: a start after a kill never takes half a folder for a whole one.
pub(super) fn remove_folder(folder: &Path) -> Result<(), DatapathError> {
    let mut unnamed = std::ffi::OsString::from(REMOVED);
    unnamed.push(folder.file_name().unwrap_or_default());
    let unnamed = folder.with_file_name(unnamed);
    if unnamed.exists() {
        empty(&unnamed)?;
    }
    fs::rename(folder, &unnamed).map_err(DatapathError::file("rename", folder))?;
    empty(&unnamed)
}

fn empty(folder: &Path) -> Result<(), DatapathError> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        fs::remove_file(entry.path()).map_err(DatapathError::file("remove", entry.path()))?;
    }
    fs::remove_dir(folder).map_err(DatapathError::file("remove", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_set_is_in_force_and_the_others_go() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let mut created = Created::default();
        assert_eq!(in_force(root.path()), None);
        let first = make(root.path(), 9, &mut created).expect("writable");
        put_in_force(root.path(), &first).expect("writable");
        let second = make(root.path(), 10, &mut created).expect("writable");
        fs::write(second.join("map"), "").expect("writable");
        assert_eq!(in_force(root.path()).as_ref(), Some(&first));
        put_in_force(root.path(), &second).expect("writable");
        put_in_force(root.path(), &second).expect("nothing to do");
        assert_eq!(in_force(root.path()).as_ref(), Some(&second));
        remove_others(root.path(), &[&second]).expect("writable");
        assert_eq!(all(root.path()), std::slice::from_ref(&second));
        let third = make(root.path(), 9, &mut created).expect("writable");
        assert!(third.ends_with("tables-9-3"), "{third:?}");
        created.keep();
    }

    #[test]
    fn a_folder_that_is_half_removed_is_no_set_and_goes_later() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let mut created = Created::default();
        let set = make(root.path(), 9, &mut created).expect("writable");
        created.keep();
        // What cannot be removed ends the removal, as a kill would.
        fs::create_dir(set.join("folder")).expect("writable");
        remove_folder(&set).expect_err("it holds a folder");
        assert_eq!(all(root.path()), Vec::<PathBuf>::new());
        let [half] = &half_removed(root.path())[..] else { panic!("none is half removed") };
        fs::remove_dir(half.join("folder")).expect("empty");
        finish_removals(root.path()).expect("writable");
        assert_eq!(half_removed(root.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_link_to_a_set_that_is_gone_is_none() {
        let root = tempfile::tempdir().expect("a temporary folder");
        put_in_force(root.path(), &root.path().join("tables-9-1")).expect("writable");
        assert_eq!(in_force(root.path()), None);
    }
}
