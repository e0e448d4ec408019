//! The stages of a switch, as the running data path takes them: gates everywhere, the word, what is moved, the new programs everywhere.

use std::{collections::BTreeSet, path::PathBuf, thread, time::Duration};

use lb_common::switch::GATES;
use tokio::{sync::oneshot, time::Instant};

use super::{
    attached_programs::{AttachedProgram, attached_programs},
    folder::{Folder, Side},
    moving::Moving,
    prepare::Begun,
};
use crate::{Datapath, DatapathError, cgroup::CgroupRoot, cgroup_links, layout::Moved, pins::Pins, sets};

/// So long the switch waits for an interface that takes no gate.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the places are looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// A packet may still be in a gate, or in an old program, so long after it was replaced.
const GRACE: Duration = Duration::from_secs(1);

/// A switch on its way.
#[derive(Debug)]
pub struct Switching {
    stage: Stage,
    /// The set of this agent.
    set: PathBuf,
}

#[derive(Debug)]
enum Stage {
    /// Gates take the places of the old programs.
    Gating { folder: Folder, since: Instant },
    /// The new set is in force, and connections move to it.
    Moving { folder: Folder, moved: oneshot::Receiver<Result<Moved, DatapathError>> },
    /// The new programs take the places of the gates.
    Replacing,
    /// They have.
    Replaced(Instant),
}

impl Switching {
    /// The switch that was prepared, or what is left of an earlier one; `None`: nothing is.
    pub fn of(begun: Option<Begun>, pins: &Pins) -> Option<Self> {
        let since = Instant::now();
        let stage = match begun {
            Some(Begun { folder, .. }) => Stage::Gating { folder, since },
            None if Folder::all(pins.root()).is_empty() => return None,
            None => Stage::Replacing,
        };
        Some(Self { stage, set: pins.tables().to_owned() })
    }

    /// Whether connections are in both sets, or only in the old one.
    pub fn moves(&self) -> bool {
        matches!(self.stage, Stage::Gating { .. } | Stage::Moving { .. })
    }

    /// The folder, while gates are put in place.
    fn folder(&self) -> Option<&Folder> {
        match &self.stage {
            Stage::Gating { folder, .. } | Stage::Moving { folder, .. } => Some(folder),
            Stage::Replacing | Stage::Replaced(_) => None,
        }
    }
}

/// Waits until everything is moved, for ever if nothing moves.
pub async fn moved(switching: &mut Option<Switching>) -> Result<Moved, DatapathError> {
    match switching {
        Some(Switching { stage: Stage::Moving { moved, .. }, .. }) => moved.await.unwrap_or_else(|_| {
            Err(DatapathError::BadObject { reason: "the thread that moves connections is gone".into() })
        }),
        _ => std::future::pending().await,
    }
}

impl Datapath {
    /// Whether connections are not all in the tables of this agent.
    pub(crate) fn is_moving(&self) -> bool {
        self.switching.as_ref().is_some_and(Switching::moves)
    }

    /// Lets the gates call the programs of this agent, and keeps these for the next start.
    pub(crate) fn keep_for_gates(&self) -> Result<(), DatapathError> {
        let Some(folder) = self.switching.as_ref().and_then(Switching::folder) else { return Ok(()) };
        let sockets = cgroup_links::PROGRAMS.map(|(name, _)| name);
        let kept = GATES.into_iter().map(|(entry, _)| entry).chain(sockets);
        kept.filter_map(|name| Some((name, self.kernel.programs.get(name)?)))
            .try_for_each(|(name, program)| folder.put(Side::New, name, program.descriptor()))
    }

