//! Incident A: backends vanish without a FIN while connections are stuck open, under load, and the agent is killed at random. Drains
//! end by their deadline all the same, nothing is forwarded after it, and nothing is left behind. Needs root.

use std::time::Duration;

use anyhow::Result;
use lb_tests::churn::{Churned, Scenario, ScenarioSettings};

/// How long backends come and go at least, in the short form and in the long one.
const DURATION: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(1)];
/// So much happens however slow the machine is: deaths of the agent, drains, ends of held connections, packets, and connections of the load.
const LEAST: [u64; 5] = [2, 21, 21, 5_001, 501];
/// Lines that an agent may write when it starts, and for a change of the API.
const LINES_PER_START: u64 = 30;
const LINES_PER_CHANGE: u64 = 2;

#[test]
fn drains_end_by_their_deadline_whatever_happens_to_connections_and_agent() -> Result<()> {
    let settings = ScenarioSettings { seed: lb_seed::of_run(), ..ScenarioSettings::default() };
    let period_ds = settings.drain_period.as_secs() * 10;
    let mut scenario = Scenario::new("incident-a", settings)?;
    let [short, long] = DURATION;
    scenario.churn_until(lb_seed::short_or_long(short, long), |scenario| {
        let (kills, told, served) = scenario.so_far();
        let happened = [kills, scenario.tables.drains().begun, told, scenario.packets.seen().packets, served];
        happened.iter().zip(LEAST).all(|(happened, least)| *happened >= least)
    })?;
    check(&scenario.end()?, period_ds);
    Ok(())
}

fn check(churned: &Churned, period_ds: u64) {
    let Churned { changes, kills, log_lines, seen, drains, held, load, in_use } = churned;
    assert_eq!((seen.stale, seen.inherited), (0, 0), "{:#?}", seen.violations);
    assert!(drains.oldest_ds <= period_ds + 10, "a drain went on for {} tenths of a second", drains.oldest_ds);
    assert!(drains.longest_ds <= period_ds + 10, "a deadline lay {} tenths of a second ahead", drains.longest_ds);
    assert_eq!(drains.put_off, 0, "a deadline was put off");
    assert!(drains.overdue_ds <= 100, "a record outlived its deadline by {} tenths of a second", drains.overdue_ds);
    assert_eq!(drains.draining, 0);
    assert_eq!(held.otherwise, 0, "a held connection ended, and not by a RST");
    // A backend that vanishes takes along the connection that is being made to it at that moment: of few of them there is one.
    let (served, failed) = *load;
    assert!(2 * failed <= drains.begun, "{failed} of {} failed: {churned:#?}", served + failed);
    assert!(2 * held.failed <= drains.begun, "{} held connections were not made: {churned:#?}", held.failed);
    assert_eq!(in_use[0], in_use[1], "ids were leaked");
    let most = LINES_PER_START * (kills + 1) + LINES_PER_CHANGE * changes;
    assert!(
        u64::try_from(*log_lines).is_ok_and(|lines| lines <= most),
        "{log_lines} lines of log, at most {most} expected"
    );
}
