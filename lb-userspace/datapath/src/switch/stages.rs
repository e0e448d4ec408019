//! The stages of a switch, as the running data path takes them: gates everywhere, the word, what is moved, the new programs everywhere.

use std::{collections::BTreeSet, thread, time::Duration};

use lb_common::switch::GATES;
use tokio::{sync::oneshot, time::Instant};

use super::{
    attached_programs::{AttachedProgram, attached_programs},
    folder::{Folder, Side},
    moving::Moving,
    switching::{Stage, Switching},
};
use crate::{Datapath, DatapathError, cgroup::CgroupRoot, layout::Moved, programs::SOCKET_PROGRAMS, sets};

/// So long the switch waits for an interface that takes no gate.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the places are looked at again.
const AGAIN: Duration = Duration::from_millis(500);
/// A packet may still be in a gate, or in an old program, so long after it was replaced.
const GRACE: Duration = Duration::from_secs(1);

impl Datapath {
    /// Whether connections are not all in the tables of this agent.
    pub(crate) fn is_moving(&self) -> bool {
        self.switching.as_ref().is_some_and(Switching::moves)
    }

    /// Lets the gates call the programs of this agent, and keeps these for the next start.
    pub(crate) fn keep_for_gates(&self) -> Result<(), DatapathError> {
        let Some(folder) = self.switching.as_ref().and_then(Switching::folder) else { return Ok(()) };
        let sockets = SOCKET_PROGRAMS.map(|(name, _)| name);
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
