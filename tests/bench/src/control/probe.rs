//! Who reaches whom, and when: a client that knocks without pause, servers that note the first knock of each client.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_tests::topology::NetNs;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

/// A client knocks this often: the resolution of all that is measured.
const KNOCK_EVERY: Duration = Duration::from_micros(500);
/// So many knocks are given time to be answered.
const OPEN_MAX: usize = 64;
/// How long a server waits before it looks whether it shall stop.
const TICK: Duration = Duration::from_millis(20);

/// A thread that runs until it is dropped.
#[derive(Debug)]
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(netns: &NetNs, work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        Self { stop, thread: Some(netns.spawn(move || work(&stopped))) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// When each client first reached a server.
type Firsts = Arc<Mutex<BTreeMap<IpAddr, Instant>>>;

/// Accepts connections, and notes the first of each client.
#[derive(Debug)]
pub struct Server {
    firsts: Firsts,
    _worker: Worker,
}

impl Server {
    /// Closes each connection at once.
    pub fn start(netns: &NetNs, address: SocketAddrV4) -> Result<Self> {
        Self::keeping(netns, address, false)
    }

    /// Keeps all of them open.
    pub fn holding(netns: &NetNs, address: SocketAddrV4) -> Result<Self> {
        Self::keeping(netns, address, true)
    }

    fn keeping(netns: &NetNs, address: SocketAddrV4, hold: bool) -> Result<Self> {
        let listener = netns.run(|| TcpListener::bind(address)).with_context(|| format!("a server on {address}"))?;
        // Bounds accept().
        SockRef::from(&listener).set_read_timeout(Some(TICK))?;
        let firsts = Firsts::default();
        let noted = Arc::clone(&firsts);
        let worker = Worker::start(netns, move |stop| {
            let mut open = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let Ok((stream, client)) = listener.accept() else { continue };
                let now = Instant::now();
                noted.lock().unwrap_or_else(PoisonError::into_inner).entry(client.ip()).or_insert(now);
                open.extend(hold.then_some(stream));
            }
        });
        Ok(Self { firsts, _worker: worker })
    }

    /// Forgets who was there.
    pub fn forget(&self) {
        self.firsts.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// When this client was first there since [`Self::forget`].
    pub fn first(&self, client: IpAddr) -> Option<Instant> {
        self.firsts.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied()
    }
}

/// Begins a new connection to an address every half a millisecond, whatever became of those before.
#[derive(Debug)]
pub struct Knocker {
    _worker: Worker,
}

impl Knocker {
    pub fn start(netns: &NetNs, to: SocketAddrV4) -> Self {
        let to: SockAddr = SocketAddr::V4(to).into();
        let worker = Worker::start(netns, move |stop| {
            let mut open: Vec<Option<Socket>> = (0..OPEN_MAX).map(|_| None).collect();
            let mut next = Instant::now();
            for index in (0..OPEN_MAX).cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                // The one that was there is closed: with a reset, so that no port waits in TIME-WAIT.
                open[index] = knock(&to).ok();
                next += KNOCK_EVERY;
                let now = Instant::now();
                // A client that was kept from knocking does not make up for it.
                next = next.max(now);
                sleep(next - now);
            }
        });
        Self { _worker: worker }
    }
}

fn knock(to: &SockAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(to) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) && error.kind() != ErrorKind::WouldBlock => {
            Err(error)
        }
        _ => Ok(socket),
    }
}

/// Waits until `done` holds or `limit` is over; returns what it found.
pub fn wait_for<T>(limit: Duration, stop: &AtomicBool, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = done() {
            return Some(found);
        }
        if started.elapsed() > limit || stop.load(Ordering::Relaxed) {
            return None;
        }
        sleep(Duration::from_millis(1));
    }
}
