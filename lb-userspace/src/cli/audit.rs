//! `ballast audit`: asks the agent to compare what is in the kernel with its plan; without one, the tables with themselves.

use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::agent_dirs::AgentDirs;
use super::output::{Format, complain, print, render, sentence};
use super::progress::Progress;
use crate::observe::report_socket::{self, AskError};
use crate::observe::table::{aligned, or_dash};
use lb_datapath::maps_dir;
use lb_plan::apply::{self, AuditReport, KernelStore};
use lb_tables::Pinned;

/// Something differed.
const FOUND: u8 = 1;
/// The audit could not be made, or not in full.
const FAILED: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Report differences and repair nothing; without an agent the tables are compared with themselves
    #[arg(long)]
    dry_run: bool,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    dirs: AgentDirs,
}

/// An audit, and who made it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(super) struct Audited {
    /// Null: the agent did.
    agent_error: Option<String>,
    #[serde(flatten)]
    report: AuditReport,
}

/// 0: nothing differs; 1: something did, and was put right unless it was a dry run; 2: it could not be found out in full, or
/// not be put right.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let progress = Progress::of(arguments.output, "comparing the tables");
    let found = audit(arguments);
    drop(progress);
    let shown = found.and_then(|audited| {
        print(&render(arguments.output, &audited, |_| text(&audited))?)?;
        Ok(code(&audited.report))
    });
    shown.unwrap_or_else(|error| {
        complain(sentence(&error));
        ExitCode::from(FAILED)
    })
}

fn code(report: &AuditReport) -> ExitCode {
    if !report.failures.is_empty() {
        ExitCode::from(FAILED)
    } else if report.findings.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FOUND)
    }
}

fn audit(arguments: &Arguments) -> anyhow::Result<Audited> {
    match arguments.dirs.ask(|run_dir| report_socket::audit(run_dir, arguments.dry_run)) {
        Ok(report) => Ok(Audited { agent_error: None, report }),
        Err(error @ AskError::NotRunning { .. }) if arguments.dry_run => {
            Ok(Audited { agent_error: Some(error.to_string()), report: alone(&arguments.dirs)? })
        }
        Err(error @ AskError::NotRunning { .. }) => {
            Err(anyhow::anyhow!("{error}; with --dry-run the tables are compared with themselves"))
        }
        Err(error) => Err(error.into()),
    }
}

/// The findings that need no plan.
fn alone(dirs: &AgentDirs) -> anyhow::Result<AuditReport> {
    let store = KernelStore::new(Pinned::open(&maps_dir(&dirs.bpffs))?);
    let (loaded, checked) = apply::read_all(&store)?;
    Ok(AuditReport { dry_run: true, checked, findings: apply::inspect(&loaded), failures: Vec::new() })
}

fn text(audited: &Audited) -> String {
    let report = &audited.report;
    let mut text = String::new();
    if let Some(error) = &audited.agent_error {
        let _ = writeln!(text, "{error}: the tables are compared with themselves");
    }
    if !report.findings.is_empty() {
        let row = |finding: &apply::Finding| {
            vec![
                finding.table.clone(),
                finding.entry.clone(),
                finding.kind.to_string(),
                if finding.repaired { "yes" } else { "no" }.to_owned(),
                or_dash(finding.service.as_ref()),
                or_dash(Some(&finding.difference).filter(|difference| !difference.is_empty())),
            ]
        };
        let header = ["TABLE", "ENTRY", "FINDING", "REPAIRED", "SERVICE", "DIFFERENCE"];
        text.push_str(&aligned(&header, report.findings.iter().map(row)));
    }
    for failure in &report.failures {
        let _ = writeln!(text, "failed: {failure}");
    }
    let (found, repaired) = (report.findings.len(), report.repaired());
    let _ = writeln!(text, "{} entries compared, {found} differ, {repaired} repaired", report.checked);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_plan::apply::{Finding, FindingKind};

    #[test]
    fn the_table_names_what_differs_and_whether_it_was_put_right() {
        let finding = Finding {
            kind: FindingKind::Edited,
            table: "services4".into(),
            entry: "10.96.0.1:80/TCP".into(),
            service: Some("shop/web:80/TCP".into()),
            difference: "id 3, expected 1".into(),
            repaired: true,
        };
        let report = AuditReport { checked: 12, findings: vec![finding], ..AuditReport::default() };
        let text = text(&Audited { agent_error: None, report });
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("TABLE") && lines[1].contains("services4  10.96.0.1:80/TCP  edited"), "{text}");
        assert_eq!(lines[2], "12 entries compared, 1 differ, 1 repaired");
    }
}
