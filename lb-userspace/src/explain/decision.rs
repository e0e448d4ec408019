//! The decision of the hook's program: of a packet, or of a socket call.

use lb_common::abi::{FlowKey, service_flags};
use lb_common::decide::{Action, Asker, Now, Packet, Pick, Picked, Wish, is_this_node, is_unserved, pick};
use lb_common::map;
use lb_common::outcome::Outcome;

use super::overlay::Overlay;
use super::question::Seen;
use super::stored::{DecisionContext, Stored};
use super::trace::Trace;

/// What the program would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision<const N: usize> {
    pub action: Action,
    pub outcome: Outcome,
    /// Where the packet goes: the backend, or the client of an answer. Zeroes: nowhere.
    pub address: [u8; N],
    pub port: u16,
    /// Its other end afterwards.
    pub client: [u8; N],
    pub client_port: u16,
    pub masquerade: bool,
    /// Not 0: it takes the fast path by this link ([`lb_common::abi::flow_link`]).
    pub link: u32,
    /// Service port id; 0: none.
    pub service: u32,
    /// Backend id; 0: none.
    pub backend: u32,
    pub trace: Trace,
}

/// Runs the decision of the program.
pub fn run<const N: usize, S: Stored>(
    stored: &S,
    settings: DecisionContext,
    seen: Seen,
    packet: Packet<N>,
) -> Decision<N> {
    if seen == Seen::Socket {
        return socket(stored, settings, packet.key);
    }
    let (verdict, trace) = super::decide(stored, settings, seen.hook(), packet);
    Decision {
        action: verdict.action,
        outcome: verdict.outcome,
        address: verdict.address,
        port: verdict.port,
        client: verdict.client,
        client_port: verdict.client_port,
        masquerade: verdict.masquerade,
        link: verdict.link,
        service: verdict.service,
        backend: verdict.backend,
        trace,
    }
}

/// As the socket programs decide over a connect, or the first datagram of a socket.
fn socket<const N: usize, S: Stored>(stored: &S, settings: DecisionContext, asked: FlowKey<N>) -> Decision<N> {
    let mut tables = Overlay::new(stored, settings);
    let mut found = Pick::NONE;
    let dst = if is_this_node(&asked.dst) { [0; N] } else { asked.dst };
    let key = FlowKey { src: [0; N], src_port: 0, dst, ..asked };
    let now = Now::from_ns(settings.now_ns);
    let process = Asker::Process(service_flags::NODE_ALLOWED);
    let is_given = stored.get::<map::Adoption>(&0) == Some(lb_common::limits::HAND_OVER);
    let picked =
        if is_given { Picked::NoService } else { pick(&mut tables, &key, process, 0, Wish::SAFE, now, &mut found) };
    let (action, outcome) = match picked {
        Picked::Backend => (Action::ToBackend, Outcome::SocketConnected),
        Picked::Denied => (Action::Refuse, Outcome::DroppedSourceRange),
        Picked::Torn => (Action::Drop, Outcome::DroppedTorn),
        Picked::Empty if found.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            (Action::Drop, Outcome::DroppedNoLocalEndpoint)
        }
        Picked::Empty => (Action::Refuse, Outcome::SocketRefused),
        Picked::NoService if !is_given && is_unserved(&mut tables, &asked.dst) => {
            (Action::Refuse, Outcome::RefusedUnserved)
        }
        Picked::NoService | Picked::Martian | Picked::NotHere | Picked::Unasked | Picked::Limited => {
            (Action::Pass, Outcome::Passed)
        }
    };
    let chosen = picked == Picked::Backend;
    Decision {
        action,
        outcome,
        address: if chosen { found.backend.address } else { [0; N] },
        port: if chosen { found.backend.port } else { 0 },
        client: asked.src,
        client_port: asked.src_port,
        masquerade: false,
        link: 0,
        service: if picked == Picked::NoService { 0 } else { found.service.id },
        backend: if chosen { found.slot.backend } else { 0 },
        trace: tables.trace,
    }
}
