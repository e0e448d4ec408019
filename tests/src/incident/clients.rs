//! Many clients, each with a connection from its own port: how many failed, and how long the others took.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::topology::NetNs;

/// What clients do.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// How many connections in all, and at most at a time.
    pub connections: u16,
    pub at_a_time: u16,
    /// Bounds connect, and then the answer.
    pub patience: Duration,
    /// The first connection's port, the next ones have the next ones; `None`: the kernel chooses.
    pub first_port: Option<u16>,
}

/// One connection, with a line asked and answered.
#[derive(Debug)]
pub struct Attempt {
    /// Until the connection was made, or failed.
    pub time: Duration,
    pub error: Option<Error>,
}

/// All of them.
#[derive(Debug)]
pub struct Round {
    pub attempts: Vec<Attempt>,
    /// From the first to the last.
    pub took: Duration,
}

impl Clients {
    /// Connects to `to` (IPv4) from `netns`, and asks each server for its name.
    pub fn run(&self, netns: &NetNs, to: SocketAddr) -> Round {
        let start = Instant::now();
        let next = Arc::new(AtomicU16::new(0));
        let worker = |_| {
            let (next, this) = (Arc::clone(&next), *self);
            netns.spawn(move || {
                let mut attempts = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= this.connections {
                        return attempts;
                    }
                    attempts.push(attempt(this.first_port.map_or(0, |first| first + number), to, this.patience));
                }
            })
        };
        let workers: Vec<_> = (0..self.at_a_time.min(self.connections)).map(worker).collect();
        let attempts = workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        Round { attempts, took: start.elapsed() }
    }
}

impl Round {
    pub fn failed(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.error.is_some()).count()
    }

    /// The first failure.
    pub fn first_error(&self) -> Option<&Error> {
        self.attempts.iter().find_map(|attempt| attempt.error.as_ref())
    }

    /// The connect time that this share (in thousandths) of the successful ones does not exceed.
    pub fn quantile(&self, thousandths: usize) -> Duration {
        let mut times: Vec<Duration> =
            self.attempts.iter().filter(|attempt| attempt.error.is_none()).map(|attempt| attempt.time).collect();
        times.sort();
        let index = (times.len() * thousandths).div_ceil(1000).saturating_sub(1);
        times.get(index).copied().unwrap_or_default()
    }

    /// `failed 0 of 1000; connect p50 0.5 ms, p99 1021.0 ms, max 1034.2 ms`
    pub fn line(&self) -> String {
        let [p50, p99, max] = [500, 990, 1000].map(|share| self.quantile(share).as_secs_f64() * 1e3);
        format!(
            "failed {} of {}; connect p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms",
            self.failed(),
            self.attempts.len()
        )
    }
}

fn attempt(port: u16, to: SocketAddr, patience: Duration) -> Attempt {
    let start = Instant::now();
    let connected = connect(port, to, patience);
    let time = start.elapsed();
    Attempt { time, error: connected.and_then(|stream| ask(&stream, patience)).err() }
}

fn connect(port: u16, to: SocketAddr, patience: Duration) -> Result<TcpStream, Error> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if port != 0 {
        socket.bind(&SockAddr::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)))?;
    }
    socket.connect_timeout(&SockAddr::from(to), patience)?;
    Ok(socket.into())
}

fn ask(stream: &TcpStream, patience: Duration) -> Result<(), Error> {
    stream.set_read_timeout(Some(patience))?;
    let mut to = stream;
    to.write_all(b"who\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    if line.ends_with("who\n") { Ok(()) } else { Err(Error::new(ErrorKind::InvalidData, line)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_those_that_succeeded() {
        let attempt = |ms: u64, failed: bool| Attempt {
            time: Duration::from_millis(ms),
            error: failed.then(|| ErrorKind::TimedOut.into()),
        };
        let attempts = vec![attempt(3, false), attempt(1, false), attempt(5000, true), attempt(2, false)];
        let round = Round { attempts, took: Duration::ZERO };
        assert_eq!(round.failed(), 1);
        assert_eq!([500, 990, 1000].map(|share| round.quantile(share).as_millis()), [2, 3, 3]);
    }
}
