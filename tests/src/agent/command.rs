//! The agent's command line: its binary, and the arguments that every agent of the tests has.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::test_run;
use crate::topology::Node;

/// Room for all that most tests need. A third of a start's time goes into clearing the pages of maps of the default sizes.
const SMALL_MAPS: &str =
    "--map-sizes=backends=16384,flows4=32768,flows6=16384,udp_flows=16384,sockets=16384,half_open=16384,affinity=16384";

/// The arguments of an agent on this node with these flags, and the address of its metrics and probes.
pub(super) fn arguments(node: &Node, run_dir: &Path, folder: &Path, flags: &[&str]) -> Result<(Vec<String>, IpAddr)> {
    let mut arguments: Vec<String> = vec!["agent".into()];
    let mut has_source = false;
    for flag in flags {
        has_source |= *flag == "--source" || flag.starts_with("--source=");
        arguments.push((*flag).into());
    }
    if !has_source {
        arguments.push(format!("--source=file={}", folder.display()));
    }
    // Most clusters of tests have no Node objects.
    if flags.contains(&"--source=kube") && !flags.iter().any(|flag| flag.starts_with("--node-wait=")) {
        arguments.push("--node-wait=0s".into());
    }
    arguments.push(format!("--node-name={}", node.node_name()));
    arguments.push(format!("--cgroup-root={}", node.cgroup().display()));
    arguments.push(format!("--bpffs={}", node.bpffs().display()));
    arguments.push(format!("--run-dir={}", run_dir.display()));
    arguments.extend(other_programs()?);
    if !flags.iter().any(|flag| flag.starts_with("--map-sizes=")) {
        arguments.extend(lb_seed::short_or_long(Some(SMALL_MAPS.to_owned()), None));
    }
    let metrics = flags.iter().find_map(|flag| flag.strip_prefix("--metrics-bind="));
    let loopback = node.families().loopback();
    let asked_at = metrics.map_or(Ok(SocketAddr::new(loopback, 10249)), str::parse)?;
    if metrics.is_none() {
        arguments.push(format!("--metrics-bind={asked_at}"));
    }
    if !flags.iter().any(|flag| flag.starts_with("--health-bind=")) {
        arguments.push(format!("--health-bind={}", SocketAddr::new(loopback, 10256)));
    }
    Ok((arguments, asked_at.ip()))
}

/// The flag that has the agent load the programs under test, where `BALLAST_TEST_OBJECT` names others than the workspace's own.
fn other_programs() -> Result<Option<String>> {
    let Some(object) = std::env::var_os("BALLAST_TEST_OBJECT").map(PathBuf::from) else { return Ok(None) };
    let own = test_run::workspace().join("target/bpf/ballast.o");
    let is_own = object == own || std::fs::read(&object)? == std::fs::read(&own).unwrap_or_default();
    Ok((!is_own).then(|| format!("--programs={}", object.display())))
}

/// The agent: by itself, or started by `$BALLAST_CONFINED` (`ballast-confined`), which takes rights from it.
pub(super) fn of(binary: PathBuf) -> Command {
    match std::env::var_os("BALLAST_CONFINED") {
        Some(launcher) => {
            let mut command = Command::new(launcher);
            command.arg(binary);
            command
        }
        None => Command::new(binary),
    }
}

/// The agent's binary: `$BALLAST_BIN`, else the newest of those that the workspace built.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("BALLAST_BIN") {
        return Ok(path.into());
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let newest = ["debug", "release"]
        .map(|profile| target.join(profile).join("ballast"))
        .into_iter()
        .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
        .max();
    newest.map(|(_, path)| path).context("no agent was built: run `cargo xtask build`, or set BALLAST_BIN")
}
