//! `ballast cleanup`: takes off the node what the agent left there.

use clap::Args;

use super::{Place, print};
use crate::datapath;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only list what would be removed
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    place: Place,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let removed = datapath::cleanup(&arguments.place.bpffs, &arguments.place.run_dir, arguments.dry_run)?;
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    let lines = removed.iter().map(|removed| format!("{verb} {} {}\n", removed.kind, removed.what));
    let text: String = lines.collect();
    print(if text.is_empty() { "nothing of ours is there\n" } else { &text })
}
