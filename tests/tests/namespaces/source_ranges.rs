//! Processes and source ranges: the node passes if one of its addresses is in range, a pod is held against them at its link.
//!
//! The tables are written by the test itself, and the programs are those of the object at hand, so that mutations show.

use std::io::ErrorKind;
use std::net::SocketAddr;

use lb_common::abi::{
    Backend, Service, ServiceKey, Slot, UDP, backend_flags, backend_state, frontend_kind, seal, service_flags,
};
use lb_common::outcome::Outcome;
use lb_tests::peers::Datagrams;
use lb_tests::test_run::{LoadedPrograms, Whose};
use lb_tests::topology::{Addresses, NetNs, Topology};

const FRONTEND4: [u8; 4] = [192, 0, 2, 10];
const FRONTEND6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10];
const SERVICE: u32 = 7;

/// A load balancer's frontend in each family, UDP, whose one backend is at these addresses.
fn serve(programs: &mut LoadedPrograms, flags: u8, backend: Addresses) {
    let service = Service {
        id: SERVICE,
        generation: 1,
        slot_base: 16,
        slot_count: 1,
        external_base: 0,
        external_count: 0,
        seal: 0,
        affinity_timeout_s: 0,
        scheduler: 0,
        flags,
        kind: frontend_kind::LOAD_BALANCER,
        pad: 0,
        rate: 0,
        burst: 0,
    };
    let slot = Slot { backend: 1, generation: 1, service: SERVICE, backend_generation: 1 };
    programs.tables4.slots.set(16, slot, 0).unwrap();
    let key = ServiceKey { address: FRONTEND4, port: 53, protocol: UDP, pad: 0 };
    programs.tables4.services.insert(key, Service { seal: seal(&key, &service), ..service }, 0).unwrap();
    let key = ServiceKey { address: FRONTEND6, port: 53, protocol: UDP, pad: 0 };
    programs.tables6.services.insert(key, Service { seal: seal(&key, &service), ..service }, 0).unwrap();
    programs.tables4.backends.set(1, record(backend.v4.octets()), 0).unwrap();
    programs.tables6.backends.set(1, record(backend.v6.octets()), 0).unwrap();
}

fn record<const N: usize>(address: [u8; N]) -> Backend<N> {
    Backend {
        address,
        port: 5353,
        state: backend_state::ACTIVE,
        flags: backend_flags::SERVING | backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET,
        generation: 1,
        service: SERVICE,
        deadline_ds: 0,
        drain_ds: 0,
        uid_hash: 0,
        weight: 1,
        pad: 0,
    }
}

/// What a process there comes to at each frontend: connected to whom, or refused.
fn connect(from: &NetNs) -> Vec<Result<SocketAddr, ErrorKind>> {
    [SocketAddr::from((FRONTEND4, 53)), SocketAddr::from((FRONTEND6, 53))]
        .map(|to| match Datagrams::connected(from, 0, to) {
            Ok(socket) => Ok(socket.peer().unwrap()),
            Err(error) => Err(error.kind()),
        })
        .to_vec()
}

fn count(programs: &LoadedPrograms, outcome: Outcome) -> u64 {
    programs.outcomes().unwrap()[outcome as usize]
}

fn to(addresses: Addresses) -> Vec<Result<SocketAddr, ErrorKind>> {
    addresses.both().map(|address| Ok(SocketAddr::new(address, 5353))).to_vec()
}

#[test]
fn a_host_process_passes_if_its_node_is_in_range() {
    let topology = Topology::new("ranges").unwrap();
    let node = topology.node().unwrap();
    let pod = node.pod("backend").unwrap();
    let (ranges, admitted) = (service_flags::SOURCE_RANGES, service_flags::NODE_ALLOWED);
    for (flags, passes) in [(0, true), (ranges, false), (ranges | admitted, true)] {
        let mut programs = LoadedPrograms::on_sockets(node.netns(), node.cgroup(), Whose::Host).unwrap();
        serve(&mut programs, flags, pod.addresses());
        let came_to = connect(node.netns());
        if passes {
            assert_eq!(came_to, to(pod.addresses()));
            assert_eq!(count(&programs, Outcome::DroppedSourceRange), 0);
            continue;
        }
        assert_eq!(came_to, [Err(ErrorKind::ConnectionRefused); 2]);
        assert_eq!(count(&programs, Outcome::DroppedSourceRange), 2);
        let counted: Vec<_> = programs.take_stats().unwrap().iter().map(|(key, n)| (key.id, key.outcome, *n)).collect();
        assert_eq!(counted, [(SERVICE, Outcome::DroppedSourceRange as u8, 2)], "counted for the service");
        // An unconnected socket is refused at each datagram.
        let socket = Datagrams::unconnected(node.netns(), 0, (FRONTEND4, 53).into()).unwrap();
        let error = socket.send_at((FRONTEND4, 53).into(), "hello").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(count(&programs, Outcome::DroppedSourceRange), 3);
    }
}

#[test]
fn a_pods_process_is_left_to_its_link_where_source_ranges_are() {
    let topology = Topology::new("podranges").unwrap();
    let node = topology.node().unwrap();
    let pod = node.pod("client").unwrap();
    let netns = pod.netns().clone().in_cgroup(node.cgroup());
    let untouched = vec![Ok(SocketAddr::from((FRONTEND4, 53))), Ok(SocketAddr::from((FRONTEND6, 53)))];
    let (ranges, admitted) = (service_flags::SOURCE_RANGES, service_flags::NODE_ALLOWED);
    for (flags, translated) in [(0, true), (ranges, false), (ranges | admitted, false)] {
        let mut programs = LoadedPrograms::on_sockets(node.netns(), node.cgroup(), Whose::All).unwrap();
        serve(&mut programs, flags, pod.addresses());
        let expected = if translated { to(pod.addresses()) } else { untouched.clone() };
        assert_eq!(connect(&netns), expected, "flags {flags}");
        assert_eq!(count(&programs, Outcome::DroppedSourceRange), 0);
        let host = if flags == ranges { vec![Err(ErrorKind::ConnectionRefused); 2] } else { to(pod.addresses()) };
        assert_eq!(connect(node.netns()), host, "the same programs hold the node by its flag");
    }
}
