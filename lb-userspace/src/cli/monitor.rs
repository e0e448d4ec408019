//! `ballast monitor`: prints the programs' events as they come, with names. It asks the agent, and reads names from the pinned maps.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use lb_common::outcome::Outcome;
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};

use super::agent_dirs::AgentDirs;
use super::filter::{AddressFilter, ServiceName};
use super::output::{complain, sentence};
use crate::agent::clock;
use crate::observe::event_stream::{EventReader, Line};
use crate::observe::event_view::{EventNames, EventView, header};
use crate::observe::report_socket;
use lb_datapath::maps_dir;
use lb_model::Monotonic;

/// There are no events, or no more.
const FAILED: u8 = 2;
/// How often events are counted that the programs did not write.
const COUNT_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    filter: EventFilter,

    #[arg(short, long, value_enum, default_value_t)]
    output: Output,

    #[command(flatten)]
    dirs: AgentDirs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    #[default]
    Table,
    /// One object a line
    Json,
}

/// Which events are wanted: those that meet all conditions.
#[derive(Clone, Debug, Default, Args)]
struct EventFilter {
    /// Only events of this service, or of this port of it
    #[arg(long, value_name = "[NAMESPACE/]NAME[:PORT]")]
    service: Option<ServiceName>,

    /// Only events of this backend
    #[arg(long, value_name = "ADDRESS|NETWORK|ADDRESS:PORT")]
    backend: Option<AddressFilter>,

    /// Only events of this client
    #[arg(long, value_name = "ADDRESS|NETWORK|ADDRESS:PORT")]
    client: Option<AddressFilter>,

    /// Only events of these outcomes
    #[arg(long = "outcome", value_name = "OUTCOME,…", value_delimiter = ',')]
    outcomes: Vec<EventOutcome>,
}

/// An outcome that there are events of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EventOutcome(Outcome);

impl FromStr for EventOutcome {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let events = Outcome::ALL.into_iter().filter(|outcome| outcome.is_event());
        events.clone().find(|outcome| outcome.name() == text).map(Self).ok_or_else(|| {
            let names = events.map(Outcome::name).collect::<Vec<_>>().join(", ");
            format!("no events have this outcome; those that have events are {names}")
        })
    }
}

impl EventFilter {
    fn takes(&self, event: &EventView) -> bool {
        let is_service = |wanted: &ServiceName| {
            let (namespace, name) = (event.namespace.as_deref(), event.service.as_deref());
            wanted.is(namespace.unwrap_or_default(), name.unwrap_or_default(), event.service_port.unwrap_or_default())
        };
        let holds = |wanted: &AddressFilter, address, port: Option<u16>| {
            let place: Option<SocketAddr> = Option::zip(address, port).map(SocketAddr::from);
            place.is_some_and(|place| wanted.holds(place.ip(), place.port()))
        };
        self.service.as_ref().is_none_or(is_service)
            && self.backend.as_ref().is_none_or(|wanted| holds(wanted, event.backend_address, event.backend_port))
            && self.client.as_ref().is_none_or(|wanted| holds(wanted, event.client_address, event.client_port))
            && (self.outcomes.is_empty() || self.outcomes.iter().any(|wanted| wanted.0.name() == event.outcome))
    }
}

/// Events that are not shown, whatever the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Lost {
    lost: u64,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reason {
    SlowReader,
    NotWritten,
}

impl Lost {
    fn line(self) -> String {
        let why = match self.reason {
            Reason::SlowReader => "this reader is too slow: filter by --outcome, or write to a file",
            Reason::NotWritten => {
                "the programs write at most 100 of an outcome in a second on each CPU, as long as the ring has room"
            }
        };
        format!("{} events are not shown: {why}", self.lost)
    }
}

/// Standard output is closed.
struct Closed;

/// 0: ended by a signal, or by a closed pipe; 2: there are no events, or no more.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    // Two threads: a signal ends the process also while standard output takes nothing.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(follow(arguments)));
    match ended {
        Ok(Closed) => ExitCode::SUCCESS,
        Err(error) => {
            complain(sentence(&error));
            ExitCode::from(FAILED)
        }
    }
}

async fn follow(arguments: &Arguments) -> anyhow::Result<Closed> {
    end_by_signals()?;
    let socket = arguments.dirs.ask(report_socket::events)?;
    let mut reader = EventReader::new(socket)?;
    let mut printer = Printer {
        names: EventNames::open(&maps_dir(&arguments.dirs.bpffs))?,
        filter: &arguments.filter,
        output: arguments.output,
        unwritten: 0,
    };
    // From the first line on, no event is missed.
    let first = reader.next().await?;
    printer.unwritten = printer.names.unwritten()?;
    let mut is_open = (arguments.output == Output::Json || put(&header())?) && printer.take(first)?;
    // A file is never closed by a reader.
    // SAFETY: nothing closes or replaces the descriptor of standard output.
    let pipe = unsafe { AsyncFd::register_with_interest(io::stdout(), Interest::ERROR) }.ok();
    let closed = async {
        match &pipe {
            Some(pipe) => drop(pipe.ready(Interest::ERROR).await),
            None => std::future::pending().await,
        }
    };
    tokio::pin!(closed);
    let mut count = tokio::time::interval(COUNT_EVERY);
    while is_open {
        tokio::select! {
            line = reader.next() => is_open = printer.take(line?)?,
            _ = count.tick() => is_open = printer.count()?,
            () = &mut closed => is_open = false,
        }
    }
    Ok(Closed)
}

