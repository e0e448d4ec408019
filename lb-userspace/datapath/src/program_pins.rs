//! Pinned programs: the next start of the same programs with the same settings opens them instead of verifying them again.
//!
//! A pin's name holds a digest of everything that makes a program what it is: the object, the constants that are set in it, and the
//! maps that it uses. Pins of another digest are removed once the programs of this start are attached.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::{maps::MapInfo, programs::ProgramInfo};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::{DatapathError, bpf_link, loaded::Loaded};

/// Bytes of the digest in a name.
const DIGEST_BYTES: usize = 8;
/// The kernel keeps this many bytes of a program's name (`BPF_OBJ_NAME_LEN` without its end).
const NAME_BYTES: usize = 15;
/// How long the programs that this start replaced keep their pins. A packet may still be in one of them, and the kernel empties a program
/// array as soon as its last pin goes.
const GRACE: Duration = Duration::from_secs(1);

/// The pins of one object with one set of constants and maps.
#[derive(Clone, Debug)]
pub(super) struct ProgramPins {
    folder: PathBuf,
    digest: String,
    /// Whether programs are pinned, and opened if they are: not where they write to a log of their own, which another start could not read.
    keeps: bool,
    /// Digest of the object alone: part of the names of the maps that belong to its programs.
    object: String,
    /// When the programs of other digests were replaced; `None`: they are attached.
    replaced: Option<Instant>,
}

/// Digest of an object alone.
pub(super) fn object_digest(elf: &[u8]) -> String {
    hex(Sha256::digest(elf).as_slice())
}

fn hex(digest: &[u8]) -> String {
    digest[..DIGEST_BYTES].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

impl ProgramPins {
    /// The pins in `folder` of the programs of `elf`, with these constants and the maps at these paths.
    pub fn new(
        folder: &Path,
        elf: &[u8],
        constants: &[(&str, Vec<u8>)],
        maps: &[PathBuf],
    ) -> Result<Self, DatapathError> {
        let mut digest = Sha256::new();
        digest.update(elf);
        for (name, value) in constants {
            digest.update(name);
            digest.update(value);
        }
        for path in maps {
            let foreign = |error| DatapathError::ForeignPin { path: path.clone(), source: Box::new(error) };
            digest.update(MapInfo::from_pin(path).map_err(foreign)?.id().to_le_bytes());
        }
        let digest = hex(digest.finalize().as_slice());
        Ok(Self { folder: folder.to_owned(), digest, keeps: true, object: object_digest(elf), replaced: None })
    }

    /// No pins of programs: those of this start write to a log of their own. `start`: a number that no other start has.
    pub fn none(folder: &Path, elf: &[u8], start: u64) -> Self {
        let digest = hex(&start.to_be_bytes());
        Self { folder: folder.to_owned(), digest, keeps: false, object: object_digest(elf), replaced: None }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.keeps.then(|| self.map(name))
    }

    /// Pin of a map that belongs to just these programs, as it refers to them.
    pub fn map(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}-{}", self.digest))
    }

    /// The pinned program; `None`: none is pinned, or it is another one than its name says.
    pub fn open(&self, name: &str) -> Option<Loaded> {
        let path = self.path(name).filter(|path| path.exists())?;
        let program = ProgramInfo::from_pin(&path).ok();
        let program = program.filter(|info| info.name_as_str() == Some(&name[..name.len().min(NAME_BYTES)]));
        let opened = program.and_then(|info| Some(Loaded::new(&info, bpf_link::open_pin(&path).ok()??)));
        if opened.is_none() {
            // Not what we pinned: the program is verified again and takes its place.
            let _ = fs::remove_file(&path);
        }
        opened
    }

    /// Keeps a program for the next start. A program that cannot be pinned is verified again then.
    pub fn pin(&self, name: &str, program: BorrowedFd<'_>) {
        let Some(path) = self.path(name).filter(|path| !path.exists()) else { return };
        if let Err(error) = bpf_link::pin(program, &path) {
            tracing::debug!(path = %path.display(), %error, "a program is not pinned; the next start verifies it again");
        }
    }

    /// Removes the pins of other digests, whose programs are not attached any more, unless the first of these calls was less than
    /// [`GRACE`] ago.
    pub fn remove_others(&mut self, now: Instant) {
        if now < *self.replaced.get_or_insert(now) + GRACE {
            return;
        }
        let ours = |path: &PathBuf| {
            let digest = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.rsplit_once('-'));
            digest.is_some_and(|(_, digest)| self.digest == digest || self.object == digest)
        };
        for path in all(&self.folder).into_iter().filter(|path| !ours(path)) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "a program's pin is not removed");
            }
        }
    }
}

/// Every pin in the folder of the programs.
pub(super) fn all(folder: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(folder: &Path, elf: &[u8], value: u8) -> ProgramPins {
        ProgramPins::new(folder, elf, &[("SOCKET_LB", vec![value])], &[]).expect("no maps to ask for")
    }

    #[test]
    fn another_object_or_constant_has_other_pins() {
        let folder = Path::new("/nowhere");
        let one = pins(folder, b"object", 0).path("pod_in");
        assert_eq!(pins(folder, b"object", 0).path("pod_in"), one);
        assert_ne!(pins(folder, b"object", 1).path("pod_in"), one);
        assert_ne!(pins(folder, b"other", 0).path("pod_in"), one);
        assert_eq!(ProgramPins::none(folder, b"object", 1).path("pod_in"), None);
    }

    #[test]
    fn only_pins_of_other_digests_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (old, mut new) = (pins(folder.path(), b"old", 0), pins(folder.path(), b"new", 0));
        for path in [old.path("pod_in"), old.path("node_in"), new.path("pod_in")] {
            fs::write(path.expect("has a digest"), "").expect("writable");
        }
        let map = folder.path().join(format!("buckets-{}", object_digest(b"new")));
        fs::write(&map, "").expect("writable");
        let mine = BTreeSet::from([new.path("pod_in").expect("has a digest"), map.clone()]);
        let everything = all(folder.path());
        let now = Instant::now();
        new.remove_others(now);
        new.remove_others(now + GRACE / 2);
        assert_eq!(all(folder.path()), everything, "a packet may still be in one of the old programs");
        new.remove_others(now + GRACE);
        assert_eq!(all(folder.path()), mine);
        let mut unpinned = ProgramPins::none(folder.path(), b"new", 1);
        unpinned.remove_others(now);
        unpinned.remove_others(now + GRACE);
        assert_eq!(all(folder.path()), BTreeSet::from([map]));
    }

    #[test]
    fn what_is_no_program_is_not_opened() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pins = pins(folder.path(), b"object", 0);
        assert!(pins.open("pod_in").is_none());
        fs::write(pins.path("pod_in").expect("has a digest"), "").expect("writable");
        assert!(pins.open("pod_in").is_none());
    }
}
