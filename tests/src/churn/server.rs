//! A server for connections that get stuck: it says at which address it was reached, echoes, and forgets silent clients.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::objects::PORT;
use crate::topology::NetNs;

/// How often it looks at its connections.
const TICK: Duration = Duration::from_millis(5);
/// A connection that says nothing for so long is dropped: nobody will ever end those of an address that is gone.
const SILENCE: Duration = Duration::from_secs(20);

/// It runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Server {
    /// At every address of the place.
    pub fn start(netns: &NetNs) -> Result<Self> {
        let at = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
        let listener = netns.run(|| TcpListener::bind(at)).context("the backends' server")?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let worker = netns.spawn(move || serve(&listener, &stopped));
        Ok(Self { stop, worker: Some(worker) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool) {
    let mut open: Vec<(TcpStream, Instant)> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        while let Ok((stream, _)) = listener.accept() {
            if greet(&stream).is_ok() {
                open.push((stream, Instant::now()));
            }
        }
        open.retain_mut(|(stream, heard)| {
            match echo(stream) {
                Ok(true) => *heard = Instant::now(),
                Ok(false) => {}
                Err(()) => return false,
            }
            heard.elapsed() < SILENCE
        });
        std::thread::sleep(TICK);
    }
}

fn greet(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    let at = stream.local_addr()?.ip();
    (&*stream).write_all(format!("{at}\n").as_bytes())
}

/// Whether something was heard; an error at the connection's end.
fn echo(stream: &mut TcpStream) -> Result<bool, ()> {
    let mut bytes = [0; 256];
    match stream.read(&mut bytes) {
        Ok(0) => Err(()),
        Ok(count) => stream.write_all(&bytes[..count]).map(|()| true).map_err(drop),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(_) => Err(()),
    }
}
