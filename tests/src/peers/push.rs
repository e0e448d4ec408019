//! Servers that speak unasked: numbered lines on each connection, also behind the client's end, and numbered datagrams.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::Result;
use socket2::SockRef;

use super::Answer;
use crate::topology::NetNs;

/// A line of each connection, and a datagram to each client, so often.
const TICK: Duration = Duration::from_millis(20);
/// Room for what a connection says while it stands still.
const ROOM: usize = 1 << 20;
/// What ends a connection that nothing answers.
const GIVEN_UP: Duration = Duration::from_mins(2);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The number of what is sent now: it grows with time, for all pushers alike.
pub fn pushed_now() -> u128 {
    START.elapsed().as_millis()
}

/// Pushes to all clients of an address; dropped, it ends.
#[derive(Debug)]
pub struct Pusher {
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Pusher {
    /// A line on each connection, until the client resets it.
    pub fn tcp(netns: &NetNs, address: SocketAddr) -> Result<Self> {
        let listener = netns.run(|| TcpListener::bind(address))?;
        SockRef::from(&listener).set_read_timeout(Some(TICK))?; // Bounds accept().
        Ok(Self::start(netns, move |stop| {
            let mut streams = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                streams.extend(listener.accept().ok().and_then(|(stream, _)| ready(stream)));
                streams.retain_mut(|stream| say(stream).is_ok());
            }
        }))
    }

    /// A datagram to each client that has sent one.
    pub fn udp(netns: &NetNs, address: SocketAddr) -> Result<Self> {
        let socket = netns.run(|| UdpSocket::bind(address))?;
        socket.set_nonblocking(true)?;
        Ok(Self::start(netns, move |stop| {
            let (mut clients, mut buffer) = (Vec::new(), [0; 1_500]);
            while !stop.load(Ordering::Relaxed) {
                while let Ok((_, client)) = socket.recv_from(&mut buffer) {
                    clients.push(client);
                }
                for client in &clients {
                    // One that is lost is one of many.
                    socket.send_to(line(*client, address).as_bytes(), client).ok();
                }
                sleep(TICK);
            }
        }))
    }

    fn start(netns: &NetNs, work: impl FnOnce(Arc<AtomicBool>) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&stop);
        Self { stop, worker: Some(netns.spawn(move || work(own))) }
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

fn ready(stream: TcpStream) -> Option<TcpStream> {
    let socket = SockRef::from(&stream);
    socket.set_nonblocking(true).ok()?;
    socket.set_send_buffer_size(ROOM).ok()?;
    socket.set_tcp_user_timeout(Some(GIVEN_UP)).ok()?;
    stream.set_nodelay(true).ok()?;
    Some(stream)
}

fn say(stream: &mut TcpStream) -> std::io::Result<()> {
    let line = line(stream.peer_addr()?, stream.local_addr()?);
    stream.write_all(line.as_bytes())
}

fn line(peer: SocketAddr, local: SocketAddr) -> String {
    let answer = Answer { server: "push".to_owned(), peer, local, text: pushed_now().to_string() };
    format!("{}\n", answer.line())
}
