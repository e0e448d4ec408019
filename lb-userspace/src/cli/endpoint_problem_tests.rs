//! Each cause, in the words of every command and of the book.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lb_plan::plan::Cause;

use super::doctor;
use crate::observe::inventory::Inventory;
use crate::observe::inventory::tests::{NOW, contents};
use crate::observe::report::{EndpointProblemReport, TablesReport};
use crate::observe::text;
use lb_datapath::doctor::Level;

const INTRODUCTION: &str = "# Endpoint problems

With this page you find out why a service port has no endpoint, from what a command says of it. `ballast get services` says it below its table,
`ballast explain` in the row `ENDPOINTS`, `ballast doctor` as the check `endpoints`, and `-o json` in `endpointProblems`. Counts, ports and names follow
after a colon. The running agent knows the slices, so nothing is said of them without it.

| cause | what is said | what to do | Event |
|---|---|---|---|
";

const NOTES: &str = "
* An Event `EndpointProblem` is about the Service. It comes once the problem has lasted for 30 s, so most rollouts make none. One node posts it: the
  node of the first endpoint, or for two entries that of the one which serves.
* Where there is no endpoint there is no such node, and no Event: a Service that is scaled to zero is usual. A refused endpoint has an Event of its
  slice.
* A node without an endpoint of a Service with the policy Local is usual, too. `doctor` counts it as `ok`.
* Topology hints never leave a service port without an endpoint. Where they would, they are ignored
  ([Which endpoints](../semantics.md#which-endpoints)).
* The report of an agent names 256 problems at most. Each namespace has an equal share, and service ports without an endpoint come first.
";

#[test]
fn the_reference_has_every_cause() {
    let mut page = INTRODUCTION.to_owned();
    for cause in Cause::ALL {
        let event = if cause.has_event() { "yes" } else { "no" };
        writeln!(page, "| `{}` | {} | {} | {event} |", cause.name(), cause.phrase(), cause.remedy())
            .expect("a string takes all");
    }
    lb_pages::is_current("endpoint-problems.md", &(page + NOTES));
}

/// Likewise `explain` (`explain::tests::slices`) and Events (`agent::endpoint_events`).
#[test]
fn get_and_doctor_have_the_phrase_of_each_cause() {
    let names: BTreeSet<&str> = Cause::ALL.into_iter().map(Cause::name).collect();
    assert_eq!(names.len(), Cause::ALL.len());
    for cause in Cause::ALL {
        let (report, said) = (EndpointProblemReport::example(cause), format!("{}: the details", cause.phrase()));
        let data = contents();
        let mut services = Inventory::new(&data, NOW).services();
        for service in &mut services {
            service.take_problems(std::slice::from_ref(&report));
        }
        let line = format!("demo/web:80/TCP, IPv4: {said}\n");
        assert!(text::services(&services, false).ends_with(&line), "{cause:?}");
        let json = serde_json::to_value(&services[0]).expect("JSON");
        let found = &json["endpointProblems"][0];
        assert_eq!(
            (&found["cause"], &found["text"], &found["remedy"]),
            (&cause.name().into(), &said.clone().into(), &cause.remedy().into())
        );

        let tables = TablesReport { endpoint_problems: vec![report.clone()], ..TablesReport::default() };
        let found: Vec<_> = doctor::endpoints(&tables).collect();
        let level = if cause.is_usual() { Level::Ok } else { Level::Warn };
        assert_eq!((found.len(), found[0].check, found[0].level), (1, "endpoints", level));
        assert_eq!((found[0].found.as_str(), found[0].remedy.as_deref()), (line.trim_end(), Some(cause.remedy())));
    }
}
