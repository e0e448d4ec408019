//! `top` as plain text: a table at each interval, or one. All of each name is shown.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, timeout_at};

use super::readings::{Answer, Readings, Status, Wanted};
use crate::agent::clock;
use crate::cli::output::{complain, printed};
use crate::observe::top::{ServiceRow, table};

/// A table waits this long for the agent's answer. Without one, it says how long none has come.
const PATIENCE: Duration = Duration::from_secs(1);

/// Prints until standard output is closed; signals end the process as they do by default. `is_once`: prints one table.
pub(super) fn run(wanted: Wanted, interval: Duration, is_once: bool) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let (readings, answers) = Readings::start(wanted);
        follow(readings, answers, interval, is_once, printed, complain).await
    })
}

async fn follow(
    mut readings: Readings,
    mut answers: mpsc::Receiver<Answer>,
    interval: Duration,
    is_once: bool,
    mut print: impl FnMut(&str) -> anyhow::Result<bool>,
    mut complain: impl FnMut(String),
) -> anyhow::Result<()> {
    let mut reads = tokio::time::interval(interval);
    reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        reads.tick().await;
        readings.ask(Instant::now());
        let (end, mut read) = (Instant::now() + interval.min(PATIENCE), None);
        while !readings.are_done() {
            // An answer that is late belongs to the next table.
            let Ok(Some(answer)) = timeout_at(end, answers.recv()).await else { break };
            read = readings.take(answer, Instant::now()).or(read);
        }
        let status = readings.status(Instant::now());
        match (read, readings.tables_error()) {
            // Rates need an earlier reading.
            (Some(rows), _) if rows.iter().any(|row| row.rates.is_none()) => {}
            (Some(rows), _) => {
                if !print(&text(&rows, &status))? || is_once {
                    return Ok(());
                }
            }
            (None, Some(error)) if is_once => bail!("{error}"),
            (None, _) => status.problems.into_iter().for_each(&mut complain),
        }
    }
}

/// The time, the state of the readings, and the table; an empty line ends them.
fn text(rows: &[ServiceRow], status: &Status) -> String {
    let mut text = format!("{:.0}\n", clock::wall());
    if !status.source.is_empty() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "source: {}", status.source);
    }
    for problem in &status.problems {
        let _ = writeln!(text, "{problem}");
    }
    text + &table(rows) + "\n"
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::model::tests::service;
    use super::super::readings::tests::silent;
    use super::super::readings::{Agent, Reader};
    use super::*;

    type ServiceRows = Result<Vec<ServiceRow>, String>;

    /// What is printed and what is complained about, where the tables are read as `read` says and the agent as `agent` says.
    async fn run(
        is_once: bool,
        tables: impl FnMut() -> ServiceRows + Send + 'static,
        agent: Option<Agent>,
    ) -> (anyhow::Result<()>, Vec<String>, Vec<String>) {
        let (sender, answers) = mpsc::channel(4);
        let mut tables = tables;
        let agent =
            agent.map_or_else(silent, |agent| Reader::start(sender.clone(), move || Answer::Agent(agent.clone())));
        let readings = Readings::new(Reader::start(sender, move || Answer::Tables(tables())), agent);
        let (out, problems) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let print = |text: &str| {
            out.borrow_mut().push(text.to_owned());
            Ok(out.borrow().len() < 2)
        };
        let complain = |text| problems.borrow_mut().push(text);
        let followed = follow(readings, answers, Duration::from_millis(100), is_once, print, complain);
        let ended = tokio::time::timeout(Duration::from_secs(10), followed).await.expect("in time");
        (ended, out.into_inner(), problems.into_inner())
    }

    fn fresh() -> Agent {
        Agent::Source { text: "kube fresh".into(), is_stale: false }
    }

    #[tokio::test]
    async fn a_table_has_the_state_of_the_source_and_rates() {
        let mut is_first = true;
        let tables = move || {
            let mut row = service(1, &"long".repeat(50), 3.0);
            if std::mem::take(&mut is_first) {
                row.rates = None;
            }
            Ok(vec![row])
        };
        let (ended, out, _) = run(true, tables, Some(fresh())).await;
        assert!(ended.is_ok());
        assert_eq!(out.len(), 1, "the reading without rates is not printed");
        assert!(out[0].contains("\nsource: kube fresh\n") && out[0].contains(&"long".repeat(50)), "{}", out[0]);
    }

    #[tokio::test]
    async fn a_closed_pipe_ends_it() {
        let (ended, out, _) = run(false, || Ok(vec![service(1, "web", 3.0)]), Some(fresh())).await;
        assert!(ended.is_ok());
        assert_eq!(out.len(), 2);
    }

    #[tokio::test]
    async fn a_reading_that_fails_is_reported_and_the_next_one_follows() {
        let mut count = 0;
        let tables = move || {
            count += 1;
            if count == 2 { Err("no maps".to_owned()) } else { Ok(vec![service(1, "web", 3.0)]) }
        };
        let (ended, out, problems) = run(false, tables, Some(fresh())).await;
        assert!(ended.is_ok());
        assert_eq!(out.len(), 2);
        assert!(problems.iter().any(|problem| problem.contains("tables: no maps")), "{problems:?}");
        let (ended, out, _) = run(true, || Err("no maps".to_owned()), Some(fresh())).await;
        assert_eq!((ended.expect_err("no table").to_string(), out.len()), ("no maps".to_owned(), 0));
    }

    #[tokio::test]
    async fn an_agent_that_hangs_holds_up_no_table() {
        let (ended, out, _) = run(true, || Ok(vec![service(1, "web", 3.0)]), None).await;
        assert!(ended.is_ok());
        assert!(out[0].contains("web"), "{}", out[0]);
    }
}
