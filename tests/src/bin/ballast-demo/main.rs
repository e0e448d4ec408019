//! `ballast-demo`, which `cargo xtask run` starts: Ballast on a small network, a tour of what it does, and time to play.

mod fixture;
mod incidents;
mod manifest;
mod report;
mod tour;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args as _, FromArgMatches as _, Parser};
use lb_userspace::config::Options;
use nix::sys::signal::{SigSet, Signal};

use crate::fixture::{Fixture, Setting};
use crate::report::Report;
use crate::waiting::Waiting;

/// How long connections of a removed backend go on in the demo.
const DRAIN_PERIOD: Duration = Duration::from_secs(5);

/// Ballast on a small network of namespaces: a tour, and time to play.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask run")]
struct Arguments {
    /// The agent to run.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// The manifest to serve; the agent watches a copy.
    #[arg(long, value_name = "PATH")]
    sample: PathBuf,
    /// End after the tour; fail unless every step did what it says.
    #[arg(long)]
    once: bool,
    /// The steps as JSON.
    #[arg(long)]
    json: bool,
    /// Flags for the agent.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

fn main() -> ExitCode {
    // Before any thread starts, so that all of them inherit it: signals wait for `watch`.
    let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
    match signals.thread_block().context("blocking signals").and_then(|()| run(Arguments::parse(), signals)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments, signals: SigSet) -> Result<()> {
    let mut report = Report { json: arguments.json, ..Report::default() };
    report.say("a node, three backends, a client pod, a host outside: both families, all in network namespaces");
    let setting = Setting {
        agent: arguments.agent,
        sample: arguments.sample,
        drain_period: drain_period(&arguments.flags)?,
        flags: arguments.flags,
    };
    let waiting = Waiting { quiet: arguments.json, interrupted: Arc::clone(&report.interrupted) };
    let mut fixture = Fixture::new(setting, waiting)?;
    let signal = watch(signals, &report)?;
    tour::tour(&mut fixture, &mut report);
    incidents::replay(&mut report);
    let interrupted = report.interrupted.swap(false, Ordering::Relaxed);
    let log = std::fs::read_to_string(fixture.log()).unwrap_or_default();
    if report.verdict().is_err() {
        eprintln!("the agent's log:\n{log}");
    }
    if !arguments.once && !interrupted {
        play(&fixture);
        signal.recv().context("waiting for a signal")?;
        report.say("\ncleaning up");
    }
    report.interrupted.store(false, Ordering::Relaxed);
    report.step("cleanup leaves nothing behind", || cleanup(&mut fixture));
    drop(fixture);
    report.print_json()?;
    ensure!(!(arguments.once && interrupted), "interrupted before the tour was over");
    report.verdict()
}

/// Waits for a signal on a thread of its own: the tour then begins no further step, and waits end.
fn watch(signals: SigSet, report: &Report) -> Result<Receiver<Signal>> {
    let (tell, told) = channel();
    let interrupted = Arc::clone(&report.interrupted);
    let wait = move || {
        if let Ok(signal) = signals.wait() {
            interrupted.store(true, Ordering::Relaxed);
            tell.send(signal).ok();
        }
    };
    std::thread::Builder::new().spawn(wait).context("starting a thread")?;
    Ok(told)
}

/// The agent's drain period: short, so that the tour need not wait, unless the flags say otherwise.
fn drain_period(flags: &[String]) -> Result<Duration> {
    let command = Options::augment_args(clap::Command::new("agent").no_binary_name(true));
    let matches = command.try_get_matches_from(flags).context("the flags after -- are the agent's")?;
    Ok(Options::from_arg_matches(&matches)?.drain_period.unwrap_or(DRAIN_PERIOD))
}

/// Says what there is to try.
fn play(fixture: &Fixture) {
    let (agent, places) = (fixture.setting.agent.display(), fixture.places().join(" "));
    let (client, manifest) = (fixture.client.namespace().name(), fixture.manifest());
    println!("\nIt stays up until Ctrl-C. To try, in another terminal:");
    println!("  ip netns exec {client} bash -c 'exec 3<>/dev/tcp/10.96.0.10/80; echo hello >&3; head -1 <&3'");
    println!("  ip netns exec {client} bash -c 'exec 3<>/dev/tcp/fd00:96::a/80; echo hello >&3; head -1 <&3'");
    println!("  ip netns exec {client} bash -c 'exec 3<>/dev/tcp/10.96.0.99/80'     # no endpoints: refused");
    println!("  {agent} get services {places}");
    println!("  {agent} get backends -o wide {places}");
    println!("  {agent} get connections {places}");
    println!("  {agent} status {places}");
    println!("  $EDITOR {}      # traffic follows", manifest.display());
    println!("  tail -f {}", fixture.log().display());
    println!("  bpftool map dump pinned {}/ballast/tables/services4", fixture.node.bpffs().display());
}

/// The agent's own cleanup: what it removes is gone, and a second one finds nothing.
fn cleanup(fixture: &mut Fixture) -> Result<String> {
    fixture.kill_agent();
    let removed = fixture.ballast(&["cleanup"])?.lines().count();
    let again = fixture.ballast(&["cleanup", "--dry-run"])?;
    ensure!(!again.contains("would remove"), "a second cleanup would still remove:\n{again}");
    Ok(format!("{removed} things removed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_flags_say_how_long_a_drain_takes() {
        assert_eq!(drain_period(&[]).expect("none given"), DRAIN_PERIOD);
        let flags = ["--drain-period".to_owned(), "1m".to_owned()];
        assert_eq!(drain_period(&flags).expect("valid"), Duration::from_mins(1));
        assert!(drain_period(&["--drian-period=1m".to_owned()]).is_err());
    }
}
