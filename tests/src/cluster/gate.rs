//! A way to a server that a test can spoil: cut, fallen silent, losing one direction, slow. The server itself stays well.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::topology::Place;

/// What is read at once.
const CHUNK: usize = 16 * 1024;
/// A slow way passes its bytes in so many portions a second.
const PORTIONS: u32 = 10;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Everything passes.
    Open,
    /// Reset at once.
    Cut,
    /// Accepted, and open; nothing passes, nothing is lost.
    Mute,
    /// What the client says passes; what the server says is lost.
    AnswersLost,
    /// What the client says is lost; what the server says passes.
    QuestionsLost,
    /// What the server says passes slowly, on each connection.
    Slow { bytes_per_second: u32 },
}

/// Forwards TCP connections to a server. Dropped, it ends.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    ways: Arc<Mutex<Ways>>,
    /// Dropping it ends the thread.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What new connections meet, and those that there are.
#[derive(Debug)]
struct Ways {
    new: Way,
    accepted: usize,
    connections: Vec<watch::Sender<Way>>,
}

impl Gate {
    /// In front of `server`, at the same address and another port, in `place` (else in the namespace of the test).
    pub fn new(place: Option<&Place>, server: SocketAddr) -> Result<Self> {
        let bind = || StdListener::bind((server.ip(), 0));
        let listener = place.map_or_else(bind, |place| place.run(bind)).context("a port for the gate")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let ways = Arc::new(Mutex::new(Ways { new: Way::Open, accepted: 0, connections: Vec::new() }));
        let (open, end) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let of_thread = Arc::clone(&ways);
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, server, &of_thread) => {}
                    _ = end => {}
                }
            });
        };
        let thread = match place {
            Some(place) => place.spawn(work),
            None => std::thread::spawn(work),
        };
        Ok(Self { address, ways, open: Some(open), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All connections go this way from now on, and each new one.
    pub fn set(&self, way: Way) {
        self.set_old(way);
        self.ways().new = way;
    }

    /// The connections that are open now go this way; new ones pass as before. Returns how many there are.
    pub fn set_old(&self, way: Way) -> usize {
        let mut ways = self.ways();
        ways.connections.retain(|connection| !connection.is_closed());
        for connection in &ways.connections {
            connection.send_replace(way);
        }
        ways.connections.len()
    }

    /// Only new connections go this way.
    pub fn set_new(&self, way: Way) {
        self.ways().new = way;
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.ways().accepted
    }

    /// Resets every connection, and each new one at once.
    pub fn cut(&self) {
        self.set(Way::Cut);
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        self.set(Way::Open);
    }

    fn ways(&self) -> std::sync::MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn serve(listener: StdListener, server: SocketAddr, ways: &Mutex<Ways>) {
    let listener = TcpListener::from_std(listener).expect("a runtime that does I/O");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let way = {
                    let mut ways = ways.lock().unwrap_or_else(PoisonError::into_inner);
                    let (sender, way) = watch::channel(ways.new);
                    ways.accepted += 1;
                    ways.connections.push(sender);
                    way
                };
                connections.spawn(forward(client, server, way));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut way: watch::Receiver<Way>) {
    let now = *way.borrow();
    if now != Way::Cut
        && let Ok(mut server) = TcpStream::connect(server).await
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let questions = pump(from_client, to_server, Way::QuestionsLost, way.clone());
        let answers = pump(from_server, to_client, Way::AnswersLost, way.clone());
        tokio::select! {
            _ = way.wait_for(|way| *way == Way::Cut) => {}
            _ = async { tokio::join!(questions, answers) } => return,
        }
    }
    // Its close is a reset.
    client.set_zero_linger().ok();
}

/// Carries one direction until its end; on the way `lost` nothing of it arrives.
async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, lost: Way, mut way: watch::Receiver<Way>) {
    let mut chunk = vec![0; CHUNK];
    loop {
        // The gate that could change it is gone: so is everything soon.
        let Ok(now) = way.wait_for(|way| *way != Way::Mute).await.map(|way| *way) else { return };
        let portion = match now {
            Way::Slow { bytes_per_second } if lost == Way::AnswersLost => {
                Some(usize::try_from(bytes_per_second.div_ceil(PORTIONS)).unwrap_or(CHUNK).clamp(1, CHUNK))
            }
            _ => None,
        };
        let read = tokio::select! {
            read = from.read(&mut chunk[..portion.unwrap_or(CHUNK)]) => read,
            _ = way.changed() => continue,
        };
        let Ok(length @ 1..) = read else { break };
        if now != lost && to.write_all(&chunk[..length]).await.is_err() {
            break;
        }
        if portion.is_some() {
            tokio::time::sleep(Duration::from_secs(1) / PORTIONS).await;
        }
    }
    to.shutdown().await.ok();
}
