//! What the command line asks of the agent over a unix socket in `--run-dir`: some words, answered by one JSON document, or by events without end.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::event_stream::EventStream;
use super::maintenance::{Answer, Order};
use super::preview::PlanReport;
use super::report::Report;
use lb_plan::apply::AuditReport;

/// Name of the socket in `--run-dir`.
pub const SOCKET: &str = "agent.sock";
/// A report is a few kilobytes; a node with 16 384 links stays well below this.
const MAX_REPORT_BYTES: u64 = 64 << 20;
/// An agent that does not answer in this time is stuck.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// An audit goes between other work: with the largest tables it takes some seconds.
const AUDIT_TIMEOUT: Duration = Duration::from_mins(1);
/// The question that is answered by an [`EventStream`].
const EVENTS: &str = "events";
/// A plan is made from the whole snapshot, beside other work: with the largest ones it takes some seconds.
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest text of a change that is planned: about 4,000 objects. The agent holds several forms of it while it plans.
pub const MAX_CHANGE_BYTES: usize = 4 << 20;
/// The words before that text, and one byte that is too much.
const MAX_QUESTION_BYTES: u64 = MAX_CHANGE_BYTES as u64 + 128;
/// How many readers are served at a time.
const READERS: usize = 8;

/// Why the agent said nothing.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("no agent is running with this --run-dir ({} does not answer)", path.display())]
    NotRunning { path: PathBuf },
    /// See [`Self::or_elsewhere`].
    #[error(
        "an agent runs {place}, but does not answer at {}: it has another --run-dir, or cannot use this one; its log says which",
        path.display()
    )]
    Elsewhere { path: PathBuf, place: String },
    #[error("may not ask the agent at {}: run as root", path.display())]
    Denied { path: PathBuf },
    #[error("the agent at {} did not give a report: {error}", path.display())]
    NoReport { path: PathBuf, error: io::Error },
}

impl AskError {
    /// The error, where an agent was found at `place` by other means than its socket.
    #[must_use]
    pub fn or_elsewhere(self, place: Option<&str>) -> Self {
        match (self, place) {
            (Self::NotRunning { path }, Some(place)) => Self::Elsewhere { path, place: place.to_owned() },
            (error, _) => error,
        }
    }
}

/// What can be asked: some words and a newline. A client that sends nothing gets the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The agent's own [`Report`].
    Report,
    /// An audit of the tables that repairs what differs.
    Audit,
    /// One that only names it.
    AuditDryRun,
    /// An order about maintenance.
    Maintenance(Order),
    /// What this change, as manifests, would do. Its text follows the word on lines of its own.
    Plan(String),
}

/// The word and the newline before a change.
const PLAN: &str = "plan\n";

impl Question {
    const PLAIN: [Self; 3] = [Self::Report, Self::Audit, Self::AuditDryRun];

    fn words(&self) -> String {
        match self {
            Self::Report => "report".to_owned(),
            Self::Audit => "audit".to_owned(),
            Self::AuditDryRun => "audit-dry-run".to_owned(),
            Self::Maintenance(order) => order.words(),
            Self::Plan(change) => format!("{PLAN}{change}"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        if let Some(change) = line.strip_prefix(PLAN) {
            return Some(Self::Plan(change.to_owned()));
        }
        Self::PLAIN
            .into_iter()
            .find(|question| question.words() == line.trim())
            .or(Order::parse(line).map(Self::Maintenance))
            .or(line.is_empty().then_some(Self::Report))
    }
}

/// Asks the agent for its report.
pub fn ask(run_dir: &Path) -> Result<Report, AskError> {
    question(run_dir, &Question::Report, ANSWER_TIMEOUT)
}

/// Asks the agent for an audit, and waits for it.
pub fn audit(run_dir: &Path, dry_run: bool) -> Result<AuditReport, AskError> {
    question(run_dir, if dry_run { &Question::AuditDryRun } else { &Question::Audit }, AUDIT_TIMEOUT)
}

/// Gives the agent an order about maintenance; answered when the tables hold it, or when that takes too long.
pub fn order(run_dir: &Path, order: Order) -> Result<Answer, AskError> {
    question(run_dir, &Question::Maintenance(order), ANSWER_TIMEOUT)
}

/// Asks the agent for its events, which an [`super::event_stream::EventReader`] reads from the socket.
pub fn events(run_dir: &Path) -> Result<UnixStream, AskError> {
    let path = run_dir.join(SOCKET);
    let stream = connect(&path)?;
    say(&stream, EVENTS).map_err(|error| AskError::NoReport { path, error })?;
    Ok(stream)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "errors of the operating system")]
fn connect(path: &Path) -> Result<UnixStream, AskError> {
    let path = path.to_owned();
    UnixStream::connect(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::ConnectionRefused => {
            AskError::NotRunning { path }
        }
        io::ErrorKind::PermissionDenied => AskError::Denied { path },
        _ => AskError::NoReport { path, error },
    })
}

