//! The book has every outcome, as the table in `lb_common::outcome` declares it.

use std::fmt::Write as _;

use lb_common::outcome::Outcome;

use super::inventory::{FARES, NO_ENDPOINT, SELECTIONS};

const INTRODUCTION: &str = "# Outcomes

An outcome says what became of a packet or of a socket call. Its number is that of the map `outcomes`, the name that of metrics, events and JSON. Each packet that a
program looks at is counted once for each program that it meets. Every outcome is a series of `ballast_outcomes_total`; the column *shown by* says
what else shows it: a metric of the service, or `ballast monitor`. Outcomes of `ballast monitor` are counted in `ballast_events_total` as well, and the
agent logs them at level debug. A line without a remedy is normal.

| | outcome | meaning | the client sees | shown by | what to do |
|---:|---|---|---|---|---|
";

#[test]
fn the_reference_has_every_outcome() {
    let mut page = INTRODUCTION.to_owned();
    for outcome in Outcome::ALL {
        let (number, name) = (outcome as u8, outcome.name());
        let (sees, remedy) = (outcome.client_sees(), outcome.remedy().unwrap_or_default());
        let (meaning, shown) = (outcome.meaning().trim(), shown_by(outcome).join(", "));
        writeln!(page, "| {number} | `{name}` | {meaning} | {sees} | {shown} | {remedy} |")
            .expect("a string takes all");
    }
    lb_pages::is_current("outcomes.md", &page);
}

fn shown_by(outcome: Outcome) -> Vec<&'static str> {
    [
        (outcome.is_event(), "`ballast monitor`"),
        (SELECTIONS.contains(&outcome), "`ballast_service_selections_total`"),
        (NO_ENDPOINT.contains(&outcome), "`ballast_service_refusals_total`"),
        (FARES.contains(&outcome), "`ballast_service_detours_total`"),
    ]
    .into_iter()
    .filter_map(|(is_shown, by)| is_shown.then_some(by))
    .collect()
}

/// A packet that is not served needs an operator who knows why.
#[test]
fn refusals_and_drops_have_a_remedy() {
    for outcome in Outcome::ALL {
        let is_bad = ["refused", "dropped"].iter().any(|word| outcome.name().contains(word));
        assert!(!is_bad || outcome.remedy().is_some(), "{}", outcome.name());
    }
}
