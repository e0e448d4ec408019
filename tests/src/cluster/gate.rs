//! A way to a server that a test can cut for a while: who uses it sees resets, and the server stays up.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::topology::Place;

/// Forwards TCP connections to a server while it is open. Dropped, it ends.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    /// Dropping it ends the thread.
    open: Option<watch::Sender<bool>>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// In front of `server`, at the same address and another port.
    pub fn new(place: &Place, server: SocketAddr) -> Result<Self> {
        let listener = place.run(|| StdListener::bind((server.ip(), 0))).context("a port for the gate")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (open, is_open) = watch::channel(true);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = place.spawn(move || runtime.block_on(serve(listener, server, is_open)));
        Ok(Self { address, open: Some(open), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resets every connection, and each new one at once.
    pub fn cut(&self) {
        self.set(false);
    }

    /// Lets new connections through again.
    pub fn mend(&self) {
        self.set(true);
    }

    fn set(&self, open: bool) {
        if let Some(sender) = &self.open {
            sender.send_replace(open);
        }
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

async fn serve(listener: StdListener, server: SocketAddr, mut open: watch::Receiver<bool>) {
    let listener = TcpListener::from_std(listener).expect("a runtime that does I/O");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            changed = open.changed() => match changed {
                Ok(()) if *open.borrow() => {}
                Ok(()) => connections.shutdown().await,
                Err(_) => return,
            },
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                // A close is a reset from here on.
                client.set_zero_linger().ok();
                if *open.borrow() {
                    connections.spawn(forward(client, server));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        tokio::io::copy_bidirectional(&mut client, &mut server).await.ok();
    }
}
