//! The pin folder: which path holds what, and taking back what a failed start has made.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use super::{DatapathError, point::Point};

/// Name of the link to the set of tables in force.
pub(super) const IN_FORCE: &str = "tables";

/// Paths under `<bpffs>/ballast/`.
#[derive(Clone, Debug)]
pub(super) struct Pins {
    root: PathBuf,
    tables: PathBuf,
    links: PathBuf,
    programs: PathBuf,
}

impl Pins {
    /// With the set of tables in force.
    pub fn under(bpffs: &Path) -> Self {
        let root = bpffs.join("ballast");
        let tables = root.join(IN_FORCE);
        let links = root.join("attachments");
        let programs = root.join("programs");
        Self { root, tables, links, programs }
    }

    /// With another set of tables.
    pub fn with_tables(self, tables: PathBuf) -> Self {
        Self { tables, ..self }
    }

    /// The folder that holds everything of ours.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of the maps.
    pub fn tables(&self) -> &Path {
        &self.tables
    }

    /// The folder of the bpf links.
    pub fn links(&self) -> &Path {
        &self.links
    }

    /// The folder of the programs.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Refuses if the folder of the links is not where it was made: a link that cannot be pinned must not be attached.
    pub fn check_there(&self) -> Result<(), DatapathError> {
        if self.links.is_dir() { Ok(()) } else { Err(DatapathError::PinsHidden { pins: self.root.clone() }) }
    }

    pub fn map(&self, name: &str) -> PathBuf {
        self.tables.join(name)
    }

    /// Pin of an interface's link. The index stays over a rename.
    pub fn interface(&self, ifindex: u32, point: Point, how: &str) -> PathBuf {
        self.links.join(format!("{ifindex}-{point}-{how}"))
    }

    pub fn cgroup(&self, program: &str) -> PathBuf {
        self.links.join(format!("cgroup-{program}"))
    }

    /// Pin of a second link of the same program, while one set of tables follows another.
    pub fn second_cgroup(&self, program: &str) -> PathBuf {
        self.links.join(format!("second-{program}"))
    }

    /// Every pinned interface link: its path, interface index, point and how it was attached.
    pub fn interfaces(&self) -> Vec<(PathBuf, u32, Point, String)> {
        let entries = fs::read_dir(&self.links).into_iter().flatten().flatten();
        let mut pins: Vec<_> = entries.filter_map(|entry| parse(&entry.path())).collect();
        pins.sort();
        pins
    }

    /// Every pinned cgroup link: its path and program.
    pub fn cgroups(&self) -> Vec<(PathBuf, String)> {
        self.links_named("cgroup-")
    }

    /// Every pinned second link: its path and program.
    pub fn second_cgroups(&self) -> Vec<(PathBuf, String)> {
        self.links_named("second-")
    }

    fn links_named(&self, prefix: &str) -> Vec<(PathBuf, String)> {
        let entries = fs::read_dir(&self.links).into_iter().flatten().flatten();
        let program = |path: PathBuf| {
            let program = path.file_name()?.to_str()?.strip_prefix(prefix)?.to_owned();
            Some((path, program))
        };
        let mut pins: Vec<_> = entries.filter_map(|entry| program(entry.path())).collect();
        pins.sort();
        pins
    }
}

fn parse(path: &Path) -> Option<(PathBuf, u32, Point, String)> {
    let mut parts = path.file_name()?.to_str()?.splitn(3, '-');
    let ifindex = parts.next()?.parse().ok()?;
    let point = parts.next()?.parse().ok()?;
    Some((path.to_owned(), ifindex, point, parts.next()?.to_owned()))
}

/// What a start has made so far; removed again, newest first, unless the start succeeds.
#[derive(Debug, Default)]
pub(super) struct Created(Vec<PathBuf>);

impl Created {
    /// Notes a pin that is about to be made, unless it is there already.
    pub fn expect(&mut self, path: PathBuf) {
        if !path.exists() {
            self.0.push(path);
        }
    }

    /// Makes a symbolic link, which may lead nowhere.
    pub fn symlink(&mut self, target: &Path, path: PathBuf) -> Result<(), DatapathError> {
        std::os::unix::fs::symlink(target, &path).map_err(DatapathError::file("make", &path))?;
        self.0.push(path);
        Ok(())
    }

    /// Makes a folder for root only.
    pub fn folder(&mut self, path: &Path) -> Result<(), DatapathError> {
        if path.is_dir() {
            return Ok(());
        }
        fs::DirBuilder::new().mode(0o700).create(path).map_err(DatapathError::file("create", path))?;
        self.0.push(path.to_owned());
        Ok(())
    }

    /// The start succeeded: everything stays.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // Only folders and pins, and a pin that was never made is no loss.
            let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            let _ = if is_folder { fs::remove_dir(path) } else { fs::remove_file(path) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pin_names_are_read_back() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let pins = Pins::under(dir.path());
        fs::create_dir_all(pins.links()).expect("writable");
        let expected = [(7, Point::In, "tcx"), (7, Point::Out, "tcx"), (12, Point::Xdp, "generic")];
        for (ifindex, point, how) in expected {
            fs::write(pins.interface(ifindex, point, how), "").expect("writable");
        }
        for other in [pins.cgroup("connect4"), pins.links().join("readme"), pins.links().join("x-in-tcx")] {
            fs::write(other, "").expect("writable");
        }
        let found: Vec<_> =
            pins.interfaces().into_iter().map(|(_, ifindex, point, how)| (ifindex, point, how)).collect();
        assert_eq!(found.len(), 3);
        for (ifindex, point, how) in expected {
            assert!(found.contains(&(ifindex, point, how.to_owned())));
        }
        assert_eq!(pins.cgroups().len(), 1);
    }

    #[test]
    fn a_failed_start_takes_back_only_what_it_made() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (old, new) = (dir.path().join("old"), dir.path().join("made/new"));
        fs::write(&old, "").expect("writable");
        let start = |succeeds: bool| {
            let mut created = Created::default();
            created.expect(old.clone());
            created.folder(new.parent().expect("has one")).expect("writable");
            created.expect(new.clone());
            fs::write(&new, "").expect("writable");
            if succeeds {
                created.keep();
            }
        };
        start(false);
        assert!(old.exists() && !new.exists() && !dir.path().join("made").exists());
        start(true);
        assert!(old.exists() && new.exists());
    }
}
