//! Packets from the wire whose source cannot be out there are dropped and counted, by XDP and by tc; anybody else's are served.

use std::net::{IpAddr, SocketAddr};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Protocol, SOON};
use lb_tests::incident::Counters;
use lb_tests::incident::raw_tcp::Segment;
use lb_tests::peers::eventually;
use lb_tests::routed::{AddressKind, Backend, Cell, Client, Family, Network, Policy, left};
use socket2::{Domain, SockAddr, Socket, Type};

/// A SYN from this address to a frontend, put on the wire by the router.
fn spoof(network: &Network, from: IpAddr, to: SocketAddr) {
    network.topology.wire().netns().run(|| {
        let raw = socket2::Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(Domain::for_address(to), Type::RAW, Some(raw)).unwrap();
        let syn = Segment::syn(SocketAddr::new(from, 12_345), to, 7);
        socket.send_to(&syn.bytes(), &SockAddr::from(SocketAddr::new(to.ip(), 0))).unwrap();
    });
}

fn frontend(network: &Network, kind: AddressKind, family: Family) -> SocketAddr {
    let (policy, client, backend) = (Policy::Cluster, Client::Outside, Backend::PodByRoute);
    let cell = Cell { kind, protocol: Protocol::Tcp, family, policy, client, backend };
    cell.frontend(network.nodes[0].addresses())
}

fn martians_are_dropped(mode: &str) {
    let mut network = Network::new(&format!("martians-{mode}")).unwrap();
    network.start(&Manifest::of(network.services()), &[&format!("--xdp-mode={mode}")]).unwrap();
    let node = &network.nodes[0];
    let count = |outcome| Counters::read(node.bpffs()).unwrap().get(outcome);
    for family in Family::ALL {
        let loopback: IpAddr = if family == Family::V4 { "127.0.0.5" } else { "::1" }.parse().unwrap();
        let services =
            [AddressKind::ClusterIp, AddressKind::LoadBalancer].map(|kind| frontend(&network, kind, family).ip());
        let martians = [loopback, node.addresses().of(family), services[0], services[1]];
        for kind in AddressKind::ALL {
            let to = frontend(&network, kind, family);
            for from in martians {
                let before = count(Outcome::DroppedMartian);
                spoof(&network, from, to);
                eventually("it is counted", SOON, || (count(Outcome::DroppedMartian) > before).then_some(()));
            }
        }
        assert!(left(node.bpffs()).unwrap().is_empty(), "a martian made a flow");
    }
    let before = count(Outcome::DroppedMartian);
    let somebody: IpAddr = "198.18.0.99".parse().unwrap();
    spoof(&network, somebody, frontend(&network, AddressKind::LoadBalancer, Family::V4));
    eventually("anybody else makes a flow", SOON, || (!left(node.bpffs()).unwrap().is_empty()).then_some(()));
    assert_eq!(count(Outcome::DroppedMartian), before);
}

#[test]
fn by_tc() {
    martians_are_dropped("off");
}

#[test]
fn by_native_xdp() {
    martians_are_dropped("native");
}
