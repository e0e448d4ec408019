//! Entries of connections leave the tables as the sockets do, whatever is lost on the way.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use lb_common::abi::{Flow, flow_flags};
use lb_common::client_shares::Counters;
use lb_tables::Pinned;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::topology::{NetNs, NodeOptions};
use lb_userspace::observe::contents::{Contents, Wanted, WantedFlows};
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

/// How many TCP connections there are by each count, and how many of them hold a SNAT port.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    connections: [u64; 5],
    snat_ports: usize,
}

/// By `get connections`, `get backends`, `status`, the clients' shares, and the numbers that least connections goes by.
fn counted(agent: &Agent) -> Counts {
    let (open, flows) = left(agent);
    let status = number(&agent.json(&["status"]).unwrap()["tables"], "flows");
    let dir = agent.bpffs().join("ballast/tables");
    let shares = Pinned::open(&dir).unwrap().client_shares.read();
    let shared = Counters::families().map(|index| u64::from(shares[index as usize])).iter().sum();
    let wanted = Wanted { flows: WantedFlows::All, health: true, ..Wanted::default() };
    let Contents { v4, v6, .. } = Contents::read(&dir, wanted).unwrap();
    let least = v4.health.iter().chain(&v6.health).map(|health| u64::from(health.connections)).sum();
    let snat_ports = v4.flows.iter().filter(|(_, flow)| holds_port(flow)).count()
        + v6.flows.iter().filter(|(_, flow)| holds_port(flow)).count();
    Counts { connections: [open as u64, flows, status, shared, least], snat_ports }
}

fn holds_port<const N: usize>(flow: &Flow<N>) -> bool {
    const HOLDS: u8 = flow_flags::MASQUERADED | flow_flags::REPLY;
    flow.flags & HOLDS == HOLDS
}

/// Sockets of clients, by `ss`; and those of the backends, if they are as many, that see an address of the node.
fn sockets(clients: [&NetNs; 2], backends: [&NetNs; 2], fixture: &Fixture) -> Counts {
    let ss = |netns: &NetNs, filter| {
        let output = netns.run(|| Command::new("ss").args(["-Htn", filter]).output()).unwrap();
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all: u64 = clients.map(|netns| ss(netns, "dport = :80 or dport = :30080").len() as u64).iter().sum();
    let served: Vec<String> = backends.into_iter().flat_map(|netns| ss(netns, "sport = :8080")).collect();
    let own = fixture.node.addresses().both();
    let masqueraded = served.iter().filter(|line| {
        let peer = line.split_whitespace().nth(4).unwrap().parse::<SocketAddr>().unwrap();
        own.contains(&peer.ip())
    });
    let snat_ports = masqueraded.count();
    assert_eq!(served.len() as u64, all, "both ends have a socket of each: {served:?}");
    Counts { connections: [all; 5], snat_ports }
}

/// How the two ends close a connection: the client first or the backend, by a FIN or by a RST.
fn close(mut ends: [TcpStream; 2], by_backend: bool, resets: bool) {
    if by_backend {
        ends.reverse();
    }
    let [first, mut second] = ends;
    if resets {
        SockRef::from(&first).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(first);
    second.set_read_timeout(Some(SOON)).unwrap();
    // Its end comes, as a FIN or as an error.
    let _ = second.read(&mut [0; 1]);
}

/// While connections are open, half closed or ended, all that counts them says what the sockets say.
#[test]
fn counts_are_those_of_the_sockets_at_both_ends() {
    const CONNECTIONS: usize = 12;
    let mut fixture = Fixture::new("ss", Pods::Routed, 1, NodeOptions::default());
    fixture.servers.clear();
    let [outside, far] = ["outside", "far"].map(|name| fixture.topology.outside(name, &fixture.node).unwrap());
    let endpoints = [fixture.endpoints(), vec![Endpoint::ready(far.addresses()).on("elsewhere")]].concat();
    let service = fixture.web_of(endpoints).with(External { node_ports: vec![30_080], ..External::default() });
    let service = service.annotated("scheduler", "least-connections");
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-timeouts=closing=1s"]);
    let near = &fixture.backends[0];
    let (clients, backends) = ([fixture.client.netns(), outside.netns()], [near.netns(), far.netns()]);
    let listen = |(netns, ip): (&NetNs, _)| netns.run(|| TcpListener::bind(SocketAddr::new(ip, 8080))).unwrap();
    let own = near.ips().into_iter().map(|ip| (backends[0], ip));
    let listeners: Vec<_> = own.chain(far.ips().into_iter().map(|ip| (backends[1], ip))).map(listen).collect();
    for listener in &listeners {
        listener.set_nonblocking(true).unwrap();
    }
    let connect = |netns: &NetNs, to: SocketAddr| {
        let client = netns.run(|| TcpStream::connect(to)).unwrap();
        let accept = || listeners.iter().find_map(|listener| listener.accept().ok());
        let (server, _) = eventually("the backend accepts", SOON, accept);
        server.set_nonblocking(false).unwrap();
        [client, server]
    };
    let node_ports = fixture.node.addresses().both().map(|ip| SocketAddr::new(ip, 30_080));
    let at = service.frontends(Protocol::Tcp).into_iter().map(|to| (clients[0], to));
    let at: Vec<_> = at.chain(node_ports.into_iter().map(|to| (clients[1], to))).collect();
    let mut open: Vec<_> =
        at.iter().flat_map(|(netns, to)| (0..CONNECTIONS).map(|_| connect(netns, *to))).map(Some).collect();
    let agree = |when: &str, count: usize| {
        eventually(when, SOON, || {
            let (said, are) = (counted(&agent), sockets(clients, backends, &fixture));
            let is_as = said == are && are.connections == [count as u64; 5];
            if !is_as {
                println!("{when}: {said:?}, sockets: {are:?}, of {count}");
            }
            is_as.then_some(are.snat_ports)
        })
    };
    let all = open.len();
    assert!(agree("all are open", all) > 0, "some are masqueraded");
    for ends in open.iter().flatten().step_by(5) {
        ends[0].shutdown(Shutdown::Write).unwrap();
    }
    agree("some are half closed", all);
    for (number, ends) in open.iter_mut().enumerate().filter(|(number, _)| number % 3 != 0) {
        close(ends.take().unwrap(), number & 1 != 0, number & 2 != 0);
    }
    agree("most are closed", all.div_ceil(3));
    for (number, ends) in open.iter_mut().enumerate() {
        if let Some(ends) = ends.take() {
            close(ends, number & 1 != 0, number & 2 != 0);
        }
    }
    assert_eq!(agree("all are closed", 0), 0);
}