    /// Goes on as far as the attachments allow; the answer is when to look again.
    pub(crate) fn go_on_switching(&mut self) -> Result<Option<Instant>, DatapathError> {
        let Some(switching) = &self.switching else { return Ok(None) };
        let now = Instant::now();
        match &switching.stage {
            Stage::Gating { folder, since } => {
                let is_loading = !self.loads.is_idle() || self.attacher.wants_programs();
                let others = self.others(true)?;
                if is_loading || (!others.is_empty() && now < *since + PATIENCE) {
                    return Ok(Some(now + AGAIN));
                }
                for place in others {
                    tracing::warn!(place = place.name, "it takes no gate: its connections may be reset");
                }
                let folder = folder.clone();
                self.switch(folder)?;
                Ok(None)
            }
            Stage::Moving { .. } => Ok(None),
            Stage::Replacing => {
                if !self.loads.is_idle() || !self.others(false)?.is_empty() {
                    return Ok(Some(now + AGAIN));
                }
                self.set_stage(Stage::Replaced(now));
                Ok(Some(now + GRACE))
            }
            Stage::Replaced(at) if now < *at + GRACE => Ok(Some(*at + GRACE)),
            Stage::Replaced(_) => {
                let (root, set) = (self.attacher.pins().root().to_owned(), switching.set.clone());
                sets::finish_removals(&root)?;
                Folder::all(&root).iter().try_for_each(Folder::remove)?;
                sets::remove_others(&root, &[&set])?;
                self.kernel.programs.forget_gates();
                self.switching = None;
                Ok(None)
            }
        }
    }

    /// Everything was moved, or that failed: then it is tried again.
    pub(crate) fn end_moving(&mut self, moved: Result<Moved, DatapathError>) -> Result<(), DatapathError> {
        let Some(Switching { stage: Stage::Moving { folder, .. }, .. }) = &self.switching else { return Ok(()) };
        match moved {
            Ok(Moved { moved, dropped, stuck, .. }) => {
                tracing::info!(moved, dropped, stuck, "connections moved to the tables in force");
                self.kernel.programs.set_gated(false);
                self.set_stage(Stage::Replacing);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "connections are not all moved; tried again, meanwhile the old programs serve them");
                let folder = folder.clone();
                self.begin_moving(folder, AGAIN)
            }
        }
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(switching) = &mut self.switching {
            switching.stage = stage;
        }
    }

    /// Puts the new set in force.
    fn switch(&mut self, folder: Folder) -> Result<(), DatapathError> {
        Moving::new(folder.clone(), self.attacher.pins().clone())?.reserve()?;
        folder.switch()?;
        sets::put_in_force(self.attacher.pins().root(), self.attacher.pins().tables())?;
        tracing::info!(tables = %self.attacher.pins().tables().display(), "other tables are in force");
        self.begin_moving(folder, Duration::ZERO)
    }

    fn begin_moving(&mut self, folder: Folder, pause: Duration) -> Result<(), DatapathError> {
        let (done, moved) = oneshot::channel();
        let (work, cgroup) = (Moving::new(folder.clone(), self.attacher.pins().clone())?, self.cgroup.clone());
        let run = move || {
            if !pause.is_zero() {
                // Nobody unparks this thread.
                thread::park_timeout(pause);
            }
            let root: Option<&CgroupRoot> = cgroup.as_deref();
            // The receiver is gone if the agent stops: the next start goes on.
            let _ = done.send(work.run(root));
        };
        let thread = thread::Builder::new().name("move".into()).spawn(run);
        thread.map_err(DatapathError::kernel("start a thread"))?;
        self.set_stage(Stage::Moving { folder, moved });
        Ok(())
    }

    /// Places where neither a gate nor, where none is asked for, a program of this agent hangs.
    fn others(&self, gates: bool) -> Result<Vec<AttachedProgram>, DatapathError> {
        let is_gate = |name: &str| GATES.iter().any(|(_, gate)| *gate == name);
        let asked = self.kernel.programs.iter().filter(|(name, _)| is_gate(name) == gates);
        let asked: BTreeSet<u32> = asked.map(|(_, program)| program.id).collect();
        let attached_programs = attached_programs(self.attacher.pins())?;
        Ok(attached_programs.into_iter().filter(|place| !asked.contains(&place.program_id)).collect())
    }
}
