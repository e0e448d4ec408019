//! The client: one connection and one question, many questions on one connection, or a stream.

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// Size of request and of response.
pub const MESSAGE_BYTES: usize = 64;
/// How long one step of a connection may take.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A request that is answered with the same bytes begins so.
pub(crate) const QUESTION: u8 = b'?';
/// A stream that is taken in to its end, and then answered with its length, begins so.
pub(crate) const STREAM: u8 = b'!';
/// Bytes of one write of a stream.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// Room of a stream at each end (the default limit of an unprivileged socket, `net.core.rmem_max`).
pub(crate) const BUFFER_BYTES: usize = 212_992;

/// Connects, asks and is answered. The connection ends with a RST, so that no port waits in TIME-WAIT, however many there are.
pub fn connect_and_ask(to: SocketAddr) -> Result<()> {
    let mut stream = open(to)?;
    question(&mut stream)?;
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))
}

/// How long a connection with its question took, from making the socket to having closed it.
pub fn time_connection(to: SocketAddr) -> Result<Duration> {
    let begun = Instant::now();
    connect_and_ask(to)?;
    Ok(begun.elapsed())
}

/// Asks so many times on one connection. Returns the time of each question.
pub fn exchange(to: SocketAddr, count: u32) -> Result<Vec<Duration>> {
    let mut stream = hold(to)?;
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let begun = Instant::now();
        question(&mut stream)?;
        times.push(begun.elapsed());
    }
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    Ok(times)
}

/// A connection that was answered once, and stays open.
pub fn hold(to: SocketAddr) -> Result<TcpStream> {
    let mut stream = open(to)?;
    question(&mut stream)?;
    Ok(stream)
}

/// Sends so many bytes on one connection. Returns the time from the first byte until the server has them all.
pub fn stream(to: SocketAddr, bytes: u64) -> Result<Duration> {
    let chunk = vec![STREAM; CHUNK_BYTES];
    let mut stream = open(to)?;
    SockRef::from(&stream).set_send_buffer_size(BUFFER_BYTES)?;
    let begun = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let next = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        stream.write_all(&chunk[..next])?;
        left -= next as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer)?;
    let took = begun.elapsed();
    if u64::from_be_bytes(answer) != bytes {
        return Err(Error::new(ErrorKind::InvalidData, format!("{to} took in another number of bytes than {bytes}")));
    }
    Ok(took)
}

/// A connection whose every step is bounded in time, connecting included.
fn open(to: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&SockAddr::from(to))?;
    Ok(socket.into())
}

fn question(stream: &mut TcpStream) -> Result<()> {
    let request = [QUESTION; MESSAGE_BYTES];
    let mut response = [0; MESSAGE_BYTES];
    stream.write_all(&request)?;
    stream.read_exact(&mut response)?;
    if response == request { Ok(()) } else { Err(Error::new(ErrorKind::InvalidData, "answered something else")) }
}
