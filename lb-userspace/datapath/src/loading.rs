//! The data path takes over programs as they come into the kernel: those of the start, and those that an interface asks for later.

use tokio::time::Instant;

use super::{Datapath, DatapathError, cgroup_links, loaded::Outcomes, loads::Loading};

impl Datapath {
    /// Waits until the first programs are in the kernel, and attaches those of the sockets.
    pub(super) async fn finish_loading(&mut self) -> Result<(), DatapathError> {
        let Some((mut loading, mut created)) = self.loads.first.take() else { return Ok(()) };
        let mut outcomes = loading.end().await?;
        if let Some(refused) = outcomes.iter().position(|(_, outcome)| outcome.is_err()) {
            return outcomes.swap_remove(refused).1.map(drop);
        }
        self.kernel.programs.add(outcomes, &self.kernel.program_pins, Instant::now())?;
        self.keep_for_gates()?;
        match &self.cgroup {
            // Replaced when the tables are in force that their programs know.
            Some(_) if self.is_moving() => {}
            Some(root) => {
                cgroup_links::attach(root, &self.kernel.programs, self.attacher.pins(), &mut created)?;
                cgroup_links::remove_second(self.attacher.pins())?;
            }
            None => cgroup_links::detach(self.attacher.pins())?,
        }
        created.keep();
        Ok(())
    }

    /// Begins to load the programs that interfaces have asked for, if none are being loaded.
    pub(super) fn load_missing(&mut self) -> Result<(), DatapathError> {
        let missing = self.attacher.take_missing();
        if !self.loads.is_idle() {
            // Asked for again as soon as these are loaded.
            return Ok(());
        }
        let due = self.kernel.programs.due(missing, Instant::now());
        if !due.is_empty() {
            tracing::info!(programs = ?due, "an interface needs programs that are not loaded yet");
            let recipe = self.kernel.recipe.clone();
            self.loads.later = Some(Loading::begin(due, self.kernel.program_pins.clone(), move || recipe.object())?);
        }
        Ok(())
    }

    /// Takes over the programs that were loaded later, or why they were not.
    pub(super) fn add_later(&mut self, (loading, loaded): (Loading, Result<Outcomes, DatapathError>)) {
        let now = Instant::now();
        let added = loaded.and_then(|outcomes| self.kernel.programs.add(outcomes, &self.kernel.program_pins, now));
        let added = added.and_then(|()| self.keep_for_gates());
        if let Err(error) = added {
            loading.names.iter().for_each(|name| self.kernel.programs.refuse(name, &error, now));
        }
    }
}
