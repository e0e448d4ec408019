//! Clients: a TCP connection or a UDP socket in some place, from a source port of choice, every step bounded in time.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Result, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{Answer, PATIENCE};
use crate::topology::NetNs;

/// A TCP connection; closed when dropped.
#[derive(Debug)]
pub struct Stream {
    reader: BufReader<TcpStream>,
}

impl Stream {
    /// Connects from any port.
    pub fn connect(netns: &NetNs, to: SocketAddr) -> Result<Self> {
        Self::connect_from(netns, 0, to, PATIENCE)
    }

    /// Connects from this port (0: any), within `limit`.
    ///
    /// The port is taken with `SO_REUSEADDR`, so that a test may use it again at once.
    pub fn connect_from(netns: &NetNs, port: u16, to: SocketAddr, limit: Duration) -> Result<Self> {
        netns.run(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            if port != 0 {
                socket.set_reuse_address(true)?;
                socket.bind(&SockAddr::from(SocketAddr::new(any(to), port)))?;
            }
            socket.connect_timeout(&SockAddr::from(to), limit)?;
            socket.set_tcp_nodelay(true)?;
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Self { reader: BufReader::new(stream) })
        })
    }

    /// Sends a line and reads the answer.
    pub fn ask(&mut self, text: &str) -> Result<Answer> {
        self.reader.get_mut().write_all(format!("{text}\n").as_bytes())?;
        let line = self.read_line()?;
        let answer = Answer::parse(&line).ok_or_else(|| Error::new(ErrorKind::InvalidData, line.clone()))?;
        if answer.text == text { Ok(answer) } else { Err(Error::new(ErrorKind::InvalidData, line)) }
    }

    /// Sends a line and waits for nothing.
    pub fn say(&mut self, text: &str) -> Result<()> {
        self.reader.get_mut().write_all(format!("{text}\n").as_bytes())
    }

    /// Says that nothing more comes; the other side may go on.
    pub fn half_close(&self) -> Result<()> {
        self.reader.get_ref().shutdown(Shutdown::Write)
    }

    /// Reads an answer that was not asked for.
    pub fn receive(&mut self) -> Result<Answer> {
        let line = self.read_line()?;
        Answer::parse(&line).ok_or_else(|| Error::new(ErrorKind::InvalidData, line))
    }

    /// Reads a line that was not asked for.
    pub fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(Error::from(ErrorKind::UnexpectedEof)),
            _ => Ok(line),
        }
    }

    /// Whom the client believes it talks to.
    pub fn peer(&self) -> Result<SocketAddr> {
        self.reader.get_ref().peer_addr()
    }

    /// The client's own address.
    pub fn local(&self) -> Result<SocketAddr> {
        self.reader.get_ref().local_addr()
    }

    /// How many segments of the client's were sent more than once (`tcpi_total_retrans`): 0, if none was lost, refused, or late.
    pub fn sent_again(&self) -> Result<u32> {
        Ok(self.info()?.tcpi_total_retrans)
    }

    /// How many segments of the client's did not arrive, besides so many `syns`. Of one that was sent again because it was late, the other side says
    /// that it came twice (RFC 2883): that is waited for.
    pub fn lost(&self, syns: u32) -> Result<u32> {
        let begin = Instant::now();
        loop {
            let info = self.info()?;
            let lost = info.tcpi_total_retrans.saturating_sub(syns + info.tcpi_dsack_dups);
            if lost == 0 || begin.elapsed() > PATIENCE {
                return Ok(lost);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn info(&self) -> Result<libc::tcp_info> {
        // SAFETY: numbers alone, for which all zeroes is a value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).map_err(Error::other)?;
        let (socket, into) = (self.reader.get_ref().as_raw_fd(), (&raw mut info).cast());
        // SAFETY: the kernel writes at most `length` bytes.
        match unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut length) } {
            0 => Ok(info),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Ends the connection in order: says that nothing more comes, and waits for the other side's end.
    pub fn end(mut self) -> Result<()> {
        self.reader.get_ref().shutdown(Shutdown::Write)?;
        match self.read_line() {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(error),
            Ok(line) => Err(Error::new(ErrorKind::InvalidData, line)),
        }
    }

    /// Ends the connection with a RST, so that nothing of it stays in TIME-WAIT and the port is free at once.
    pub fn reset(self) -> Result<()> {
        SockRef::from(self.reader.get_ref()).set_linger(Some(Duration::ZERO))
    }
}

/// A UDP socket; closed when dropped.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    /// Set if connected.
    to: Option<SocketAddr>,
}

impl Datagrams {
    /// An unconnected socket of the family of `like`, on this port (0: any that no other socket has).
    ///
    /// A port that is asked for is taken with `SO_REUSEADDR`. With it and port 0 the kernel may give two UDP sockets one port, and the last
    /// one bound gets the answers of both.
    pub fn unconnected(netns: &NetNs, port: u16, like: SocketAddr) -> Result<Self> {
        netns.run(|| {
            let socket = Socket::new(Domain::for_address(like), Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_reuse_address(port != 0)?;
            socket.bind(&SockAddr::from(SocketAddr::new(any(like), port)))?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(Self { socket: socket.into(), to: None })
        })
    }

    /// A socket connected to `to`, from this port (0: any).
    pub fn connected(netns: &NetNs, port: u16, to: SocketAddr) -> Result<Self> {
        let mut this = Self::unconnected(netns, port, to)?;
        this.socket.connect(to)?;
        this.to = Some(to);
        Ok(this)
    }

    /// How long [`Self::receive`] waits.
    pub fn set_patience(&self, limit: Duration) -> Result<()> {
        self.socket.set_read_timeout(Some(limit))
    }

    /// Sends a datagram to the connected peer and waits for the answer to it.
    pub fn ask(&self, text: &str) -> Result<Answer> {
        let to = self.to.ok_or(ErrorKind::NotConnected)?;
        self.ask_at(to, text)
    }

    /// Sends a datagram to `to`, which is named though the socket may be connected, and waits for the answer.
    pub fn ask_by_name(&self, to: SocketAddr, text: &str) -> Result<Answer> {
        self.socket.send_to(text.as_bytes(), to)?;
        self.receive().map(|(_, answer)| answer)
    }

    /// Sends a datagram to `to` and waits for the answer to it, which must come from `to`.
    pub fn ask_at(&self, to: SocketAddr, text: &str) -> Result<Answer> {
        self.send_at(to, text)?;
        loop {
            let (from, answer) = self.receive()?;
            if from != to {
                return Err(Error::new(ErrorKind::InvalidData, format!("answer from {from}, asked {to}")));
            }
            if answer.text == text {
                return Ok(answer); // Anything else is a late answer to an earlier question.
            }
        }
    }

    /// Sends a datagram.
    pub fn send_at(&self, to: SocketAddr, text: &str) -> Result<()> {
        let sent = if self.to.is_some() {
            self.socket.send(text.as_bytes())
        } else {
            self.socket.send_to(text.as_bytes(), to)
        };
        sent.map(drop)
    }

    /// Receives an answer, and says from whom.
    pub fn receive(&self) -> Result<(SocketAddr, Answer)> {
        let mut buffer = vec![0; 65_535];
        let (length, from) = self.socket.recv_from(&mut buffer)?;
        let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let answer = Answer::parse(&line).ok_or_else(|| Error::new(ErrorKind::InvalidData, line))?;
        Ok((from, answer))
    }

    /// Whom the socket believes it is connected to.
    pub fn peer(&self) -> Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// The client's own address.
    pub fn local(&self) -> Result<SocketAddr> {
        self.socket.local_addr()
    }
}

fn any(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::topology::Topology;

    #[test]
    fn no_two_sockets_of_any_port_share_one() {
        /// With shared ports, all differ in one of 15 runs; in both families in one of 200.
        const SOCKETS: usize = 400;
        let topology = Topology::new("ports").unwrap();
        for like in ["192.0.2.1:53", "[2001:db8::1]:53"] {
            let socket = || Datagrams::unconnected(topology.wire().netns(), 0, like.parse().unwrap()).unwrap();
            let sockets: Vec<Datagrams> = (0..SOCKETS).map(|_| socket()).collect();
            let ports: BTreeSet<u16> = sockets.iter().map(|socket| socket.local().unwrap().port()).collect();
            assert_eq!(ports.len(), SOCKETS, "{like}");
        }
    }
}
