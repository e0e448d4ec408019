//! What health-check node ports answered last, in a file of the run folder: an agent that starts again answers the same until its
//! source has spoken.
//!
//! The tables serve on meanwhile, so it is still true of what they hold. A folder that a restart of the machine empties is right.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::model::ObjectName;
use crate::plan::HealthCheck;

/// Name of the file in the run folder.
const FILE: &str = "health-checks";
/// First word of the line that says that the node is leaving.
const LEAVING: &str = "leaving";

/// What is answered on each port, and whether the node is about to leave its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answers {
    pub checks: BTreeMap<u16, HealthCheck>,
    pub leaving: bool,
}

/// The file and what it holds.
#[derive(Debug)]
pub(super) struct Memory {
    file: PathBuf,
    written: Answers,
}

impl Memory {
    /// What an agent before this one wrote in this run folder; nothing, if there is none or it cannot be read: it costs an answer or two.
    pub fn open(run_dir: &Path) -> Self {
        let file = run_dir.join(FILE);
        let written = std::fs::read_to_string(&file).map(|text| read(&text)).unwrap_or_default();
        Self { file, written }
    }

    pub fn answers(&self) -> &Answers {
        &self.written
    }

    /// Writes the answers down where they are others, in one step.
    pub fn keep(&mut self, answers: &Answers) -> io::Result<()> {
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

fn text(answers: &Answers) -> String {
    let head = if answers.leaving { format!("{LEAVING}\n") } else { String::new() };
    answers.checks.iter().fold(head, |text, (port, check)| {
        let ObjectName { namespace, name } = &check.service;
        text + &format!("{port} {namespace} {name} {}\n", check.local_ready)
    })
}

/// A line that cannot be read is left out.
fn read(text: &str) -> Answers {
    let check = |line: &str| {
        let mut words = line.split(' ');
        let (port, namespace, name) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
        let local_ready = words.next()?.parse().ok()?;
        Some((port, HealthCheck { service: ObjectName::new(namespace, name), local_ready }))
    };
    Answers { checks: text.lines().filter_map(check).collect(), leaving: text.lines().any(|line| line == LEAVING) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(local_ready: usize, leaving: bool) -> Answers {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready };
        Answers { checks: [(32_100, check)].into(), leaving }
    }

    #[test]
    fn what_was_answered_is_known_to_the_next_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut first = Memory::open(dir.path());
        assert_eq!(*first.answers(), Answers::default());
        for said in [answers(2, false), answers(0, true)] {
            first.keep(&said).expect("writable");
            assert_eq!(*Memory::open(dir.path()).answers(), said);
        }
    }

    #[test]
    fn a_broken_line_costs_that_line_alone() {
        let text = "32100 demo web 2\n32101 demo\n99999 demo api 1\nx\n";
        assert_eq!(read(text), answers(2, false));
    }
}
