//! The cache of tools: each version of each tool has a folder, and a checkout links to those that it asks for.
//!
//! Checkouts that pin different versions so share the cache: none replaces what another one uses.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};

use crate::workspace::Workspace;

/// A version that no checkout asked for so long is removed.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24 * 60);
/// The file whose time says when a version was last asked for.
const USED: &str = "used";

/// One version of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Name of the program.
    pub name: &'static str,
    /// The version, and a hash of all else that decides what is built.
    pub key: String,
}

impl Version {
    fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.cache.join(self.name).join(&self.key)
    }

    /// Whether this checkout uses this version: links to it if the cache has it.
    pub fn link(&self, workspace: &Workspace) -> Result<bool> {
        let folder = self.folder(workspace);
        let program = folder.join(self.name);
        if !program.is_file() {
            return Ok(false);
        }
        // A read-only cache serves as well.
        fs::write(folder.join(USED), "").ok();
        let link = workspace.tools.join(self.name);
        if fs::read_link(&link).is_ok_and(|target| target == program) {
            return Ok(true);
        }
        fs::create_dir_all(&workspace.tools).with_context(|| format!("cannot make {}", workspace.tools.display()))?;
        let fresh = link.with_extension(std::process::id().to_string());
        symlink(&program, &fresh).with_context(|| format!("cannot link {}", fresh.display()))?;
        fs::rename(&fresh, &link).with_context(|| format!("cannot replace {}", link.display()))?;
        Ok(true)
    }

    /// Lets `make` put the program into a folder that it is given, and takes it into the cache in one step.
    pub fn install(&self, workspace: &Workspace, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let folder = self.folder(workspace);
        let fresh = folder.with_extension(format!("new{}", std::process::id()));
        remove(&fresh)?;
        fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
        let outcome = make(&fresh).and_then(|()| {
            ensure!(fresh.join(self.name).is_file(), "{} is still missing after its installation", self.name);
            Ok(())
        });
        if let Err(error) = outcome {
            remove(&fresh)?;
            return Err(error);
        }
        // Another checkout may have been faster: its folder holds the same.
        if fs::rename(&fresh, &folder).is_err() {
            remove(&fresh)?;
        }
        ensure!(self.link(workspace)?, "{} is not in {}", self.name, folder.display());
        self.forget_others(workspace, SystemTime::now());
        Ok(())
    }

    /// Removes versions of this tool that no checkout asked for in a long time, and what an aborted installation left.
    fn forget_others(&self, workspace: &Workspace, now: SystemTime) {
        let Ok(entries) = fs::read_dir(workspace.cache.join(self.name)) else { return };
        for folder in entries.flatten().map(|entry| entry.path()).filter(|path| *path != self.folder(workspace)) {
            let of = |path: &Path| path.metadata().and_then(|data| data.modified());
            let used = of(&folder.join(USED)).or_else(|_| of(&folder));
            if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > FORGOTTEN_AFTER)) {
                // What cannot be removed only takes space.
                remove(&folder).ok();
            }
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout(folder: &Path, name: &str) -> Workspace {
        let root = folder.join(name);
        Workspace { tools: root.join("target/tools"), root, cache: folder.join("cache") }
    }

    fn version(key: &str) -> Version {
        Version { name: "tool", key: key.into() }
    }

    fn install(workspace: &Workspace, key: &str) {
        let make = |folder: &Path| fs::write(folder.join("tool"), key).context("a file");
        version(key).install(workspace, make).expect("installed");
    }

    fn used(workspace: &Workspace) -> String {
        fs::read_to_string(workspace.tools.join("tool")).expect("a tool")
    }

    #[test]
    fn a_newer_version_replaces_an_older_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkout = checkout(folder.path(), "checkout");
        assert!(!version("1").link(&checkout).expect("nothing there"));
        install(&checkout, "1");
        assert!(version("1").link(&checkout).expect("there") && used(&checkout) == "1");
        assert!(!version("2").link(&checkout).expect("another version"), "the older one does not count");
        install(&checkout, "2");
        assert_eq!(used(&checkout), "2");
    }

    #[test]
    fn checkouts_with_different_versions_share_the_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let [old, new, third] = ["old", "new", "third"].map(|name| checkout(folder.path(), name));
        install(&old, "1");
        install(&new, "2");
        assert_eq!((used(&old), used(&new)), ("1".into(), "2".into()));
        assert!(version("1").link(&third).expect("built by another checkout") && used(&third) == "1");
        // Both built the same at the same time: the later one finds the folder taken.
        install(&third, "2");
        assert_eq!((used(&new), used(&third)), ("2".into(), "2".into()));
    }

    #[test]
    fn a_failed_installation_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkout = checkout(folder.path(), "checkout");
        let error = version("1").install(&checkout, |_| Ok(())).expect_err("made nothing").to_string();
        assert!(error.contains("tool is still missing"), "{error}");
        assert!(!version("1").link(&checkout).expect("nothing there"));
        assert_eq!(fs::read_dir(checkout.cache.join("tool")).expect("a folder").count(), 0);
    }

    #[test]
    fn a_version_that_nobody_uses_is_forgotten() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkout = checkout(folder.path(), "checkout");
        install(&checkout, "1");
        install(&checkout, "2");
        assert!(version("1").folder(&checkout).exists());
        version("2").forget_others(&checkout, SystemTime::now() + 2 * FORGOTTEN_AFTER);
        assert!(!version("1").folder(&checkout).exists() && version("2").folder(&checkout).exists());
    }
}
