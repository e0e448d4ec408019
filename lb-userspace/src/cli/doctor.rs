//! `ballast doctor`: what on this node keeps Ballast from working, each with the remedy; works without an agent.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::agent_dirs::AgentDirs;
use super::output::{Format, complain, print, render, sentence};
use crate::config::{CgroupRoot, DEFAULT_BPFFS, DEFAULT_RUN_DIR, Options};
use crate::observe::report::TablesReport;
use crate::observe::report_socket::{self, AskError};
use crate::observe::status::LOCAL_CLUSTER_IP;
use crate::observe::table::{aligned, or_dash};
use lb_datapath::doctor::{Finding, Level, Wishes, examine};
use lb_datapath::sockets::namespaces;
use lb_datapath::{SocketLb, TcAttach, XdpMode};

/// Where `ip netns` keeps namespaces.
const NAMED: &str = "/run/netns";
/// Something must be put right.
const FOUND: u8 = 1;
/// It could not be found out.
const FAILED: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// The agent's configuration; flags win
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Examined {
    /// The worst of the findings.
    level: Level,
    findings: Vec<Finding>,
}

/// 0: nothing fails, warnings there may be; 1: something does; 2: it could not be found out.
pub(super) fn run(arguments: Arguments) -> ExitCode {
    let output = arguments.output;
    let shown = examine_node(arguments).and_then(|examined| {
        print(&render(output, &examined, |_| text(&examined))?)?;
        Ok(if examined.level == Level::Fail { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
    });
    shown.unwrap_or_else(|error| {
        complain(sentence(&error));
        ExitCode::from(FAILED)
    })
}

fn examine_node(arguments: Arguments) -> anyhow::Result<Examined> {
    let options = match &arguments.config {
        Some(path) => arguments.options.or(Options::read(path)?),
        None => arguments.options,
    };
    let run_dir = options.run_dir.clone().unwrap_or_else(|| DEFAULT_RUN_DIR.into());
    let wishes = wishes(options);
    let dirs = AgentDirs { bpffs: wishes.bpffs.clone(), run_dir };
    let mut findings = examine(&wishes);
    findings.extend(agent(&dirs));
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    Ok(Examined { level, findings })
}

/// What the agent would be asked to do, by the same defaults.
fn wishes(options: Options) -> Wishes {
    let cgroup_root = match options.cgroup_root {
        Some(CgroupRoot::At(path)) => Some(path),
        _ => None,
    };
    Wishes {
        bpffs: options.bpffs.unwrap_or_else(|| DEFAULT_BPFFS.into()),
        cgroup_root,
        socket_lb: options.socket_lb.unwrap_or(SocketLb::Host),
        tc_attach: options.tc_attach.unwrap_or(TcAttach::Auto),
        xdp_mode: options.xdp_mode.unwrap_or(XdpMode::Auto),
        mode: options.mode.unwrap_or_default(),
        pod_interfaces: options.pod_interfaces.unwrap_or_default(),
        external_interfaces: options.external_interfaces.unwrap_or_default(),
        namespaces: namespaces::all(Path::new("/proc")).into_iter().chain(named_namespaces()).collect(),
    }
}

/// Namespaces that have a name, and perhaps no process.
fn named_namespaces() -> impl Iterator<Item = File> {
    let entries = std::fs::read_dir(NAMED).into_iter().flatten().flatten();
    entries.filter_map(|entry| File::open(entry.path()).ok())
}

/// What a running agent says itself.
fn agent(dirs: &AgentDirs) -> Vec<Finding> {
    let finding = |level, found: String, remedy: Option<&str>| Finding {
        check: "agent",
        level,
        found,
        remedy: remedy.map(str::to_owned),
    };
    let report = match dirs.ask(report_socket::ask) {
        Ok(report) => report,
        Err(error @ AskError::NotRunning { .. }) => return vec![finding(Level::Ok, error.to_string(), None)],
        Err(error @ AskError::Denied { .. }) => return vec![finding(Level::Warn, error.to_string(), None)],
        Err(error @ AskError::Elsewhere { .. }) => {
            let remedy = "give its --run-dir, or correct what its log says of that folder";
            return vec![finding(Level::Warn, error.to_string(), Some(remedy))];
        }
        Err(error @ AskError::NoReport { .. }) => {
            let remedy = "look at its log; `ballast status` must answer within seconds";
            return vec![finding(Level::Warn, error.to_string(), Some(remedy))];
        }
    };
    let reported = report.datapath.problems.iter().chain(&report.datapath.warnings);
    let parted = |level, text: &str| {
        let (found, remedy) = text.split_once("; ").unwrap_or((text, "ballast status says more"));
        finding(level, found.to_owned(), Some(remedy))
    };
    let reported = reported.map(|text| parted(Level::Warn, text));
    let address = report.source.api_address_problem.iter().map(|text| parted(Level::Fail, text));
    let local = report.tables.local_cluster_ips.iter().map(|address| Finding {
        check: "local-cluster-ips",
        level: Level::Ok,
        found: format!("{address}: {LOCAL_CLUSTER_IP}"),
        remedy: None,
    });
    let troubled = endpoints(&report.tables);
    let runs = finding(Level::Ok, "runs".to_owned(), None);
    [runs].into_iter().chain(address).chain(reported).chain(local).chain(troubled).collect()
}

/// Service ports without an endpoint, and addresses that two entries have.
pub(super) fn endpoints(tables: &TablesReport) -> impl Iterator<Item = Finding> {
    let problems = tables.endpoint_problems.iter().filter(|problem| !problem.partial);
    problems.map(|problem| Finding {
        check: "endpoints",
        level: if problem.usual { Level::Ok } else { Level::Warn },
        found: format!("{}: {problem}", problem.subject()),
        remedy: Some(problem.remedy.clone()),
    })
}

fn text(examined: &Examined) -> String {
    let rows = examined.findings.iter().map(|finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Fail => "FAIL",
        };
        vec![level.to_owned(), finding.check.to_owned(), finding.found.clone(), or_dash(finding.remedy.as_deref())]
    });
    aligned(&["LEVEL", "CHECK", "FOUND", "REMEDY"], rows)
}
