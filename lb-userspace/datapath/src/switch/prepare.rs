//! Which set of tables a start uses: the one in force, or another one that is made beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{EbpfLoader, programs::ProgramInfo};
use lb_common::{abi::map_name, switch::GATES};

use super::{
    attached_programs::{AttachedProgram, attached_programs},
    folder::{Folder, Side},
    moving::Moving,
};
use crate::{
    DatapathError, DatapathSettings, bpf_link,
    cgroup::CgroupRoot,
    layout::{self, Description, Fate, Pass},
    map_definition,
    pins::{self, Created, Pins},
    program_pins, sets,
};

/// The tables of a start.
#[derive(Debug)]
pub struct Prepared {
    /// With the set of this start.
    pub pins: Pins,
    /// What the set says about itself from now on.
    pub description: Description,
    /// The switch to it that is about to begin; `None`: the set is in force.
    pub begun: Option<Begun>,
}

/// A switch to a set that is made, but not in force.
#[derive(Debug)]
pub struct Begun {
    pub folder: Folder,
    /// The set in force.
    pub old: PathBuf,
    /// Where its records of handshakes have the state, in IPv4 and IPv6.
    pub state_at: [u32; 2],
    /// The old entry programs by name.
    old_programs: BTreeMap<&'static str, OwnedFd>,
}

impl Begun {
    /// Lets the gates call the old programs. The gates' maps are made.
    pub fn keep_old_programs(&self, created: &mut Created) -> Result<(), DatapathError> {
        self.old_programs.iter().try_for_each(|(name, program)| {
            created.expect(self.folder.program(Side::Old, name));
            self.folder.put(Side::Old, name, program.as_fd())
        })
    }
}

/// Ends what another agent has begun, and finds or makes the tables that this one asks for.
pub fn prepare(
    pins: Pins,
    settings: &DatapathSettings,
    elf: &[u8],
    cgroup: Option<&CgroupRoot>,
    created: &mut Created,
) -> Result<Prepared, DatapathError> {
    let root = pins.root().to_owned();
    refuse_unsorted(&root)?;
    sets::finish_removals(&root)?;
    end_switch(&pins, cgroup)?;
    let new = Description::of_object(elf, |name| settings.entries(name))?;
    let Some(old_set) = sets::in_force(&root) else {
        sets::remove_others(&root, &[])?;
        let set = sets::make(&root, new.abi, created)?;
        created.expect(root.join(pins::IN_FORCE));
        sets::put_in_force(&root, &set)?;
        return Ok(Prepared { pins: pins.with_tables(set), description: new, begun: None });
    };
    sets::remove_others(&root, &[&old_set])?;
    // A set without a description is one that its first agent has not finished, or is refused where its maps are looked at.
    let old = Description::read(&old_set)?.filter(|old| !is_same(old, &new));
    let Some(old) = old else {
        return Ok(Prepared { pins: pins.with_tables(old_set), description: new, begun: None });
    };
    if let Some(map) = old.maps.keys().find(|map| !old_set.join(map).exists()) {
        return Err(DatapathError::MissingPin { map: map.clone(), set: old_set });
    }
    let fates = layout::fates(&old, &new)?;
    layout::check_room(&old_set, &old, &new)?;
    let state_at = layout::handshake_state_at(&old)?;
    let old_programs = old_programs(&pins)?;
    let set = sets::make(&root, new.abi, created)?;
    fill(&fates, (&old_set, &set), (&old, &new), settings, elf, created)?;
    let folder = Folder::make(&root, (&old_set, &set), created)?;
    tracing::info!(from = %old_set.display(), to = %set.display(), "other tables are made; connections will move to them");
    let begun = Begun { folder, old: old_set, state_at, old_programs };
    Ok(Prepared { pins: pins.with_tables(set), description: new, begun: Some(begun) })
}

/// Refuses tables of a version before sets.
fn refuse_unsorted(root: &Path) -> Result<(), DatapathError> {
    let config = root.join(map_name::CONFIG);
    if !config.exists() {
        return Ok(());
    }
    map_definition::check_version(&config)?;
    let (expected, found) = (format!("a folder in {}", root.display()), "a map".to_owned());
    Err(DatapathError::MapMismatch { map: map_name::CONFIG.to_owned(), path: config, field: "place", expected, found })
}

