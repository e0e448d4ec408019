//! The readings of `top`. Each kind has a thread of its own: one that hangs holds up neither the other, nor the keys.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::agent::clock;
use crate::cli::filter::ServiceName;
use crate::observe::contents::{self, Contents, WantedFlows};
use crate::observe::inventory::ServiceView;
use crate::observe::rates::Reading;
use crate::observe::report_socket::{self, AskError};
use crate::observe::top::{ServiceRow, freshness, rows};
use lb_datapath::maps_dir;

/// From then on a reading is late, and the screen says so.
const LATE: Duration = Duration::from_secs(2);

/// Which services are read, and where. Readers have their own copy.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub namespace: Option<String>,
    pub service: Option<ServiceName>,
    pub bpffs: PathBuf,
    pub run_dir: PathBuf,
}

impl Wanted {
    fn takes(&self, service: &ServiceView) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| *wanted == service.namespace)
            && self.service.as_ref().is_none_or(|wanted| wanted.is(&service.namespace, &service.name, service.port))
    }
}

/// What a reading gave.
#[derive(Debug)]
pub(super) enum Answer {
    Tables(Result<Vec<ServiceRow>, String>),
    Agent(Agent),
}

/// What the agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    /// How fresh its source is, and whether that is stale.
    Source { text: String, is_stale: bool },
    /// It did not answer in time.
    Silent,
    /// It cannot be asked.
    None(String),
}

/// A reader in its thread.
#[derive(Debug)]
pub(super) struct Reader {
    requests: SyncSender<()>,
    /// It has not answered since then.
    asked: Option<Instant>,
    /// The first request without an answer that tells something.
    silent: Option<Instant>,
}

impl Reader {
    /// Starts a thread that reads once for each request.
    pub fn start(answers: mpsc::Sender<Answer>, mut read: impl FnMut() -> Answer + Send + 'static) -> Self {
        let (requests, asked) = sync_channel(1);
        // It ends with the process, or when nobody asks any more.
        std::thread::spawn(move || while asked.recv().is_ok() && answers.blocking_send(read()).is_ok() {});
        Self { requests, asked: None, silent: None }
    }

    /// Asks for a reading, unless it is still at the last one.
    fn ask(&mut self, now: Instant) {
        if self.asked.is_none() {
            // A reader whose thread has ended never answers: it is late.
            let _ = self.requests.try_send(());
            self.asked = Some(now);
            self.silent.get_or_insert(now);
        }
    }

    const fn answered(&mut self, tells: bool) {
        self.asked = None;
        if tells {
            self.silent = None;
        }
    }

    /// `no answer for 5s`, if that is long.
    fn late(&self, now: Instant) -> Option<String> {
        let silent = now.saturating_duration_since(self.silent?);
        (silent >= LATE).then(|| format!("no answer for {}s", silent.as_secs()))
    }
}

/// Both kinds of readings, and what they last gave.
#[derive(Debug)]
pub(super) struct Readings {
    tables: Reader,
    agent: Reader,
    said: Option<Agent>,
    tables_error: Option<String>,
    /// When the rows that are shown were read.
    read: Option<Instant>,
}

/// The state of the readings, for the screen and for plain text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// How fresh the source is.
    pub source: String,
    /// What is not as it should be.
    pub problems: Vec<String>,
    /// Seconds since the rows were read.
    pub elapsed: u64,
    /// The tables were read once.
    pub is_read: bool,
}

impl Readings {
    pub fn start(wanted: Wanted) -> (Self, mpsc::Receiver<Answer>) {
        let (answers, received) = mpsc::channel(4);
        let for_agent = wanted.clone();
        let agent = Reader::start(answers.clone(), move || Answer::Agent(ask_agent(&for_agent)));
        let mut earlier = None;
        let tables = Reader::start(answers, move || {
            Answer::Tables(read_tables(&wanted, &mut earlier).map_err(|error| error.to_string()))
        });
        (Self::new(tables, agent), received)
    }

    pub const fn new(tables: Reader, agent: Reader) -> Self {
        Self { tables, agent, said: None, tables_error: None, read: None }
    }

    pub fn ask(&mut self, now: Instant) {
        self.tables.ask(now);
        self.agent.ask(now);
    }

    /// Takes an answer, and gives the rows that are in it.
    pub fn take(&mut self, answer: Answer, now: Instant) -> Option<Vec<ServiceRow>> {
        match answer {
            Answer::Agent(said) => {
                self.agent.answered(said != Agent::Silent);
                self.said = Some(said);
                None
            }
            Answer::Tables(Ok(rows)) => {
                self.tables.answered(true);
                (self.tables_error, self.read) = (None, Some(now));
                Some(rows)
            }
            Answer::Tables(Err(error)) => {
                self.tables.answered(true);
                self.tables_error = Some(error);
                None
            }
        }
    }

