//! The conversation with the kernel: in the network namespace of the thread that opened it, every wait bounded.

use std::io::{self, Read as _};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::diag::{self, DiagError, Listed, Message, SocketFamily};

/// How long the kernel may take for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many sockets of one kind are read, at most.
const MOST_SOCKETS: usize = 4_000_000;
/// The kernel writes parts of a list of up to 32 KiB.
const BUFFER: usize = 65_536;

/// A socket for `NETLINK_SOCK_DIAG`.
pub struct Connection {
    socket: Socket,
    buffer: Vec<u8>,
}

impl Connection {
    /// To the network namespace that the thread is in. Destroying needs `CAP_NET_ADMIN` there.
    pub fn open() -> Result<Self, DiagError> {
        let failed = |source| DiagError::Socket { action: "socket diagnosis", source };
        let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)).map_err(failed)?;
        socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { socket, buffer: vec![0; BUFFER] })
    }

    /// Passes every socket of this kind to `take`.
    pub fn list(&mut self, kind: SocketFamily, take: impl FnMut(Listed)) -> Result<(), DiagError> {
        self.converse("list sockets", &diag::list(kind, false), kind.protocol, take)
    }

    /// Passes every socket of this kind without a peer to `take`.
    pub fn holders(&mut self, kind: SocketFamily, take: impl FnMut(Listed)) -> Result<(), DiagError> {
        self.converse("list sockets", &diag::list_waiting(kind), kind.protocol, take)
    }

    /// Destroys a socket; `false`: it is gone already.
    pub fn destroy(&mut self, socket: &Listed) -> Result<bool, DiagError> {
        let request = diag::destroy(socket);
        gone_is_good(self.converse("destroy a socket", &request, socket.kind.protocol, |_| ()))
    }

    /// Whether the kernel can destroy sockets of this protocol.
    pub fn probe(&mut self, protocol: u8) -> Result<(), DiagError> {
        let kind = SocketFamily { protocol, v6: false };
        self.converse("list sockets", &diag::list(kind, true), protocol, |_| ())?;
        gone_is_good(self.converse("destroy sockets", &diag::destroy_none(protocol), protocol, |_| ())).map(drop)
    }

    fn converse(
        &mut self,
        action: &'static str,
        request: &[u8],
        protocol: u8,
        mut take: impl FnMut(Listed),
    ) -> Result<(), DiagError> {
        let failed = |source| DiagError::Socket { action, source };
        self.socket.send(request).map_err(failed)?;
        let mut left = MOST_SOCKETS;
        loop {
            let length = self.socket.read(&mut self.buffer).map_err(failed)?;
            let messages = diag::read(&self.buffer[..length], protocol).ok_or(DiagError::Malformed { action })?;
            for message in messages {
                match message {
                    Message::Socket(socket) => take(socket),
                    Message::End(0) => return Ok(()),
                    Message::End(number) => {
                        return Err(DiagError::Refused { action, source: io::Error::from_raw_os_error(number) });
                    }
                }
                left = left.checked_sub(1).ok_or(DiagError::Endless { limit: MOST_SOCKETS })?;
            }
        }
    }
}

fn gone_is_good(result: Result<(), DiagError>) -> Result<bool, DiagError> {
    match result {
        Ok(()) => Ok(true),
        // ENOENT: no such socket. ESTALE: another one has its ports now.
        Err(DiagError::Refused { source, .. })
            if matches!(source.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}
