//! Clients that hold connections open: each sends requests until its connection is reset.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::topology::NetNs;

/// How often each of them asks.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that is not made by then is given up, and made anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of their connections so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Connections that were made.
    pub made: u64,
    /// Connections that could not be made.
    pub failed: u64,
    /// Connections that ended by a RST.
    pub told: u64,
    /// Connections that ended in another way: none should.
    pub otherwise: u64,
    /// By backend: connections that are open now.
    pub open: Vec<Ipv4Addr>,
}

/// They ask until they are dropped.
#[derive(Debug)]
pub struct HeldConnections {
    held: Arc<Mutex<Held>>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl HeldConnections {
    /// That many connections to `to`, from `netns`.
    pub fn start(netns: &NetNs, to: SocketAddr, connections: usize) -> Self {
        let (held, stop) = (Arc::new(Mutex::new(Held::default())), Arc::new(AtomicBool::new(false)));
        let (told, stopped) = (Arc::clone(&held), Arc::clone(&stop));
        let worker = netns.spawn(move || {
            let mut lines: Vec<Line> = (0..connections).map(|_| Line::Closed).collect();
            while !stopped.load(Ordering::Relaxed) {
                let mut now = told.lock().unwrap_or_else(PoisonError::into_inner);
                for line in &mut lines {
                    line.turn(to, &mut now);
                }
                now.open = lines.iter().filter_map(Line::backend).collect();
                drop(now);
                std::thread::sleep(PAUSE);
            }
        });
        Self { held, stop, worker: Some(worker) }
    }

    pub fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for HeldConnections {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

/// One of the connections.
enum Line {
    Closed,
    Connecting(TcpStream, Instant),
    Open(TcpStream, Ipv4Addr),
}

impl Line {
    fn backend(&self) -> Option<Ipv4Addr> {
        match self {
            Self::Open(_, backend) => Some(*backend),
            _ => None,
        }
    }

    fn turn(&mut self, to: SocketAddr, held: &mut Held) {
        *self = match std::mem::replace(self, Self::Closed) {
            Self::Closed => match connect(to) {
                Ok(stream) => Self::Connecting(stream, Instant::now()),
                Err(_) => Self::Closed,
            },
            Self::Connecting(stream, since) => Self::greeted(stream, since, held),
            Self::Open(stream, backend) => Self::asked(stream, backend, held),
        };
    }

    /// The server's first line says who it is.
    fn greeted(mut stream: TcpStream, since: Instant, held: &mut Held) -> Self {
        let mut bytes = [0; 64];
        match stream.read(&mut bytes) {
            Ok(count) if count > 0 => {
                if let Ok(backend) = String::from_utf8_lossy(&bytes[..count]).trim_end().parse() {
                    held.made += 1;
                    return Self::Open(stream, backend);
                }
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected)
                    && since.elapsed() < PATIENCE =>
            {
                return Self::Connecting(stream, since);
            }
            _ => {}
        }
        held.failed += 1;
        Self::Closed
    }

    fn asked(mut stream: TcpStream, backend: Ipv4Addr, held: &mut Held) -> Self {
        let mut bytes = [0; 1024];
        let outcome = stream.write(b"still there?\n").and_then(|_| stream.read(&mut bytes));
        match outcome {
            Ok(count) if count > 0 => Self::Open(stream, backend),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Self::Open(stream, backend),
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                held.told += 1;
                Self::Closed
            }
            _ => {
                held.otherwise += 1;
                Self::Closed
            }
        }
    }
}

/// Begins a connection whose segments are sent again every 200 ms while nobody acknowledges them, not ever more seldom.
fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(std::io::Error::other)?;
    // SAFETY: the option's value is valid for its size.
    unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, value, size);
    }
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(to)) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}
