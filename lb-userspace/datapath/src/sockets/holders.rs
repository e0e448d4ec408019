//! Sockets without a peer: listeners, and UDP sockets that are bound and not connected.

use std::net::SocketAddr;

use lb_common::abi::{TCP, UDP};

use super::diag::{Connection, DiagError, SocketFamily};
use lb_model::Protocol;

/// A socket that holds a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it is bound to; an IPv4-mapped address stands as the IPv4 one.
    pub at: SocketAddr,
    pub protocol: Protocol,
    /// Of its owner.
    pub uid: u32,
}

/// Passes every such socket of the thread's network namespace to `take`. Minimum kernel: 3.3, with `CONFIG_INET_UDP_DIAG`.
pub fn holders(mut take: impl FnMut(&Holder)) -> Result<(), DiagError> {
    let mut connection = Connection::open()?;
    for (number, protocol) in [(TCP, Protocol::Tcp), (UDP, Protocol::Udp)] {
        for v6 in [false, true] {
            connection.holders(SocketFamily { protocol: number, v6 }, |socket| {
                take(&Holder { at: socket.local, protocol, uid: socket.uid });
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    fn held(at: SocketAddr, protocol: Protocol) -> bool {
        let mut found = false;
        holders(|holder| found |= holder.at == at && holder.protocol == protocol).expect("the kernel lists sockets");
        found
    }

    #[test]
    fn listeners_and_unconnected_sockets_are_found_and_no_others() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).expect("a free port");
            let at = listener.local_addr().expect("bound");
            assert!(held(at, Protocol::Tcp), "{at}");
            let stream = TcpStream::connect(at).expect("it listens");
            assert!(!held(stream.local_addr().expect("bound"), Protocol::Tcp));
            let socket = UdpSocket::bind(address).expect("a free port");
            let at = socket.local_addr().expect("bound");
            assert!(held(at, Protocol::Udp), "{at}");
            socket.connect(at).expect("an address");
            assert!(!held(at, Protocol::Udp), "{at} is connected");
        }
    }
}