    /// Neither kind is being read.
    pub const fn are_done(&self) -> bool {
        self.tables.asked.is_none() && self.agent.asked.is_none()
    }

    pub const fn tables_error(&self) -> Option<&String> {
        self.tables_error.as_ref()
    }

    pub fn status(&self, now: Instant) -> Status {
        let mut status = Status { is_read: self.read.is_some(), ..Status::default() };
        status.elapsed = self.read.map_or(0, |read| now.saturating_duration_since(read).as_secs());
        match (self.agent.late(now), &self.said) {
            (Some(late), _) => status.problems.push(format!("agent: {late}")),
            (None, Some(Agent::Source { text, is_stale: false })) => text.clone_into(&mut status.source),
            (None, Some(Agent::Source { text, is_stale: true })) => status.problems.push(format!("source: {text}")),
            (None, Some(Agent::None(error))) => status.problems.push(format!("agent: {error}")),
            (None, Some(Agent::Silent) | None) => "asking the agent".clone_into(&mut status.source),
        }
        let age = || if status.is_read { format!("; shown: {}s ago", status.elapsed) } else { String::new() };
        match (self.tables.late(now), &self.tables_error) {
            (Some(late), _) => status.problems.push(format!("tables: {late}{}", age())),
            (None, Some(error)) => status.problems.push(format!("tables: {error}{}", age())),
            (None, None) => {}
        }
        status
    }
}

fn ask_agent(wanted: &Wanted) -> Agent {
    match report_socket::ask(&wanted.run_dir) {
        Ok(report) => {
            let (text, is_stale) = freshness(&report.source);
            Agent::Source { text, is_stale }
        }
        Err(AskError::NoReport { error, .. })
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Agent::Silent
        }
        Err(error @ AskError::NotRunning { .. }) => {
            Agent::None(error.or_elsewhere(lb_datapath::running_agent(&wanted.bpffs).as_deref()).to_string())
        }
        Err(error) => Agent::None(error.to_string()),
    }
}

/// Reads the tables; rates are those since `earlier`.
fn read_tables(wanted: &Wanted, earlier: &mut Option<Reading>) -> Result<Vec<ServiceRow>, lb_tables::MapError> {
    let large = contents::Wanted {
        flows: WantedFlows::All,
        health: true,
        stats: true,
        connect_times: true,
        ..contents::Wanted::default()
    };
    let at = clock::monotonic();
    let contents = Contents::read(&maps_dir(&wanted.bpffs), large)?;
    let mut reading = Reading::new(&contents, at, false);
    reading.services.retain(|service| wanted.takes(service));
    let rows = rows(earlier.as_ref(), &reading);
    *earlier = Some(reading);
    Ok(rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A reader that never answers.
    pub fn silent() -> Reader {
        let (requests, asked) = sync_channel(1);
        // The thread would wait for requests; here nobody does, and the channel stays open.
        std::mem::forget(asked);
        Reader { requests, asked: None, silent: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_is_reported_with_its_time() {
        let mut readings = Readings::new(silent(), silent());
        readings.ask(Instant::now());
        assert!(readings.status(Instant::now()).problems.is_empty(), "it is not late yet");
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(readings.status(Instant::now()).problems, ["agent: no answer for 7s", "tables: no answer for 7s"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_hangs_stays_silent_from_question_to_question() {
        let mut readings = Readings::new(silent(), silent());
        for _ in 0..3 {
            readings.ask(Instant::now());
            readings.take(Answer::Tables(Ok(Vec::new())), Instant::now());
            tokio::time::advance(Duration::from_secs(5)).await;
            readings.take(Answer::Agent(Agent::Silent), Instant::now());
        }
        assert_eq!(readings.status(Instant::now()).problems, ["agent: no answer for 15s"]);
        readings.ask(Instant::now());
        let fresh = Agent::Source { text: "kube fresh".into(), is_stale: false };
        readings.take(Answer::Agent(fresh), Instant::now());
        let status = readings.status(Instant::now());
        assert_eq!((status.source.as_str(), status.problems.len()), ("kube fresh", 0));
    }

    #[tokio::test(start_paused = true)]
    async fn rows_that_cannot_be_read_again_are_shown_with_their_age() {
        let mut readings = Readings::new(silent(), silent());
        readings.take(Answer::Tables(Ok(Vec::new())), Instant::now());
        readings.take(Answer::Agent(Agent::None("no agent is running".into())), Instant::now());
        tokio::time::advance(Duration::from_secs(3)).await;
        readings.take(Answer::Tables(Err("no maps".into())), Instant::now());
        assert_eq!(
            readings.status(Instant::now()).problems,
            ["agent: no agent is running", "tables: no maps; shown: 3s ago"]
        );
    }
}
