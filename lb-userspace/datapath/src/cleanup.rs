//! Takes everything of ours off the node: links first, then filters, programs, maps, and folders. Repeatable.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use lb_common::abi::map_name;
use serde::Serialize;

use super::{
    DatapathError, bpf_link, bpffs, clsact,
    error::netlink_thread,
    features,
    lock::{AgentLock, lock_file},
    net::name_of,
    pins::Pins,
    point::Point,
    program_pins, sets,
    switch::{Folder, end_switch},
};

use lb_takeover::conntrack::nat_hooks;

/// A thing that was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Removed {
    /// `link`, `filter`, `table` (of nftables), `program`, `map`, `folder` or `file`.
    pub kind: &'static str,
    /// Path, or interface and place.
    pub what: String,
}

/// A folder in which agents ran, and the names of what they leave there beside the lock file.
#[derive(Clone, Copy, Debug)]
pub struct RunFolder<'a> {
    pub path: &'a Path,
    pub files: &'a [PathBuf],
}

/// Removes the pins under `bpffs`, our filters in this network namespace, and our files in the run folder; with `dry_run` only says so.
///
/// Refuses while an agent runs. Files that are not ours stay, and with them their folder. Pods' links keep passing traffic; services
/// are no longer translated.
pub fn cleanup(bpffs: &Path, run: RunFolder<'_>, dry_run: bool) -> Result<Vec<Removed>, DatapathError> {
    remove_all(bpffs, run, dry_run, |_| Ok(()))
}

/// [`cleanup`] after something that needs the maps, if there are any, and that no agent runs. All connections are in these maps: a switch to other
/// tables is brought to its end before.
pub fn cleanup_after<E: From<DatapathError>>(
    bpffs: &Path,
    run: RunFolder<'_>,
    before: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<Vec<Removed>, E> {
    remove_all(bpffs, run, false, |pins| {
        // The sockets' programs go in a moment.
        end_switch(pins, None)?;
        before(pins.tables())
    })
}

fn remove_all<E: From<DatapathError>>(
    bpffs: &Path,
    run: RunFolder<'_>,
    dry_run: bool,
    before: impl FnOnce(&Pins) -> Result<(), E>,
) -> Result<Vec<Removed>, E> {
    features::check_privileges()?;
    let pins = Pins::under(bpffs);
    let ours = pins.root().is_dir() && bpffs::is_bpffs(pins.root());
    // No lock file is made only to lock it; an agent with another one is found by its pins and its network namespace.
    let existing = Some(run.path).filter(|run_dir| lock_file(run_dir).exists());
    // The filters, found by their name alone, and the lock file may belong to an agent whose pins are elsewhere.
    let lock = AgentLock::take(existing, ours.then_some(pins.root()))?;
    if ours && pins.tables().is_dir() {
        before(&pins)?;
    }
    let mut removed = Vec::new();
    if ours {
        for path in link_pins(&pins) {
            remove(&mut removed, "link", &path, dry_run)?;
        }
    }
    for what in netlink_thread(move |handle| remove_filters(handle, dry_run))? {
        removed.push(Removed { kind: "filter", what });
    }
    if nat_hooks::is_kept().unwrap_or(false) {
        if !dry_run {
            nat_hooks::release()
                .map_err(DatapathError::kernel(format!("remove nftables table {}", nat_hooks::TABLE)))?;
        }
        removed.push(Removed { kind: "table", what: format!("nftables {}", nat_hooks::TABLE) });
    }
    if ours {
        for path in program_pins::all(pins.programs()) {
            remove(&mut removed, "program", &path, dry_run)?;
        }
        let switches = Folder::all(pins.root()).into_iter().map(Folder::path);
        for folder in sets::all(pins.root()).into_iter().chain(switches).chain(sets::half_removed(pins.root())) {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                remove(&mut removed, "map", &entry.path(), dry_run)?;
            }
            remove_folder(&mut removed, &folder, dry_run)?;
        }
        // Of versions whose maps lay here, and the link to the set in force.
        for name in map_name::ALL.into_iter().chain(sets::LINKS) {
            remove(&mut removed, "map", &pins.root().join(name), dry_run)?;
        }
        remove_folder(&mut removed, pins.programs(), dry_run)?;
        remove_folder(&mut removed, pins.links(), dry_run)?;
        remove_folder(&mut removed, pins.root(), dry_run)?;
    }
    if let Some(run_dir) = existing {
        // A folder in the place of a file is not ours.
        for path in run.files.iter().map(|name| run_dir.join(name)).filter(|path| !path.is_dir()) {
            remove(&mut removed, "file", &path, dry_run)?;
        }
    }
    drop(lock);
    // The last one: without it, files of these names are not known to be ours.
    remove(&mut removed, "file", &lock_file(run.path), dry_run)?;
    Ok(removed)
}

fn link_pins(pins: &Pins) -> Vec<PathBuf> {
    let interfaces = pins.interfaces().into_iter().map(|(path, ..)| path);
    interfaces.chain(pins.cgroups().into_iter().chain(pins.second_cgroups()).map(|(path, _)| path)).collect()
}

async fn remove_filters(mut handle: rtnetlink::Handle, dry_run: bool) -> Result<Vec<String>, DatapathError> {
    let mut removed = Vec::new();
    for ifindex in clsact::interfaces(&mut handle).await? {
        for point in [Point::In, Point::Out] {
            let Some(filter) = clsact::side(&mut handle, ifindex, point).await?.ours else { continue };
            if !dry_run {
                clsact::detach(&mut handle, ifindex, point).await?;
            }
            let name = name_of(ifindex).unwrap_or_else(|| ifindex.to_string());
            removed.push(format!("{name} {point} ({})", filter.program));
        }
    }
    Ok(removed)
}

fn remove(removed: &mut Vec<Removed>, kind: &'static str, path: &Path, dry_run: bool) -> Result<(), DatapathError> {
    // A symbolic link may lead nowhere.
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    if !dry_run {
        let done = if kind == "link" { bpf_link::unpin(path) } else { fs::remove_file(path) };
        done.map_err(DatapathError::file("remove", path))?;
    }
    removed.push(Removed { kind, what: path.display().to_string() });
    Ok(())
}

/// Removes a folder that is empty, or would be.
fn remove_folder(removed: &mut Vec<Removed>, path: &Path, dry_run: bool) -> Result<(), DatapathError> {
    let Ok(entries) = fs::read_dir(path) else { return Ok(()) };
    let gone: BTreeSet<PathBuf> = removed.iter().map(|removed| PathBuf::from(&removed.what)).collect();
    let left: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(|entry| !gone.contains(entry)).collect();
    if !left.is_empty() {
        tracing::warn!(folder = %path.display(), ?left, "not ours, left alone");
        return Ok(());
    }
    if !dry_run {
        fs::remove_dir(path).map_err(DatapathError::file("remove", path))?;
    }
    removed.push(Removed { kind: "folder", what: path.display().to_string() });
    Ok(())
}
