//! The server: one thread for one address, so that it costs the same on every way.

use std::io::{Read as _, Result, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::ask::{BUFFER_BYTES, CHUNK_BYTES, MESSAGE_BYTES, PATIENCE, STREAM};

/// Connections that may wait for their turn.
const BACKLOG: i32 = 1024;

/// What ends a server: told by another thread, it goes at once.
#[derive(Clone, Debug)]
pub struct Server {
    listener: Arc<TcpListener>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Listens in the calling thread's namespace; an IPv6 address for IPv6 alone.
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // Connections have it from their listener: so each read of theirs is bounded, at no cost of their own.
        socket.set_read_timeout(Some(PATIENCE))?;
        // Without it the window grows, or not, with who was scheduled when: a stream then takes one time or another three times as long.
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
        socket.bind(&SockAddr::from(address))?;
        socket.listen(BACKLOG)?;
        Ok(Self { listener: Arc::new(socket.into()), stop: Arc::default() })
    }

    /// Ends [`serve`].
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // Who waits in accept() wakes up. It may have ended before.
        SockRef::from(&*self.listener).shutdown(Shutdown::Both).ok();
    }
}

/// Answers one connection after the other, until it is stopped.
pub fn serve(server: &Server) {
    let mut room = vec![0; CHUNK_BYTES];
    while !server.stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = server.listener.accept() else { continue };
        // A client that goes away in between reports it.
        answer(&mut stream, &mut room).ok();
    }
}

fn answer(stream: &mut TcpStream, room: &mut [u8]) -> Result<()> {
    loop {
        let got = stream.read(&mut room[..MESSAGE_BYTES])?;
        if got == 0 {
            return Ok(());
        }
        if room[0] == STREAM {
            return take_in(stream, room, got);
        }
        stream.read_exact(&mut room[got..MESSAGE_BYTES])?;
        stream.write_all(&room[..MESSAGE_BYTES])?;
    }
}

fn take_in(stream: &mut TcpStream, room: &mut [u8], got: usize) -> Result<()> {
    let mut taken = got as u64;
    loop {
        let got = stream.read(room)?;
        if got == 0 {
            return stream.write_all(&taken.to_be_bytes());
        }
        taken += got as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{connect_and_ask, exchange, stream};

    /// Each way to ask is answered, and the server ends on request.
    #[test]
    fn questions_and_streams_are_answered() {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback");
        let address = server.listener.local_addr().expect("it listens");
        let thread = std::thread::spawn({
            let server = server.clone();
            move || serve(&server)
        });
        connect_and_ask(address).expect("answered");
        assert_eq!(exchange(address, 5).expect("answered").len(), 5);
        stream(address, 1_000_001).expect("taken in");
        server.stop();
        thread.join().expect("it ends");
    }
}
