//! Events for readers beside the agent, over the socket of the command line: one JSON document a line.
//!
//! The readers are few, and the agent waits for none of them: a slow reader loses the oldest events that wait for it, and gets their number.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::UnixStream;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::time::{Instant, timeout, timeout_at};

use super::events::Event;

/// Readers at a time. They take no place of other questions to the agent.
pub const READERS: usize = 4;
/// Events that wait for a reader; the socket holds some hundred more.
pub const WAITING: usize = 1024;
/// The longest time without a line. A reader that went away is noticed with the next one.
const ALIVE_EVERY: Duration = Duration::from_secs(1);
/// Without a line for so long the agent is stuck.
const SILENCE: Duration = Duration::from_secs(10);

/// One line of the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Line {
    Event(Record),
    /// So many events were lost before the next line: the reader was too slow.
    Lost(u64),
    /// The agent is there; the first line, and each that comes without an event.
    Alive,
    /// There are so many readers already. The only line.
    Full(usize),
}

/// An [`Event`] between two processes, which may be of different versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    pub outcome: Cow<'static, str>,
    /// Service port id; 0: none.
    pub service: u32,
    /// Backend id in the addresses' family; 0: none.
    pub backend: u32,
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Number of the protocol (IANA).
    pub protocol: u8,
    pub hook: Cow<'static, str>,
    /// 0: none.
    pub ifindex: u32,
}

impl From<&Event> for Record {
    fn from(event: &Event) -> Self {
        Self {
            time_ns: event.time_ns,
            outcome: event.outcome.name().into(),
            service: event.service,
            backend: event.backend,
            source: event.src.into(),
            destination: event.dst.into(),
            protocol: event.protocol,
            hook: event.hook.into(),
            ifindex: event.ifindex,
        }
    }
}

/// Hands events to readers.
#[derive(Clone, Debug)]
pub struct EventStream {
    events: broadcast::Sender<Event>,
    places: Arc<Semaphore>,
}

impl Default for EventStream {
    fn default() -> Self {
        Self { events: broadcast::Sender::new(WAITING), places: Arc::new(Semaphore::new(READERS)) }
    }
}

impl EventStream {
    /// Hands the event to all readers. It never waits, and costs little without a reader.
    pub fn publish(&self, event: &Event) {
        if self.events.receiver_count() > 0 {
            // A reader that has just gone loses nothing.
            let _ = self.events.send(event.clone());
        }
    }

    /// Writes to a reader until it goes away.
    pub async fn serve(&self, mut stream: UnixStream) -> io::Result<()> {
        let _place = match self.places.try_acquire() {
            Ok(place) => place,
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                return write(&mut stream, &Line::Full(READERS)).await;
            }
        };
        let mut events = self.events.subscribe();
        let mut line = Line::Alive;
        loop {
            write(&mut stream, &line).await?;
            line = match timeout(ALIVE_EVERY, events.recv()).await {
                Ok(Ok(event)) => Line::Event(Record::from(&event)),
                Ok(Err(RecvError::Lagged(lost))) => Line::Lost(lost),
                Ok(Err(RecvError::Closed)) => return Ok(()),
                Err(_) => Line::Alive,
            };
        }
    }
}

async fn write(stream: &mut UnixStream, line: &Line) -> io::Result<()> {
    let mut json = serde_json::to_vec(line)?;
    json.push(b'\n');
    stream.write_all(&json).await
}

/// Why there are no more lines.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the agent has {0} readers of events, which is the most: end one of them (`ballast monitor`)")]
    Full(usize),
    #[error(
        "the agent gives no events: it is of a version without `ballast monitor`, or has just ended; look at `ballast status`"
    )]
    None,
    #[error("the agent has ended, and the events with it; start the command again when it runs")]
    Ended,
    #[error("the agent has been silent for {} s: it is stuck; look at `ballast status`", SILENCE.as_secs())]
    Silent,
    #[error("the agent's events cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// The reader's end.
#[derive(Debug)]
pub struct EventReader {
    lines: Lines<BufReader<UnixStream>>,
    silent_at: Instant,
    is_first: bool,
}

