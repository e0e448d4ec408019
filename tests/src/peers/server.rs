//! Servers: a TCP or SCTP listener or a UDP socket in some place, answering every line with an [`Answer`].

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::SockRef;

use super::{Answer, sctp};
use crate::topology::NetNs;

/// How often a waiting server looks whether it shall stop.
const TICK: Duration = Duration::from_millis(50);
/// Longest datagram.
const DATAGRAM: usize = 65_535;

/// A running server; dropped, its socket and its connections are closed.
#[derive(Debug)]
pub struct Server {
    name: String,
    address: SocketAddr,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Questions answered.
    answers: AtomicU32,
    /// Connections accepted (TCP).
    accepted: AtomicU32,
    /// Connections that ended by an error (TCP).
    broken: AtomicU32,
    /// Those that are open, and a few that ended.
    connections: Mutex<Vec<(TcpStream, Weak<()>)>>,
}

impl Server {
    /// A TCP server: answers every line, holds each connection open until the client or [`Server::drop`] ends it.
    pub fn tcp(netns: &NetNs, name: &str, address: SocketAddr) -> Result<Self> {
        let listener = netns
            .run(|| TcpListener::bind(address))
            .with_context(|| format!("server {name} on tcp {address} in {}", netns.name()))?;
        Self::listening(netns, name, listener)
    }

    /// A server of SCTP, if the kernel speaks it.
    pub fn sctp(netns: &NetNs, name: &str, address: SocketAddr) -> Result<Self> {
        let listener = sctp::listen(netns, address)
            .with_context(|| format!("server {name} on sctp {address} in {}", netns.name()))?;
        Self::listening(netns, name, listener)
    }

    fn listening(netns: &NetNs, name: &str, listener: TcpListener) -> Result<Self> {
        SockRef::from(&listener).set_read_timeout(Some(TICK))?; // Bounds accept().
        Ok(Self::start(netns, name, listener.local_addr()?, move |name, shared| {
            accept(&listener, &name, &shared);
        }))
    }

    /// A UDP server: answers every datagram from the address it was sent to.
    pub fn udp(netns: &NetNs, name: &str, address: SocketAddr) -> Result<Self> {
        let socket = netns
            .run(|| UdpSocket::bind(address))
            .with_context(|| format!("server {name} on udp {address} in {}", netns.name()))?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self::start(netns, name, socket.local_addr()?, move |name, shared| {
            datagrams(&socket, &name, &shared);
        }))
    }

    /// A server of each protocol on each of the addresses.
    pub fn all(netns: &NetNs, name: &str, addresses: &[SocketAddr]) -> Result<Vec<Self>> {
        let mut servers = Vec::new();
        for &address in addresses {
            servers.push(Self::tcp(netns, name, address)?);
            servers.push(Self::udp(netns, name, address)?);
        }
        Ok(servers)
    }

    /// Its name, as it answers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Questions answered so far.
    pub fn answers(&self) -> u32 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u32 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// Connections that ended by a RST or another error, not in order.
    pub fn broken(&self) -> u32 {
        self.shared.broken.load(Ordering::Relaxed)
    }

    /// Sends a line on every open connection without being asked.
    pub fn push(&self, text: &str) {
        let connections = self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for (stream, _) in connections.iter() {
            // A connection that ended meanwhile is no concern of ours.
            (&*stream).write_all(format!("{text}\n").as_bytes()).ok();
        }
    }

    fn start(
        netns: &NetNs,
        name: &str,
        address: SocketAddr,
        work: impl FnOnce(String, Arc<Shared>) + Send + 'static,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (own_name, own_shared) = (name.to_owned(), Arc::clone(&shared));
        let worker = netns.spawn(move || work(own_name, own_shared));
        Self { name: name.to_owned(), address, shared, worker: Some(worker) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
        for (stream, _) in self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            stream.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

fn accept(listener: &TcpListener, name: &str, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok((stream, peer)) = listener.accept() else {
            continue;
        };
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        // It inherited the listener's: an idle connection would end after one tick.
        if stream.set_read_timeout(None).is_err() {
            continue;
        }
        let (Ok(local), Ok(kept)) = (stream.local_addr(), stream.try_clone()) else {
            continue;
        };
        let open = Arc::new(());
        let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        // A test may make more connections than a process may have files.
        connections.retain(|(_, open)| open.strong_count() > 0);
        connections.push((kept, Arc::downgrade(&open)));
        drop(connections);
        let (name, shared) = (name.to_owned(), Arc::clone(shared));
        // Ends with the connection, which the server's drop shuts down.
        std::thread::spawn(move || {
            serve(&stream, &name, peer, local, &shared);
            drop(open);
        });
    }
}

fn serve(stream: &TcpStream, name: &str, peer: SocketAddr, local: SocketAddr, shared: &Shared) {
    for line in BufReader::new(stream).lines() {
        let Ok(text) = line else {
            shared.broken.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let answer = Answer { server: name.to_owned(), peer, local, text };
        let mut to = stream;
        if to.write_all(format!("{}\n", answer.line()).as_bytes()).is_err() {
            return;
        }
        shared.answers.fetch_add(1, Ordering::Relaxed);
    }
    stream.shutdown(std::net::Shutdown::Both).ok();
}

fn datagrams(socket: &UdpSocket, name: &str, shared: &Shared) {
    let Ok(local) = socket.local_addr() else {
        return;
    };
    let mut buffer = vec![0; DATAGRAM];
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok((length, peer)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let text = String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned();
        let answer = Answer { server: name.to_owned(), peer, local, text };
        if socket.send_to(answer.line().as_bytes(), peer).is_ok() {
            shared.answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}
