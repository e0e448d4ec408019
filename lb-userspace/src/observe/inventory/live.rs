//! Connections that go on, each once, by what a change may take from them: their frontend and their backend.

use std::net::SocketAddr;

use lb_common::abi::{Flow, FlowKey, flow_state, socket_direction};
use lb_common::state::Timeouts;

use super::{Contents, FamilyContents, half_open, ip, is_adopted, living};
use lb_model::Monotonic;

/// A backend as flows know it: flows keep the low 16 bits of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackendRef {
    pub is_v6: bool,
    pub id: u32,
    pub generation: u16,
}

/// A connection through the packet programs, or a host socket that was translated at connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub frontend: SocketAddr,
    /// The number in the IP header.
    pub protocol: u8,
    pub backend: BackendRef,
    pub is_socket: bool,
}

/// Shows each connection that goes on: not those that are closing or evicted, nor what the host's NAT translates.
pub fn each_live(contents: &Contents, now: Monotonic, mut look: impl FnMut(&Live)) {
    let timeouts = Timeouts::noted(&contents.settings);
    each_of_family(&contents.v4, &timeouts, now, &mut look);
    each_of_family(&contents.v6, &timeouts, now, &mut look);
}

fn each_of_family<const N: usize>(
    family: &FamilyContents<N>,
    timeouts: &Timeouts,
    now: Monotonic,
    look: &mut impl FnMut(&Live),
) {
    let is_v6 = N == lb_common::abi::V6;
    let flow = |key: &FlowKey<N>, flow: &Flow<N>| {
        let is_over = matches!(flow.state, flow_state::CLOSING | flow_state::EVICTED) || is_adopted(flow);
        (flow.backend != 0 && !is_over).then(|| Live {
            frontend: SocketAddr::new(ip(key.dst), key.dst_port),
            protocol: key.protocol,
            backend: BackendRef { is_v6, id: flow.backend, generation: flow.generation },
            is_socket: false,
        })
    };
    let answered = living(family.flows.iter(), timeouts, now).filter_map(|(key, entry)| flow(key, entry));
    let others = half_open(family, timeouts, now).filter_map(|(key, entry)| flow(key, &entry.flow));
    // Each translated socket has one entry for its answers.
    let replies = family.sockets.iter().filter(|(key, _)| key.direction == socket_direction::REPLY);
    let sockets = replies.map(|(key, peer)| Live {
        frontend: SocketAddr::new(ip(peer.address), peer.port),
        protocol: key.protocol,
        backend: BackendRef { is_v6, id: peer.backend, generation: super::low_bits(peer.backend_generation) },
        is_socket: true,
    });
    answered.chain(others).chain(sockets).for_each(|live| look(&live));
}