impl EventReader {
    /// `stream`: one that the agent was asked for events over.
    pub fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let lines = BufReader::new(UnixStream::from_std(stream)?).lines();
        Ok(Self { lines, silent_at: Instant::now() + SILENCE, is_first: true })
    }

    /// The next line, never [`Line::Full`]. Cancelled, it loses none.
    pub async fn next(&mut self) -> Result<Line, StreamError> {
        let line = timeout_at(self.silent_at, self.lines.next_line()).await.map_err(|_| StreamError::Silent)?;
        let ended = if self.is_first { StreamError::None } else { StreamError::Ended };
        let line = line?.ok_or(ended)?;
        self.is_first = false;
        self.silent_at = Instant::now() + SILENCE;
        match serde_json::from_str(&line).map_err(io::Error::from)? {
            Line::Full(readers) => Err(StreamError::Full(readers)),
            line @ (Line::Event(_) | Line::Lost(_) | Line::Alive) => Ok(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::outcome::Outcome;

    use super::*;

    fn event(number: u32) -> Event {
        Event {
            time_ns: 7_000_000_001,
            outcome: Outcome::RefusedNoEndpoint,
            service: number,
            backend: 0,
            src: ("10.0.0.1".parse().expect("valid"), 40_000),
            dst: ("fd00::1".parse().expect("valid"), 80),
            protocol: 6,
            hook: "pod_in",
            ifindex: 12,
        }
    }

    /// A reader, and the task that serves it.
    fn reader(stream: &EventStream) -> (EventReader, tokio::task::JoinHandle<io::Result<()>>) {
        let (agent, reader) = std::os::unix::net::UnixStream::pair().expect("sockets");
        agent.set_nonblocking(true).expect("a socket");
        let (agent, stream) = (UnixStream::from_std(agent).expect("a socket"), stream.clone());
        let task = tokio::spawn(async move { stream.serve(agent).await });
        (EventReader::new(reader).expect("a socket"), task)
    }

    #[tokio::test]
    async fn each_reader_gets_every_event_as_it_was() {
        let stream = EventStream::default();
        stream.publish(&event(1));
        let (mut first, _task) = reader(&stream);
        let (mut second, _other) = reader(&stream);
        for reader in [&mut first, &mut second] {
            assert_eq!(reader.next().await.expect("a line"), Line::Alive, "no event from before");
        }
        for number in 2..5 {
            stream.publish(&event(number));
        }
        for reader in [&mut first, &mut second] {
            for number in 2..5 {
                assert_eq!(reader.next().await.expect("a line"), Line::Event(Record::from(&event(number))));
            }
        }
    }

    #[tokio::test]
    async fn a_slow_reader_loses_the_oldest_events_and_gets_their_number() {
        const PUBLISHED: u32 = 8_000;
        let stream = EventStream::default();
        let (mut slow, _task) = reader(&stream);
        assert_eq!(slow.next().await.expect("a line"), Line::Alive);
        for number in 1..=PUBLISHED {
            stream.publish(&event(number));
            if number.is_multiple_of(500) {
                tokio::task::yield_now().await;
            }
        }
        let (mut came, mut lost, mut latest) = (0, 0, 0);
        while latest < PUBLISHED {
            match slow.next().await.expect("a line") {
                Line::Event(record) => {
                    came += 1;
                    assert!(record.service > latest, "in their order");
                    latest = record.service;
                }
                Line::Lost(more) => lost += more,
                other => panic!("{other:?}"),
            }
        }
        assert!(lost > 0 && came >= WAITING as u64, "{came} came, {lost} were lost");
        assert_eq!(came + lost, u64::from(PUBLISHED));
    }

    #[tokio::test]
    async fn one_reader_too_many_is_sent_away_and_a_place_is_free_again_without_an_event() {
        let stream = EventStream::default();
        let mut readers: Vec<_> = (0..READERS).map(|_| reader(&stream)).collect();
        for (reader, _) in &mut readers {
            reader.next().await.expect("a line");
        }
        let (mut late, _task) = reader(&stream);
        let error = late.next().await.expect_err("no place").to_string();
        assert!(error.contains(&READERS.to_string()), "{error}");
        let (gone, task) = readers.pop().expect("a reader");
        drop(gone);
        tokio::time::pause();
        assert!(task.await.expect("no panic").is_err(), "its socket is closed");
        let (mut next, _task) = reader(&stream);
        assert_eq!(next.next().await.expect("a line"), Line::Alive);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_ends_or_is_stuck_is_named() {
        let pair = || std::os::unix::net::UnixStream::pair().expect("sockets");
        let (agent, socket) = pair();
        let mut reader = EventReader::new(socket).expect("a socket");
        assert!(matches!(reader.next().await, Err(StreamError::Silent)));
        drop(agent);
        let stream = EventStream::default();
        let (mut reader, task) = self::reader(&stream);
        reader.next().await.expect("a line");
        task.abort();
        assert!(matches!(reader.next().await, Err(StreamError::Ended)));
        let (agent, socket) = pair();
        drop(agent);
        let mut reader = EventReader::new(socket).expect("a socket");
        assert!(matches!(reader.next().await, Err(StreamError::None)));
    }
}
