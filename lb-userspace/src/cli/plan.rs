//! `ballast plan`: what a change would do on this node. The agent plans it, the connections are counted over the pinned maps, and nothing is written.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;

use super::agent_dirs::AgentDirs;
use super::output::{Format, complain, print, render, sentence};
use crate::agent::clock;
use crate::observe::preview::{self, PlanReport};
use crate::observe::report_socket::{self, MAX_CHANGE_BYTES};
use lb_datapath::maps_dir;
use lb_objects::change::ObjectChange;

/// Something would differ.
const DIFFERS: u8 = 1;
/// It cannot be planned.
const FAILED: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Manifests of Services and EndpointSlices that replace objects of their names, or come to them; - is standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    dirs: AgentDirs,
}

/// As `kubectl diff`. 0: nothing would differ; 1: something would; 2: it cannot be planned.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let shown = planned(arguments).and_then(|report| {
        print(&render(arguments.output, &report, |wide| preview::table(&report, wide))?)?;
        Ok(if report.differs { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
    });
    shown.unwrap_or_else(|error| {
        complain(sentence(&error));
        ExitCode::from(FAILED)
    })
}

fn planned(arguments: &Arguments) -> anyhow::Result<PlanReport> {
    let (name, change) = read(&arguments.filename)?;
    // What is wrong with the file is said by its name, whether an agent runs or not.
    ObjectChange::parse(&name, &change)?;
    let mut report = arguments.dirs.ask(|run_dir| report_socket::plan(run_dir, change))?;
    if let Some(error) = &report.error {
        bail!("{error}");
    }
    if report.differs {
        let contents = preview::read(&maps_dir(&arguments.dirs.bpffs))?;
        report.count(&contents, clock::monotonic());
    }
    Ok(report)
}

/// The name and the text of the change.
fn read(path: &Path) -> anyhow::Result<(String, String)> {
    if path == Path::new("-") {
        return Ok(("standard input".to_owned(), bounded(std::io::stdin().lock(), "standard input")?));
    }
    let name = path.display().to_string();
    let file = std::fs::File::open(path).with_context(|| format!("{name} cannot be read"))?;
    let text = bounded(file, &name)?;
    Ok((name, text))
}

fn bounded(from: impl Read, name: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    from.take(MAX_CHANGE_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("{name} cannot be read"))?;
    if text.len() > MAX_CHANGE_BYTES {
        bail!("{name} has more than {} MiB: plan fewer objects at a time", MAX_CHANGE_BYTES >> 20);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_read_up_to_its_bound() {
        let longest = vec![b'#'; MAX_CHANGE_BYTES];
        assert_eq!(bounded(&longest[..], "c.yaml").expect("it fits").len(), MAX_CHANGE_BYTES);
        let longer = vec![b'#'; MAX_CHANGE_BYTES + 1];
        let error = bounded(&longer[..], "c.yaml").expect_err("too long").to_string();
        assert_eq!(error, "c.yaml has more than 4 MiB: plan fewer objects at a time");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = sentence(&read(Path::new("/nowhere/c.yaml")).expect_err("missing"));
        assert!(error.starts_with("/nowhere/c.yaml cannot be read: "), "{error}");
    }
}
