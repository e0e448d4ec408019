//! Servers that say who they are and whom they saw, and clients that ask them: TCP, UDP and SCTP, both families, bounded in time.
//!
//! One line asked, one line answered: `NAME SAW-PEER SAW-LOCAL TEXT`.

mod client;
mod push;
mod reach;
mod sctp;
mod server;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

pub use client::{Datagrams, Stream};
pub use push::{Pusher, pushed_now};
pub use reach::{fresh_port, reaches_all, refused_at_once};
pub use sctp::Association;
pub use server::Server;

/// How long any one step of a client may take before it counts as no answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Name of the server.
    pub server: String,
    /// The client as the server saw it.
    pub peer: SocketAddr,
    /// The server's own address as it saw it.
    pub local: SocketAddr,
    /// The text that was sent.
    pub text: String,
}

impl Answer {
    /// The line on the wire, without its end.
    fn line(&self) -> String {
        format!("{} {} {} {}", self.server, self.peer, self.local, self.text)
    }

    /// Reads such a line.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.trim_end_matches('\n').splitn(4, ' ');
        Some(Self {
            server: words.next()?.to_owned(),
            peer: words.next()?.parse().ok()?,
            local: words.next()?.parse().ok()?,
            text: words.next()?.to_owned(),
        })
    }
}

/// An address for a socket of IPv6: an IPv4 address as an IPv4-mapped one.
pub fn mapped(to: SocketAddr) -> SocketAddr {
    match to.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), to.port()),
        IpAddr::V6(_) => to,
    }
}

/// Asks again until `check` yields something, at most for `limit`. For states that come about soon, but not at once.
pub fn eventually<T>(what: &str, limit: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        if let Some(found) = check() {
            return found;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        // A check that takes long leaves as much time to what it waits for.
        std::thread::sleep(asked.elapsed().clamp(Duration::from_millis(20), Duration::from_millis(200)));
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn an_answer_survives_its_line() {
        let answer = Answer {
            server: "b1".into(),
            peer: "[fd00::1]:5".parse().unwrap(),
            local: "10.0.0.1:80".parse().unwrap(),
            text: "two words".into(),
        };
        assert_eq!(Answer::parse(&format!("{}\n", answer.line())), Some(answer));
        assert_eq!(Answer::parse("b1 nobody"), None);
    }
}
