//! What is pinned of one switch: its word, the gates' program arrays, the entry programs of both sets, and which sets these are. Any later start
//! finds from it where the switch was.

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use lb_common::switch::{GATES, map, new_slot, old_slot, word};

use crate::{DatapathError, bpf_link, pins::Created, sets};
use lb_tables::{Condition, RawTable};

const PREFIX: &str = "switch-";

/// Whose entry program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Old,
    New,
}

/// The folder of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

impl Folder {
    /// Those of all switches that are not cleaned up, the latest one last.
    pub fn all(root: &Path) -> Vec<Self> {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        let mut found: Vec<_> =
            entries.filter_map(|entry| Some((number(&entry.path())?, Self(entry.path())))).collect();
        found.sort_by_key(|(number, _)| *number);
        found.into_iter().map(|(_, folder)| folder).collect()
    }

    /// Makes that of another switch between these sets.
    pub fn make(root: &Path, (old, new): (&Path, &Path), created: &mut Created) -> Result<Self, DatapathError> {
        let next = Self::all(root).last().and_then(|folder| number(&folder.0)).map_or(1, |number| number + 1);
        let folder = Self(root.join(format!("{PREFIX}{next}")));
        created.folder(&folder.0)?;
        for (name, set) in [("from", old), ("to", new)] {
            created.symlink(set.file_name().unwrap_or_default().as_ref(), folder.0.join(name))?;
        }
        for name in [map::WORD, map::TC, map::XDP] {
            created.expect(folder.map(name));
        }
        Ok(folder)
    }

    pub fn path(self) -> PathBuf {
        self.0
    }

    /// Pin of one of the gates' maps.
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The old and the new set; `None`: the folder is not finished.
    pub fn sets(&self) -> Option<(PathBuf, PathBuf)> {
        let root = self.0.parent()?;
        let set = |name| fs::read_link(self.0.join(name)).ok().map(|set| root.join(set));
        Some((set("from")?, set("to")?))
    }

    /// Whether the new set is in force.
    pub fn has_switched(&self) -> bool {
        let read = || RawTable::open(&self.map(map::WORD))?.get(&0_u32.to_ne_bytes());
        self.sets().is_some() && read().ok().flatten() == Some(word::NEW.to_ne_bytes().into())
    }

    /// Puts the new set in force, at all gates at once.
    pub fn switch(&self) -> Result<(), DatapathError> {
        let path = self.map(map::WORD);
        let written = RawTable::open(&path)
            .and_then(|table| table.put(&0_u32.to_ne_bytes(), &word::NEW.to_ne_bytes(), Condition::Always));
        written.map(drop).map_err(DatapathError::file("write", &path))
    }

    /// Whether everything was moved to the new set.
    pub fn is_moved(&self) -> bool {
        self.0.join("moved").symlink_metadata().is_ok()
    }

    /// Notes that everything was moved.
    pub fn note_moved(&self) -> Result<(), DatapathError> {
        let path = self.0.join("moved");
        match std::os::unix::fs::symlink("to", &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(DatapathError::file("make", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Pin of a program.
    pub fn program(&self, side: Side, name: &str) -> PathBuf {
        let side = match side {
            Side::Old => "old",
            Side::New => "new",
        };
        self.0.join(format!("{side}-{name}"))
    }

    /// The pinned program; `None`: there is none.
    pub fn open_program(&self, side: Side, name: &str) -> Result<Option<OwnedFd>, DatapathError> {
        let path = self.program(side, name);
        bpf_link::open_pin(&path).map_err(DatapathError::file("open", &path))
    }

    /// Keeps a program; an entry program goes into the slot by which the gates call it.
    pub fn put(&self, side: Side, name: &str, program: BorrowedFd<'_>) -> Result<(), DatapathError> {
        let path = self.program(side, name);
        if !path.exists() {
            bpf_link::pin(program, &path).map_err(DatapathError::file("pin", &path))?;
        }
        let Some(entry) = GATES.iter().position(|(entry, _)| *entry == name) else { return Ok(()) };
        let array = self.map(if name == "xdp_node" { map::XDP } else { map::TC });
        let slot = match side {
            Side::Old => old_slot(entry),
            Side::New => new_slot(entry),
        };
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let written = bpf_link::open_pin(&array)
            .and_then(|opened| bpf_link::array_put(opened.ok_or_else(missing)?.as_fd(), slot, program));
        written.map_err(DatapathError::file("write", &array))
    }

    /// Removes everything. No gate of this switch may hang anywhere: its arrays would be emptied.
    pub fn remove(&self) -> Result<(), DatapathError> {
        sets::remove_folder(&self.0)
    }
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folders_of_switches_are_found_in_their_order() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (old, new) = (root.path().join("tables-9-1"), root.path().join("tables-9-2"));
        let mut created = Created::default();
        let mut made = Vec::new();
        for _ in 0..11 {
            made.push(Folder::make(root.path(), (&old, &new), &mut created).expect("writable"));
        }
        assert_eq!(Folder::all(root.path()), made);
        let last = made.last().expect("eleven");
        assert_eq!(last.sets(), Some((old, new)));
        assert!(!last.has_switched() && !last.is_moved());
        last.note_moved().expect("writable");
        last.note_moved().expect("nothing to do");
        assert!(last.is_moved());
        last.remove().expect("writable");
        drop(created);
        assert_eq!(Folder::all(root.path()), []);
    }
}
