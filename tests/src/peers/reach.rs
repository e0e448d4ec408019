//! What clients of a service must find: every backend, or a refusal at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU16, Ordering};

use super::{Datagrams, Stream};
use crate::agent::{Protocol, Service};
use crate::topology::NetNs;

/// A source port that this process has not used before. A datagram from one that was used belongs to the flow that it began, and
/// that stays with its backend while the backend serves.
pub fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Asks each frontend until every backend has answered, and checks what both ends believe.
pub fn reaches_all(from: &NetNs, service: &Service, backends: usize, client_seen: bool) {
    for to in service.frontends(Protocol::Tcp) {
        let mut servers = BTreeSet::new();
        for _ in 0..60 {
            let mut stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("tcp {to}: {error}"));
            let answer = stream.ask("hello").unwrap_or_else(|error| panic!("tcp {to}: {error}"));
            assert_eq!(stream.peer().expect("connected"), to, "the client believes it talks to the service");
            if client_seen {
                assert_eq!(
                    answer.peer,
                    stream.local().expect("connected"),
                    "the backend sees the client's own address"
                );
            }
            servers.insert(answer.server);
        }
        assert_eq!(servers.len(), backends, "tcp {to} reached {servers:?}");
    }
    for to in service.frontends(Protocol::Udp) {
        let mut servers = BTreeSet::new();
        for _ in 0..60 {
            let socket = Datagrams::connected(from, fresh_port(), to).expect("a socket");
            let answer = socket.ask("hello").unwrap_or_else(|error| panic!("udp {to}: {error}"));
            servers.insert(answer.server);
            let socket = Datagrams::unconnected(from, fresh_port(), to).expect("a socket");
            let first = socket.ask_at(to, "one").unwrap_or_else(|error| panic!("udp {to}: {error}"));
            let second = socket.ask_at(to, "two").expect("an answer");
            assert_eq!(first.server, second.server, "a socket's datagrams stay with one backend");
        }
        assert_eq!(servers.len(), backends, "udp {to} reached {servers:?}");
    }
}

/// Nothing listens for this service: every caller is refused at once.
pub fn refused_at_once(from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        let error = Stream::connect(from, to).expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "tcp {to}: {error}");
    }
    for to in service.frontends(Protocol::Udp) {
        let refused = || -> std::io::Result<()> {
            let socket = Datagrams::connected(from, 0, to)?;
            socket.ask("hello").map(drop)
        };
        let error = refused().expect_err("nobody is there");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "udp {to}: {error}");
    }
}
