//! A TCP proxy in front of a server with faults on request: reset, mute, loss in one direction, slow. The server itself stays well.

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

use crate::topology::NetNs;

/// What is read at once.
const CHUNK: usize = 16 * 1024;
/// A slow connection passes its bytes in so many portions a second.
const PORTIONS: u32 = 10;

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
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
pub struct FaultyProxy {
    address: SocketAddr,
    state: Arc<Mutex<ProxyState>>,
    /// Dropping it ends the thread.
    open: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What new connections meet, and those that there are.
#[derive(Debug)]
struct ProxyState {
    new: Condition,
    accepted: usize,
    connections: Vec<watch::Sender<Condition>>,
}

impl FaultyProxy {
    /// In front of `server`, at the same address and another port, in `netns` (else in the namespace of the test).
    pub fn new(netns: Option<&NetNs>, server: SocketAddr) -> Result<Self> {
        let bind = || StdListener::bind((server.ip(), 0));
        let listener = netns.map_or_else(bind, |netns| netns.run(bind)).context("a port for the proxy")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(ProxyState { new: Condition::Open, accepted: 0, connections: Vec::new() }));
        let (open, end) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let of_thread = Arc::clone(&state);
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, server, &of_thread) => {}
                    _ = end => {}
                }
            });
        };
        let thread = match netns {
            Some(netns) => netns.spawn(work),
            None => std::thread::spawn(work),
        };
        Ok(Self { address, state, open: Some(open), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All connections are in this condition from now on, and each new one.
    pub fn set(&self, condition: Condition) {
        self.set_old(condition);
        self.state().new = condition;
    }

    /// The connections that are open now are in this condition; new ones pass as before. Returns how many there are.
    pub fn set_old(&self, condition: Condition) -> usize {
        let mut state = self.state();
        state.connections.retain(|connection| !connection.is_closed());
        for connection in &state.connections {
            connection.send_replace(condition);
        }
        state.connections.len()
    }

    /// Only new connections are in this condition.
    pub fn set_new(&self, condition: Condition) {
        self.state().new = condition;
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.state().accepted
    }

    /// Resets every connection, and each new one at once.
    pub fn cut(&self) {
        self.set(Condition::Cut);
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        self.set(Condition::Open);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        drop(self.open.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn serve(listener: StdListener, server: SocketAddr, state: &Mutex<ProxyState>) {
    let listener = TcpListener::from_std(listener).expect("a runtime that does I/O");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let condition = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    let (sender, condition) = watch::channel(state.new);
                    state.accepted += 1;
                    state.connections.push(sender);
                    condition
                };
                connections.spawn(forward(client, server, condition));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut condition: watch::Receiver<Condition>) {
    let now = *condition.borrow();
    if now != Condition::Cut
        && let Ok(mut server) = TcpStream::connect(server).await
    {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let questions = pump(from_client, to_server, Condition::QuestionsLost, condition.clone());
        let answers = pump(from_server, to_client, Condition::AnswersLost, condition.clone());
        tokio::select! {
            _ = condition.wait_for(|condition| *condition == Condition::Cut) => {}
            _ = async { tokio::join!(questions, answers) } => return,
        }
    }
    // Its close is a reset.
    client.set_zero_linger().ok();
}

/// Carries one direction until its end; in the condition `lost` nothing of it arrives.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    lost: Condition,
    mut condition: watch::Receiver<Condition>,
) {
    let mut chunk = vec![0; CHUNK];
    loop {
        // The proxy that could change it is gone: so is everything soon.
        let Ok(now) = condition.wait_for(|condition| *condition != Condition::Mute).await.map(|condition| *condition)
        else {
            return;
        };
        let portion = match now {
            Condition::Slow { bytes_per_second } if lost == Condition::AnswersLost => {
                Some(usize::try_from(bytes_per_second.div_ceil(PORTIONS)).unwrap_or(CHUNK).clamp(1, CHUNK))
            }
            _ => None,
        };
        // The condition first: bytes that arrive after a change belong to the new condition, also if both are found at once.
        let read = tokio::select! {
            biased;
            _ = condition.changed() => continue,
            read = from.read(&mut chunk[..portion.unwrap_or(CHUNK)]) => read,
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
