//! `ballast cleanup`: takes off the node what the agent left there, or what kube-proxy did.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::agent_dirs::AgentDirs;
use super::output::print;
use super::progress::Progress;
use crate::agent::run_files;
use lb_datapath::{RunFolder, doctor::kube_proxy_runs};
use lb_tables::Pinned;
use lb_takeover::conntrack::Family;
use lb_takeover::hand_over::{families, hand_over};
use lb_takeover::netfilter::{Done, LeftoverOutcome, Leftovers};

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command line")]
pub(super) struct Arguments {
    /// Only list what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Remove what kube-proxy left instead: its rules, sets, chains and IPVS services. Ballast's own things stay
    #[arg(long)]
    kube_proxy: bool,

    /// First give all connections to kube-proxy, which has its rules on this node already: none is lost
    #[arg(long, conflicts_with_all = ["dry_run", "kube_proxy"])]
    hand_over: bool,

    /// Then wait for SIGTERM: a DaemonSet does not start it again
    #[arg(long, conflicts_with = "dry_run")]
    hold: bool,

    #[command(flatten)]
    dirs: AgentDirs,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let done = if arguments.kube_proxy { of_kube_proxy(arguments.dry_run) } else { of_ballast(arguments) };
    done?;
    if arguments.hold { hold() } else { Ok(()) }
}

fn of_ballast(arguments: &Arguments) -> anyhow::Result<()> {
    let AgentDirs { bpffs, run_dir } = &arguments.dirs;
    let run = RunFolder { path: run_dir, files: &run_files() };
    let removed = if arguments.hand_over {
        lb_datapath::cleanup_after(bpffs, run, give)?
    } else {
        lb_datapath::cleanup(bpffs, run, arguments.dry_run)?
    };
    let verb = if arguments.dry_run { "would remove" } else { "removed" };
    let lines = removed.iter().map(|removed| format!("{verb} {} {}\n", removed.kind, removed.what));
    let text: String = lines.collect();
    print(if text.is_empty() { "nothing of ours is there\n" } else { &text })
}

/// Gives the connections to kube-proxy.
fn give(maps: &Path) -> anyhow::Result<()> {
    let maps = Pinned::open(maps)?;
    let rules = Leftovers::find()?;
    let is_missing = |family: &Family| !rules.serves(*family);
    if rules.modes().is_empty() || families(&maps)?.iter().any(is_missing) {
        bail!(
            "kube-proxy has no rules on this node for each family that connections are of, and nobody would translate them; start kube-proxy, and repeat this"
        );
    }
    let progress = Progress::start("giving the connections to netfilter");
    let given = hand_over(&maps);
    drop(progress);
    let given = given?;
    let (count, hold) = (given.connections, given.longest_hold.as_millis());
    let mut text = format!("gave {count} connections to netfilter; none was held for longer than {hold} ms\n");
    if given.failed > 0 {
        writeln!(text, "{} connections end, because netfilter has others on their tuples:", given.failed)?;
        for name in &given.names {
            writeln!(text, "  {name}")?;
        }
    }
    print(&text)
}

fn of_kube_proxy(dry_run: bool) -> anyhow::Result<()> {
    if kube_proxy_runs() && !dry_run {
        bail!(
            "kube-proxy runs in this network namespace and would write its rules again; stop it first: keep its DaemonSet off this node"
        );
    }
    let done = Leftovers::find()?.remove(dry_run)?;
    let text: String = done.iter().map(|done| line(done, dry_run)).collect();
    print(if text.is_empty() { "nothing of kube-proxy is there\n" } else { &text })?;
    if done.iter().any(|done| done.outcome == LeftoverOutcome::Left) {
        bail!("some of it is left; the lines above say why");
    }
    Ok(())
}

fn line(done: &Done, dry_run: bool) -> String {
    let verb = match (done.outcome, dry_run) {
        (LeftoverOutcome::Removed, false) => "removed",
        (LeftoverOutcome::Removed, true) => "would remove",
        (LeftoverOutcome::Added, false) => "added",
        (LeftoverOutcome::Added, true) => "would add",
        (LeftoverOutcome::Kept, _) => "kept",
        (LeftoverOutcome::Left, _) => "left",
    };
    format!("{verb} {}\n", done.what)
}

/// Ends by SIGTERM or SIGINT.
fn hold() -> anyhow::Result<()> {
    print("done; waiting for SIGTERM\n")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}