fn end_by_signals() -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        std::process::exit(0);
    });
    Ok(())
}

struct Printer<'a> {
    names: EventNames,
    filter: &'a EventFilter,
    output: Output,
    /// Events that the programs had not written when it was last asked.
    unwritten: u64,
}

impl Printer<'_> {
    /// False: standard output is closed.
    fn take(&mut self, line: Line) -> anyhow::Result<bool> {
        match line {
            Line::Event(record) => {
                let time = wall(record.time_ns);
                let event = self.names.view(record, time);
                if !self.filter.takes(&event) {
                    return Ok(true);
                }
                put(&match self.output {
                    Output::Table => event.line(),
                    Output::Json => serde_json::to_string(&event)?,
                })
            }
            Line::Lost(lost) => self.lose(Lost { lost, reason: Reason::SlowReader }),
            Line::Alive | Line::Full(_) => Ok(true),
        }
    }

    fn count(&mut self) -> anyhow::Result<bool> {
        let unwritten = self.names.unwritten()?;
        let lost = unwritten.saturating_sub(std::mem::replace(&mut self.unwritten, unwritten));
        if lost == 0 { Ok(true) } else { self.lose(Lost { lost, reason: Reason::NotWritten }) }
    }

    fn lose(&self, lost: Lost) -> anyhow::Result<bool> {
        match self.output {
            Output::Json => put(&serde_json::to_string(&lost)?),
            Output::Table => {
                complain(lost.line());
                Ok(true)
            }
        }
    }
}

/// Prints a line at once. False: standard output is closed.
fn put(line: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => Ok(written.map(|()| true)?),
    }
}

/// The wall clock's time of a moment that is just over.
fn wall(time_ns: u64) -> Timestamp {
    let age = clock::monotonic().since(Monotonic::from_nanos(time_ns));
    clock::wall().checked_sub(age).unwrap_or_else(|_| clock::wall())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        filter: EventFilter,
    }

    fn filter(line: &str) -> Result<EventFilter, clap::Error> {
        Command::try_parse_from(std::iter::once("monitor").chain(line.split_whitespace())).map(|parsed| parsed.filter)
    }

    fn event() -> EventView {
        EventView {
            time: String::new(),
            outcome: "retried".into(),
            hook: Some("pod_in".into()),
            interface: None,
            namespace: Some("demo".into()),
            service: Some("web".into()),
            service_port: Some(80),
            client_address: Some([10, 1, 0, 9].into()),
            client_port: Some(40_001),
            backend_address: Some([10, 1, 0, 3].into()),
            backend_port: Some(8080),
            protocol: Some("TCP"),
            source: None,
            destination: None,
        }
    }

    #[test]
    fn an_event_must_meet_every_condition() {
        for (line, is_taken) in [
            ("", true),
            ("--service demo/web", true),
            ("--service web:80 --backend 10.1.0.3 --client 10.1.0.0/16 --outcome evicted,retried", true),
            ("--service other/web", false),
            ("--service demo/web:81", false),
            ("--backend 10.1.0.9", false),
            ("--backend 10.1.0.3:80", false),
            ("--client 10.1.0.3", false),
            ("--client 10.1.0.9:40001", true),
            ("--service demo/web --outcome evicted", false),
        ] {
            assert_eq!(filter(line).expect("valid").takes(&event()), is_taken, "{line}");
        }
    }

    #[test]
    fn an_event_without_a_service_or_an_end_meets_no_condition_about_it() {
        let bare = EventView {
            namespace: None,
            service: None,
            service_port: None,
            client_address: None,
            client_port: None,
            backend_address: None,
            backend_port: None,
            ..event()
        };
        assert!(filter("--outcome retried").expect("valid").takes(&bare));
        for line in ["--service web", "--backend 0.0.0.0/0", "--client 0.0.0.0/0"] {
            assert!(!filter(line).expect("valid").takes(&bare), "{line}");
        }
    }

    #[test]
    fn an_outcome_that_has_no_events_is_refused_with_those_that_have() {
        for line in ["--outcome forwarded", "--outcome event_lost", "--outcome nonsense"] {
            let error = filter(line).expect_err("no events").to_string();
            assert!(error.contains("refused_no_endpoint") && error.contains("ejected"), "{error}");
        }
    }

    #[test]
    fn what_is_lost_has_its_number_and_its_reason() {
        let lost = Lost { lost: 12, reason: Reason::SlowReader };
        assert_eq!(serde_json::to_string(&lost).expect("plain data"), r#"{"lost":12,"reason":"slow-reader"}"#);
        let lost = Lost { reason: Reason::NotWritten, ..lost };
        assert_eq!(serde_json::to_string(&lost).expect("plain data"), r#"{"lost":12,"reason":"not-written"}"#);
        assert!(lost.line().starts_with("12 events are not shown"), "{}", lost.line());
    }
}
