//! SCTP in the style of TCP: an association of one stream, behind the same read and write as a connection's.
//!
//! Needs a kernel with the protocol (`CONFIG_IP_SCTP`). Every socket is bound to one address: single-homed.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Result, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Answer;
use crate::topology::NetNs;

/// SCTP's number, which the library has no name for on every system.
const SCTP: i32 = libc::IPPROTO_SCTP;
/// How long any one step may take. Associations are tried in emulated machines: slow ones.
const PATIENCE: Duration = Duration::from_mins(1);
/// Associations that wait to be accepted.
const BACKLOG: i32 = 128;

/// An association; ended in order when dropped.
#[derive(Debug)]
pub struct Association {
    reader: BufReader<TcpStream>,
}

impl Association {
    /// Connects from this address and any port.
    pub fn connect(netns: &NetNs, from: IpAddr, to: SocketAddr) -> Result<Self> {
        Self::connect_within(netns, from, to, PATIENCE)
    }

    /// [`Self::connect`] within `limit`; an error of kind `TimedOut` if nobody answers.
    pub fn connect_within(netns: &NetNs, from: IpAddr, to: SocketAddr, limit: Duration) -> Result<Self> {
        netns.run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::from(SCTP)))?;
            socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
            // Bounds connect() too.
            socket.set_write_timeout(Some(limit))?;
            socket.connect(&SockAddr::from(to)).map_err(|error| match error.raw_os_error() {
                Some(libc::EINPROGRESS) => Error::from(ErrorKind::TimedOut),
                _ => error,
            })?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.set_write_timeout(Some(PATIENCE))?;
            Ok(Self { reader: BufReader::new(TcpStream::from(socket)) })
        })
    }

    /// Sends a line and reads the answer.
    pub fn ask(&mut self, text: &str) -> Result<Answer> {
        self.reader.get_mut().write_all(format!("{text}\n").as_bytes())?;
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        let answer = Answer::parse(&line).ok_or_else(|| Error::new(ErrorKind::InvalidData, line.clone()))?;
        if answer.text == text { Ok(answer) } else { Err(Error::new(ErrorKind::InvalidData, line)) }
    }

    /// Whom the client believes it talks to.
    pub fn peer(&self) -> Result<SocketAddr> {
        self.reader.get_ref().peer_addr()
    }

    /// The client's own address.
    pub fn local(&self) -> Result<SocketAddr> {
        self.reader.get_ref().local_addr()
    }
}

/// A socket that listens for associations.
pub(super) fn listen(netns: &NetNs, address: SocketAddr) -> Result<TcpListener> {
    netns.run(|| {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::from(SCTP)))?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from(socket))
    })
}