fn say(mut stream: &UnixStream, words: &str) -> io::Result<()> {
    stream.write_all(words.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)
}

/// Asks the agent what a change would do. `change`: at most [`MAX_CHANGE_BYTES`] of manifests.
pub fn plan(run_dir: &Path, change: String) -> Result<PlanReport, AskError> {
    question(run_dir, &Question::Plan(change), PLAN_TIMEOUT)
}

fn question<T: DeserializeOwned>(run_dir: &Path, question: &Question, limit: Duration) -> Result<T, AskError> {
    let path = run_dir.join(SOCKET);
    let stream = connect(&path)?;
    let read = || -> io::Result<T> {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        say(&stream, &question.words())?;
        let mut json = Vec::new();
        (&stream).take(MAX_REPORT_BYTES).read_to_end(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    };
    read().map_err(|error| AskError::NoReport { path: path.clone(), error })
}

/// Listens in the folder, which must exist; a socket left over by a dead agent is replaced (the lock is held by us).
pub fn listen(run_dir: &Path) -> io::Result<UnixListener> {
    let path = run_dir.join(SOCKET);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Takes the socket away: its absence says that no agent runs.
pub fn remove(run_dir: &Path) {
    // One that is left is taken for a dead agent's, and replaced.
    let _ = std::fs::remove_file(run_dir.join(SOCKET));
}

/// Answers every connection, until dropped.
pub async fn serve<F>(
    listener: UnixListener,
    events: EventStream,
    answer: impl Fn(Question) -> F + Send + Sync + 'static,
) where
    F: Future<Output = Vec<u8>> + Send + 'static,
{
    let (answer, readers) = (Arc::new(answer), Arc::new(Semaphore::new(READERS)));
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: let others give some back.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (answer, readers, events) = (answer.clone(), readers.clone(), events.clone());
        tokio::spawn(async move {
            let Ok(permit) = readers.acquire().await else { return };
            let Ok(asked) = listen_to(&mut stream).await else { return };
            // A reader that went away, or does not read, is its own problem.
            if asked.trim() == EVENTS {
                // It stays, so it has a place of its own.
                drop(permit);
                let _ = events.serve(stream).await;
            } else if let Some(question) = Question::parse(&asked) {
                let json = answer(question).await;
                let _ = tokio::time::timeout(ANSWER_TIMEOUT, stream.write_all(&json)).await;
            }
        });
    }
}

/// The words of a question.
async fn listen_to(stream: &mut tokio::net::UnixStream) -> io::Result<String> {
    let mut asked = String::new();
    let mut question = stream.take(MAX_QUESTION_BYTES);
    tokio::time::timeout(ANSWER_TIMEOUT, question.read_to_string(&mut asked)).await??;
    // What is too long is not read to its end: a part of it is another question.
    if (asked.len() as u64) < MAX_QUESTION_BYTES { Ok(asked) } else { Err(io::ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event_stream::{self, EventReader};

    #[tokio::test]
    async fn reader_gets_the_report() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let listener = listen(dir.path()).expect("a socket");
        tokio::spawn(serve(listener, EventStream::default(), |question| async move {
            let report = Report { pid: 42, node_name: "n1".into(), ..Report::default() };
            let audit =
                AuditReport { dry_run: question == Question::AuditDryRun, checked: 7, ..AuditReport::default() };
            let json =
                if question == Question::Report { serde_json::to_vec(&report) } else { serde_json::to_vec(&audit) };
            json.expect("plain data")
        }));
        let path = dir.path().to_owned();
        let report = tokio::task::spawn_blocking(move || ask(&path)).await.expect("no panic").expect("a report");
        assert_eq!((report.pid, report.node_name.as_str()), (42, "n1"));
        for dry_run in [true, false] {
            let path = dir.path().to_owned();
            let found = tokio::task::spawn_blocking(move || audit(&path, dry_run)).await.expect("no panic");
            let found = found.expect("a report");
            assert_eq!((found.dry_run, found.checked), (dry_run, 7));
        }
    }

    #[tokio::test]
    async fn readers_of_events_take_no_place_of_questions() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let listener = listen(dir.path()).expect("a socket");
        let answer = |_| async { serde_json::to_vec(&Report::default()).expect("plain data") };
        tokio::spawn(serve(listener, EventStream::default(), answer));
        let mut readers = Vec::new();
        // Those beyond the bound of readers get one line.
        for _ in 0..2 * READERS {
            let mut reader = EventReader::new(events(dir.path()).expect("the agent")).expect("a socket");
            let first = reader.next().await;
            assert_eq!(first.is_ok(), readers.len() < event_stream::READERS, "{first:?}");
            readers.push(reader);
        }
        let path = dir.path().to_owned();
        tokio::task::spawn_blocking(move || ask(&path)).await.expect("no panic").expect("a report");
    }

    #[tokio::test]
    async fn a_left_over_socket_is_no_agent_and_is_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        drop(listen(dir.path()).expect("a socket"));
        assert!(matches!(ask(dir.path()), Err(AskError::NotRunning { .. })));
        listen(dir.path()).expect("replaced");
    }

    #[test]
    fn every_question_is_understood_as_it_is_asked() {
        let target = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().expect("an address");
        let orders = [Order::List, Order::On(target), Order::Off(target)].map(Question::Maintenance);
        let plan = Question::Plan("kind: Service\nplan\n".repeat(10));
        for question in Question::PLAIN.into_iter().chain(orders).chain([plan]) {
            let words = question.words();
            assert!(words.len() as u64 <= MAX_QUESTION_BYTES);
            assert_eq!(Question::parse(&words), Some(question));
        }
        assert_eq!(Question::parse("maintenance on everything"), None);
    }

    #[tokio::test]
    async fn a_change_is_planned_up_to_the_longest_and_a_longer_one_is_never_cut() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let listener = listen(dir.path()).expect("a socket");
        tokio::spawn(serve(listener, EventStream::default(), |question| async move {
            let Question::Plan(change) = question else { panic!("{question:?}") };
            serde_json::to_vec(&PlanReport { revision: change.len() as u64, ..PlanReport::default() })
                .expect("plain data")
        }));
        for (bytes, is_planned) in [(3, true), (MAX_CHANGE_BYTES, true), (MAX_CHANGE_BYTES + 1_000, false)] {
            let path = dir.path().to_owned();
            let asked = tokio::task::spawn_blocking(move || plan(&path, "x".repeat(bytes))).await.expect("no panic");
            assert_eq!(asked.ok().map(|report| report.revision), is_planned.then_some(bytes as u64));
        }
    }

    #[test]
    fn no_socket_is_no_agent() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let error = ask(dir.path()).expect_err("nobody there").to_string();
        assert!(error.contains("no agent is running") && error.contains("agent.sock"), "{error}");
    }
}
