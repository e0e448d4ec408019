//! What health-check node ports answered last, in a file of the run folder: an agent that starts again answers the same until its
//! source has spoken.
//!
//! The tables serve on meanwhile, so it is still true of what they hold. A folder that a restart of the machine empties is right.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use lb_model::ObjectName;
use lb_plan::plan::HealthCheck;

/// Name of the file in the run folder.
pub(super) const FILE: &str = "health-checks";

/// What is answered on each port.
pub(super) type Checks = BTreeMap<u16, HealthCheck>;

/// The file and what it holds.
#[derive(Debug)]
pub(super) struct Memory {
    file: PathBuf,
    written: Checks,
}

impl Memory {
    /// What an agent before this one wrote in this run folder; nothing, if there is none or it cannot be read: it costs an answer or two.
    pub fn open(run_dir: &Path) -> Self {
        let file = run_dir.join(FILE);
        let written = std::fs::read_to_string(&file).map(|text| read(&text)).unwrap_or_default();
        Self { file, written }
    }

    pub fn answers(&self) -> &Checks {
        &self.written
    }

    /// Writes the answers down where they are others, in one step.
    pub fn keep(&mut self, answers: &Checks) -> io::Result<()> {
        if self.written == *answers {
            return Ok(());
        }
        let new = self.file.with_extension("new");
        std::fs::write(&new, text(answers))?;
        std::fs::rename(&new, &self.file)?;
        self.written.clone_from(answers);
        Ok(())
    }
}

fn text(answers: &Checks) -> String {
    answers.iter().fold(String::new(), |text, (port, check)| {
        let ObjectName { namespace, name } = &check.service;
        text + &format!("{port} {namespace} {name} {}\n", check.local_ready)
    })
}

/// A line that cannot be read is left out.
fn read(text: &str) -> Checks {
    let check = |line: &str| {
        let mut words = line.split(' ');
        let (port, namespace, name) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
        let local_ready = words.next()?.parse().ok()?;
        Some((port, HealthCheck { service: ObjectName::new(namespace, name), local_ready }))
    };
    text.lines().filter_map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(local_ready: usize) -> Checks {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready };
        [(32_100, check)].into()
    }

    #[test]
    fn what_was_answered_is_known_to_the_next_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut first = Memory::open(dir.path());
        assert_eq!(*first.answers(), Checks::default());
        for said in [answers(2), answers(0)] {
            first.keep(&said).expect("writable");
            assert_eq!(*Memory::open(dir.path()).answers(), said);
        }
    }

    #[test]
    fn a_broken_line_costs_that_line_alone() {
        let text = "leaving\n32100 demo web 2\n32101 demo\n99999 demo api 1\nx\n";
        assert_eq!(read(text), answers(2));
    }
}
