//! What is moved once the new set is in force: sockets, affinities and other notes, then the connections.

use std::{path::PathBuf, thread, time::Duration};

use lb_common::abi::map_name;
use tokio::time::Instant;

use super::folder::{Folder, Side};
use crate::{
    DatapathError,
    cgroup::CgroupRoot,
    cgroup_links,
    layout::{self, Description, Fate, FlowMover, LayoutError, Moved, Pass},
    pins::Pins,
};

/// Pause between two passes over connections for which the new tables have no room.
const PAUSE: Duration = Duration::from_secs(1);
/// So long the old programs keep such connections.
const LONGEST: Duration = Duration::from_mins(10);

/// Moves what one set holds to the set in force.
#[derive(Debug)]
pub struct Moving {
    folder: Folder,
    pins: Pins,
    /// The old and the new one.
    sets: (PathBuf, PathBuf),
    descriptions: (Description, Description),
}

impl Moving {
    /// For a switch whose new set is in force.
    pub fn new(folder: Folder, pins: Pins) -> Result<Self, DatapathError> {
        let unfinished = || DatapathError::Unfinished { folder: folder.clone().path() };
        let sets = folder.sets().ok_or_else(unfinished)?;
        let read = |set| Description::read(set).transpose().ok_or_else(unfinished).and_then(|read| Ok(read?));
        let descriptions = (read(&sets.0)?, read(&sets.1)?);
        Ok(Self { folder, pins, sets, descriptions })
    }

    /// Keeps new connections from the tuples of those that are in the old set: just before the new one is put in force.
    pub fn reserve(&self) -> Result<(), LayoutError> {
        let mover = self.mover()?;
        // The second time finds what came meanwhile, in a moment.
        mover.reserve()?;
        mover.reserve()
    }

    fn mover(&self) -> Result<FlowMover, LayoutError> {
        let (sets, descriptions) = (&self.sets, &self.descriptions);
        FlowMover::new((&sets.0, &sets.1), (&descriptions.0, &descriptions.1))
    }

    /// Moves everything, and notes that. `cgroup`: whose sockets are translated. Repeatable: killed anywhere, another one goes on.
    pub fn run(&self, cgroup: Option<&CgroupRoot>) -> Result<Moved, DatapathError> {
        let mut flows = self.mover()?;
        flows.reserve()?;
        let fates = layout::fates(&self.descriptions.0, &self.descriptions.1)?;
        let twice = || fates.iter().filter(|(_, fate)| **fate == Fate::CopyTwice).map(|(name, _)| name.as_str());
        let are_sockets = |name: &&str| [map_name::SOCKETS4, map_name::SOCKETS6].contains(name);
        let sockets = || twice().filter(are_sockets).try_for_each(|name| self.copy_again(name));
        // None, if the agent before translated no sockets.
        let has_programs = self.folder.program(Side::New, "connect4").exists();
        match cgroup.filter(|_| has_programs) {
            Some(root) => {
                let program = |name: &str| self.folder.open_program(Side::New, name);
                cgroup_links::switch(root, program, &self.pins, || Ok(sockets()?))?;
            }
            None => sockets()?,
        }
        twice().filter(|name| !are_sockets(name)).try_for_each(|name| self.copy_again(name))?;
        let moved = move_flows(&mut flows)?;
        flows.release()?;
        self.folder.note_moved()?;
        Ok(moved)
    }

    fn copy_again(&self, map: &str) -> Result<(), LayoutError> {
        let (sets, descriptions) = (&self.sets, &self.descriptions);
        layout::copy(map, (&sets.0, &sets.1), (&descriptions.0, &descriptions.1), Pass::Again).map(drop)
    }
}

/// Until two passes in a row have found nothing.
fn move_flows(mover: &mut FlowMover) -> Result<Moved, LayoutError> {
    let (mut total, mut idle, begin) = (Moved::default(), 0, Instant::now());
    while idle < 2 {
        let pass = mover.pass()?;
        total.found += pass.found - pass.stuck;
        total.moved += pass.moved;
        total.superseded += pass.superseded;
        total.dropped += pass.dropped;
        total.stuck = pass.stuck;
        idle = if pass.found == pass.stuck { idle + 1 } else { 0 };
        if idle == 2 && pass.stuck > 0 && begin.elapsed() < LONGEST {
            idle = 0;
            // Nobody unparks this thread.
            thread::park_timeout(PAUSE);
        }
    }
    Ok(total)
}