/// Brings a switch to its end whose new set is in force: everything moves to that set. `cgroup`: whose sockets get the new programs.
pub fn end_switch(pins: &Pins, cgroup: Option<&CgroupRoot>) -> Result<(), DatapathError> {
    let Some(folder) = Folder::all(pins.root()).into_iter().rfind(Folder::has_switched) else { return Ok(()) };
    let Some((_, new)) = folder.sets() else { return Ok(()) };
    sets::put_in_force(pins.root(), &new)?;
    if folder.is_moved() {
        return Ok(());
    }
    let moved = Moving::new(folder, pins.clone())?.run(cgroup)?;
    tracing::info!(moved.found, moved.moved, moved.dropped, "moved what the agent before had not moved yet");
    Ok(())
}

/// Whether a set serves as it is. Maps that hold nothing but counts may be made anew at any time.
fn is_same(old: &Description, new: &Description) -> bool {
    let mut as_old = new.clone();
    for (name, new) in as_old.maps.iter_mut().filter(|(name, _)| map_definition::is_resizable(name)) {
        if let Some(old) = old.maps.get(name) {
            new.max_entries = old.max_entries;
        }
    }
    *old == as_old
}

/// Makes the maps of the new set, and fills them as far as that is done before the switch.
fn fill(
    fates: &BTreeMap<String, Fate>,
    (old_set, set): (&Path, &Path),
    descriptions: (&Description, &Description),
    settings: &DatapathSettings,
    elf: &[u8],
    created: &mut Created,
) -> Result<(), DatapathError> {
    for name in descriptions.1.maps.keys() {
        created.expect(set.join(name));
    }
    for (name, _) in fates.iter().filter(|(_, fate)| **fate == Fate::Share) {
        let path = old_set.join(name);
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let pin = |map: Option<OwnedFd>| bpf_link::pin(map.ok_or_else(missing)?.as_fd(), &set.join(name));
        bpf_link::open_pin(&path).and_then(pin).map_err(DatapathError::file("share", &path))?;
    }
    make_maps(settings, set, elf)?;
    for (name, _) in fates.iter().filter(|(_, fate)| matches!(fate, Fate::Copy | Fate::CopyTwice)) {
        layout::copy(name, (old_set, set), descriptions, Pass::First)?;
    }
    Ok(descriptions.1.write(set)?)
}

/// Makes those maps of a set that are not pinned in it yet.
fn make_maps(settings: &DatapathSettings, set: &Path, elf: &[u8]) -> Result<(), DatapathError> {
    let mut loader = EbpfLoader::new();
    loader.btf(None);
    for name in map_name::ALL {
        loader.map_pin_path(name, set.join(name));
        if let Some(entries) = settings.entries(name) {
            loader.map_max_entries(name, entries);
        }
    }
    Ok(loader.load(elf).map(drop)?)
}

/// The entry programs at work: those that the gates of an unfinished switch call, else what hangs at the attach points.
fn old_programs(pins: &Pins) -> Result<BTreeMap<&'static str, OwnedFd>, DatapathError> {
    let folders = Folder::all(pins.root());
    let (mut programs, mut known) = (BTreeMap::new(), BTreeSet::new());
    for folder in folders.iter().rev() {
        let side = if folder.has_switched() { Side::New } else { Side::Old };
        for (entry, _) in GATES {
            if let Some(program) = folder.open_program(side, entry)? {
                programs.entry(entry).or_insert(program);
            }
        }
    }
    let attached_programs = attached_programs(pins)?;
    let attached: BTreeSet<u32> = attached_programs.iter().map(|place| place.program_id).collect();
    for path in program_pins::all(pins.programs()) {
        let Some(info) = ProgramInfo::from_pin(&path).ok().filter(|info| attached.contains(&info.id())) else {
            continue;
        };
        known.insert(info.id());
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.rsplit_once('-'));
        let entry = GATES.into_iter().find(|(entry, _)| name.is_some_and(|(name, _)| name == *entry));
        if let Some((entry, _)) = entry
            && !programs.contains_key(entry)
            && let Some(program) = bpf_link::open_pin(&path).map_err(DatapathError::file("open", &path))?
        {
            programs.insert(entry, program);
        }
    }
    // Those of a switch are the gates themselves.
    let unknown = attached_programs.iter().find(|place| folders.is_empty() && !known.contains(&place.program_id));
    match unknown {
        Some(AttachedProgram { name, .. }) => Err(DatapathError::UnpinnedPrograms { what: name.clone() }),
        None => Ok(programs),
    }
}
