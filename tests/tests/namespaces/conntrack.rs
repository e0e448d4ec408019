//! The host's connection tracking as the agent reads and changes it, with real NAT and without any agent. Needs root and `nft`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use lb_common::abi::{TCP, UDP};
use lb_takeover::conntrack::{Conntrack, Entry, Family, NewEntry, Tuple, nat_hooks, status, tcp_state};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::{NetNs, NodeOptions};

/// Port of the services: TCP leads to 8080 of the first backend, UDP to 5353 of it.
const PORT: u16 = 80;

/// A node that translates both families by nftables.
struct Nat {
    fixture: Fixture,
    frontends: Vec<SocketAddr>,
}

impl Nat {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 2, NodeOptions::default());
        let frontends = fixture.web().frontends(lb_tests::agent::Protocol::Tcp);
        let frontends = frontends.into_iter().map(|frontend| SocketAddr::new(frontend.ip(), PORT)).collect();
        let nat = Self { fixture, frontends };
        nft(nat.node(), &nat.rules());
        nat
    }

    fn node(&self) -> &NetNs {
        self.fixture.node.netns()
    }

    fn backend(&self, like: SocketAddr, index: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.fixture.backends[index].addresses().like(like.ip()), port)
    }

    fn rules(&self) -> String {
        let dnat = |to: &SocketAddr| {
            let family = if to.is_ipv4() { "ip" } else { "ip6" };
            let (tcp, udp) = (self.backend(*to, 0, 8080), self.backend(*to, 0, 5353));
            let address = to.ip();
            format!(
                "{family} daddr {address} tcp dport {PORT} dnat {family} to {tcp};\n\
                 {family} daddr {address} udp dport {PORT} dnat {family} to {udp};\n"
            )
        };
        let rules: String = self.frontends.iter().map(dnat).collect();
        format!("table inet proxy {{\nchain prerouting {{ type nat hook prerouting priority -100;\n{rules}}}\n}}\n")
    }

    fn connect(&self) -> Vec<Stream> {
        let connect = |to: &SocketAddr| Stream::connect(self.fixture.client.netns(), *to).unwrap();
        self.frontends.iter().map(connect).collect()
    }

    fn translated(&self, protocol: u8) -> Vec<Entry> {
        let list = |family| Conntrack::open().unwrap().list(family, status::DST_NAT).unwrap();
        let all = self.node().run(|| Family::ALL.map(list)).concat();
        all.into_iter().filter(|entry| entry.original.protocol == protocol && entry.is_translated()).collect()
    }

    /// Removes the rules, as an operator does who removes kube-proxy.
    fn remove_rules(&self) {
        nft(self.node(), "delete table inet proxy\n");
    }
}

fn nft(netns: &NetNs, rules: &str) {
    let mut command = Command::new("nft");
    let mut nft = netns.start(command.args(["-f", "-"]).stdin(Stdio::piped())).expect("`nft`: install nftables");
    nft.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success(), "{rules}");
}

fn all_answer(streams: &mut [Stream], server: &str, when: &str) {
    for stream in streams {
        let answer = stream.ask(when).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(answer.server, server, "{when}");
    }
}

#[test]
fn translated_connections_are_listed_and_live_on_without_the_rules() {
    let nat = Nat::new("ctlist");
    let mut streams = nat.connect();
    all_answer(&mut streams, "b0", "with the rules");
    let listed = nat.translated(TCP);
    assert_eq!(listed.len(), streams.len(), "{listed:?}");
    for (stream, frontend) in streams.iter().zip(&nat.frontends) {
        let client = stream.local().unwrap();
        let entry = listed.iter().find(|entry| entry.original.src == client).unwrap();
        assert_eq!(entry.original.dst, *frontend);
        assert_eq!((entry.reply.src, entry.reply.dst), (nat.backend(*frontend, 0, 8080), client));
        assert_eq!(entry.state, Some(tcp_state::ESTABLISHED));
        let found = nat.node().run(|| Conntrack::open().unwrap().get(&entry.reply).unwrap());
        assert_eq!(found.map(|found| found.original), Some(entry.original), "by its reply tuple");
    }
    nat.node().run(|| {
        nat_hooks::keep().unwrap();
        nat_hooks::keep().unwrap();
        assert!(nat_hooks::is_kept().unwrap());
    });
    nat.remove_rules();
    all_answer(&mut streams, "b0", "without the rules");
    assert!(nat.node().run(|| nat_hooks::release().unwrap()));
    assert!(!nat.node().run(|| nat_hooks::release().unwrap() || nat_hooks::is_kept().unwrap()), "it is gone");
}

#[test]
fn an_entry_that_is_made_translates_a_connection() {
    let nat = Nat::new("ctmake");
    let mut streams = nat.connect();
    all_answer(&mut streams, "b0", "with the rules");
    nat.node().run(|| nat_hooks::keep().unwrap());
    nat.remove_rules();
    let listed = nat.translated(TCP);
    for entry in &listed {
        let made = NewEntry {
            original: entry.original,
            backend: entry.reply.src,
            source: None,
            is_answered: true,
            timeout: Duration::from_hours(1),
        };
        nat.node().run(|| {
            let mut conntrack = Conntrack::open().unwrap();
            assert!(conntrack.delete(&entry.original).unwrap());
            assert!(!conntrack.delete(&entry.original).unwrap(), "it is gone");
            assert!(conntrack.get(&entry.original).unwrap().is_none());
            assert!(conntrack.insert(&made).unwrap());
            assert!(!conntrack.insert(&made).unwrap(), "the tuple is taken");
            let found = conntrack.get(&entry.original).unwrap().unwrap();
            assert_eq!((found.reply, found.is_translated()), (entry.reply, true));
            assert_ne!(found.status & status::ASSURED, 0);
        });
    }
    all_answer(&mut streams, "b0", "by the entries that were made");
}

#[test]
fn datagrams_follow_an_entry_with_another_source() {
    let nat = Nat::new("ctudp");
    nat.node().run(|| nat_hooks::keep().unwrap());
    nat.remove_rules();
    for frontend in nat.frontends.clone() {
        let client = SocketAddr::new(nat.fixture.client.addresses().like(frontend.ip()), 40_000);
        let node = SocketAddr::new(nat.fixture.node.addresses().like(frontend.ip()), 61_234);
        let original = Tuple { src: client, dst: frontend, protocol: UDP };
        let backend = nat.backend(frontend, 1, 5353);
        let made =
            NewEntry { original, backend, source: Some(node), is_answered: true, timeout: Duration::from_mins(2) };
        nat.node().run(|| assert!(Conntrack::open().unwrap().insert(&made).unwrap()));
        let socket = Datagrams::connected(nat.fixture.client.netns(), client.port(), frontend).unwrap();
        let answer = socket.ask("who").unwrap_or_else(|error| panic!("{frontend}: {error}"));
        assert_eq!((answer.server.as_str(), answer.peer), ("b1", node), "{frontend}");
    }
    assert_eq!(nat.translated(UDP).len(), nat.frontends.len());
}
