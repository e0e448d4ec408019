//! A client that makes one connection after the other until it is dropped.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::topology::NetNs;

/// Between two connections.
const PAUSE: Duration = Duration::from_millis(5);
/// A connection without the server's greeting by then has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many of them connect side by side: one that waits shall not keep the others from going on.
const CLIENTS: usize = 4;

/// It connects until it is dropped; the server must greet every client with a line.
#[derive(Debug)]
pub struct Load {
    counts: Arc<[AtomicU64; 2]>,
    stop: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(netns: &NetNs, to: SocketAddr) -> Self {
        let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let stop = Arc::new(AtomicBool::new(false));
        let worker = |_| {
            let (counts, stop) = (Arc::clone(&counts), Arc::clone(&stop));
            netns.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    counts[usize::from(one(to).is_err())].fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            })
        };
        Self { workers: (0..CLIENTS).map(worker).collect(), counts, stop }
    }

    /// Connections that were served, and those that failed.
    pub fn counts(&self) -> (u64, u64) {
        let [served, failed] = &*self.counts;
        (served.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().ok();
        }
    }
}

fn one(to: SocketAddr) -> std::io::Result<()> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    match BufReader::new(&stream).read_line(&mut String::new())? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
