//! `ballast audit`: compares the tables with the plan now, and puts right what differs.

use std::process::ExitCode;

use clap::Args;

use super::output::{Format, render};
use super::{Place, print};
use crate::apply::{AuditReport, KernelStore, Store as _, inspect};
use crate::datapath::maps_dir;
use crate::maps::Pinned;
use crate::observe::report_socket::{self, AskError};

/// Something differs, and was not put right.
const DIFFERS: u8 = 2;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only say what differs
    #[arg(long)]
    dry_run: bool,

    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    #[command(flatten)]
    place: Place,
}

/// The exit code is 0 if nothing differs any more, 2 if something does.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let report = match report_socket::audit(&arguments.place.run_dir, arguments.dry_run) {
        Ok(report) => report,
        Err(AskError::NotRunning { .. }) if arguments.dry_run => alone(&arguments.place)?,
        Err(error @ AskError::NotRunning { .. }) => {
            return Err(
                anyhow::Error::new(error).context("only an agent repairs the tables; --dry-run works without one")
            );
        }
        Err(error) => return Err(error.into()),
    };
    print(&render(arguments.output, &report, |_| text(&report))?)?;
    Ok(if is_right(&report) { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn is_right(report: &AuditReport) -> bool {
    report.failures.is_empty() && report.findings.len() == report.repaired()
}

/// Without an agent nobody knows the plan: the tables are compared with themselves.
fn alone(place: &Place) -> anyhow::Result<AuditReport> {
    let store = KernelStore::new(Pinned::open(&maps_dir(&place.bpffs))?);
    let mut loaded = store.load()?;
    let ranges = loaded.ranges(store.capacities().slots);
    let slots = store.slots(&ranges)?;
    let checked = loaded.frontends.len() + loaded.backends.len() + slots.iter().map(Vec::len).sum::<usize>();
    loaded.slots = ranges.into_iter().zip(slots).collect();
    Ok(AuditReport { dry_run: true, checked, findings: inspect(&loaded), ..AuditReport::default() })
}

fn text(report: &AuditReport) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        text += &finding.to_string();
        text.push('\n');
    }
    for failure in &report.failures {
        text += "failed: ";
        text += failure;
        text.push('\n');
    }
    let verdict = match (report.findings.len(), report.dry_run) {
        (0, _) => "nothing differs".to_owned(),
        (found, true) => format!("{found} differ"),
        (found, false) => format!("{found} differed, {} repaired", report.repaired()),
    };
    text + &format!("{} entries compared: {verdict}\n", report.checked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{Finding, FindingKind};

    #[test]
    fn what_differed_is_told_and_whether_it_is_right_now() {
        let finding = Finding {
            kind: FindingKind::Edited,
            table: "services4".into(),
            entry: "10.96.0.1:80/TCP".into(),
            service: Some("demo/web:80/TCP".into()),
            difference: "generation 9, expected 3".into(),
            repaired: false,
        };
        let mut report = AuditReport { checked: 12, ..AuditReport::default() };
        assert_eq!(text(&report), "12 entries compared: nothing differs\n");
        assert!(is_right(&report));
        report.findings.push(finding);
        assert!(!is_right(&report));
        report.findings[0].repaired = true;
        assert!(is_right(&report));
        let told = text(&report);
        assert!(told.starts_with("services4 10.96.0.1:80/TCP: edited (Service demo/web:80/TCP)"), "{told}");
        assert!(told.ends_with("12 entries compared: 1 differed, 1 repaired\n"), "{told}");
    }
}
