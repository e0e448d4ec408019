//! Entries of connections leave the tables as the sockets do, whatever is lost on the way.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::topology::{NetNs, NodeOptions};
use socket2::SockRef;

use super::{items, number};

/// A burst of segments, 20 MB into a download, that is lost before any program sees it: more than 128 KiB, with as much behind it. A sender knows
/// of segments that its own rules drop, so they lead them astray.
const BURST: &str = "table netdev burst { chain out { type filter hook egress device eth0 priority 0; \
                     tcp sport 8080 meta length > 8000 quota over 20 mbytes quota 400 kbytes counter fwd to lo; }; }";

fn nft(netns: &NetNs, arguments: &[&str]) -> String {
    let output = netns.run(|| Command::new("nft").args(arguments).output()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Open connections, and what the backends are said to have.
fn left(agent: &Agent) -> (usize, u64) {
    let open = items(agent, &["connections", "--state", "open"]).len();
    let backends = items(agent, &["backends", "--service", "web:80"]);
    (open, backends.iter().map(|backend| number(backend, "flows")).sum())
}

/// One end closes by `SO_LINGER` 0 behind data that the other end has not acknowledged, since it has no way back.
#[test]
fn a_reset_behind_unacknowledged_data_leaves_no_entry() {
    const CONNECTIONS: usize = 10;
    let mut fixture = Fixture::new("linger", Pods::Routed, 1, NodeOptions::default());
    fixture.servers.clear();
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-timeouts=closing=1s"]);
    let open = || items(&agent, &["connections", "--state", "open"]).len();
    let backend = &fixture.backends[0];
    for to in service.frontends(Protocol::Tcp) {
        let at = SocketAddr::new(backend.addresses().like(to.ip()), 8080);
        let listener = backend.netns().run(|| TcpListener::bind(at)).unwrap();
        for by_client in [true, false] {
            let connect = || {
                let client = fixture.client.netns().run(|| TcpStream::connect(to)).unwrap();
                (client, listener.accept().unwrap().0)
            };
            let ends: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
            assert_eq!(open(), CONNECTIONS);
            let (deaf, away) = if by_client {
                (backend, fixture.client.addresses().like(to.ip()))
            } else {
                (&fixture.client, to.ip())
            };
            let route = format!("blackhole {away}/{}", if away.is_ipv4() { 32 } else { 128 });
            deaf.namespace().ip(&format!("route add {route}")).unwrap();
            for (client, server) in ends {
                let (mut closed, mut other) = if by_client { (client, server) } else { (server, client) };
                closed.write_all(b"unacknowledged").unwrap();
                SockRef::from(&closed).set_linger(Some(Duration::ZERO)).unwrap();
                drop(closed);
                other.set_read_timeout(Some(SOON)).unwrap();
                let ended = other.read_to_end(&mut Vec::new()).unwrap_err();
                assert_eq!(ended.kind(), ErrorKind::ConnectionReset, "{to}, by the client: {by_client}");
            }
            deaf.namespace().ip(&format!("route del {route}")).unwrap();
            assert_eq!(open(), 0, "{to}, by the client: {by_client}");
        }
    }
    eventually("no entry is left", SOON, || (left(&agent) == (0, 0)).then_some(()));
}

/// A download that loses a burst of segments is read to its end, or aborted under way.
#[test]
fn a_burst_of_loss_leaves_no_entry_of_a_download() {
    const LENGTH: usize = 40 << 20;
    const READ: usize = 30 << 20;
    let mut fixture = Fixture::new("bursts", Pods::Routed, 1, NodeOptions::default());
    fixture.servers.clear();
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-timeouts=closing=1s"]);
    let backend = &fixture.backends[0];
    let aborts = [false, true];
    for to in service.frontends(Protocol::Tcp) {
        let address = SocketAddr::new(backend.addresses().like(to.ip()), 8080);
        let listener = backend.netns().run(|| TcpListener::bind(address)).unwrap();
        for aborts in aborts.repeat(lb_seed::short_or_long(1, 10)) {
            nft(backend.netns(), &[BURST]);
            let mut client = fixture.client.netns().run(|| TcpStream::connect(to)).unwrap();
            client.set_read_timeout(Some(SOON)).unwrap();
            let (mut server, _) = listener.accept().unwrap();
            let server = std::thread::spawn(move || {
                let written = server.write_all(&vec![1; LENGTH]).and_then(|()| server.shutdown(Shutdown::Write));
                let _ = server.read_to_end(&mut Vec::new());
                written
            });
            client.read_exact(&mut vec![0; READ]).unwrap();
            assert_eq!(left(&agent), (1, 1), "{to}");
            if aborts {
                SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
            } else {
                assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), LENGTH - READ);
            }
            drop(client);
            let written = server.join().unwrap();
            assert!(aborts || written.is_ok(), "{written:?}");
            let dropped = nft(backend.netns(), &["list", "table", "netdev", "burst"]);
            assert!(!dropped.contains("counter packets 0"), "{dropped}");
            nft(backend.netns(), &["delete", "table", "netdev", "burst"]);
            eventually(&format!("{to}, aborted: {aborts}: no entry is left"), SOON, || {
                (left(&agent) == (0, 0)).then_some(())
            });
        }
    }
}
