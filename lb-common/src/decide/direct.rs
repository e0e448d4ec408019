//! A client's own direct traffic to an address that also is a backend of one of its service flows.
//!
//! Both look the same to the backend, and a reply entry would rewrite the direct connection's replies. So the second comer
//! gets another source port (TCP), or the ownership of the replies (UDP).

use super::select::install;
use super::{Action, Now, Packet, Tables, Verdict, pair_key};
use crate::abi::{Flow, FlowKey, TCP, UDP, flow_flags, flow_state, tag};
use crate::outcome::Outcome;
use crate::state;

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(tables: &mut T, packet: &Packet<N>) -> Verdict<N> {
    let key = &packet.key;
    let starts = key.protocol == UDP || (key.protocol == TCP && state::opens(packet.tcp_flags));
    if !starts {
        return Verdict::pass();
    }
    let answer = FlowKey {
        src: key.dst,
        dst: key.src,
        src_port: key.dst_port,
        dst_port: key.src_port,
        protocol: key.protocol,
        pad: [0; 3],
    };
    let Some((_, holder)) = tables.flow(&answer) else { return Verdict::pass() };
    if holder.flags & flow_flags::REPLY == 0 || holder.flags & flow_flags::DIRECT != 0 {
        return Verdict::pass();
    }
    let now = Now::from_ns(tables.now_ns());
    let owner = pair_key(&answer, &holder);
    if state::expired(&holder, key.protocol, now.s) {
        tables.remove_flow(&answer);
        tables.remove_flow(&owner);
        return Verdict::pass();
    }
    if key.protocol == UDP {
        tables.remove_flow(&answer);
        if let Some((entry, flow)) = tables.flow(&owner) {
            tables.touch(entry, flow.tag, flow.seen_s, flow.state, flow.flags | flow_flags::REPLY_LOST);
        }
        return Verdict::bare(Action::Pass, Outcome::AmbiguousUdp);
    }
    let flow = Flow {
        tag: tag(key),
        backend: 0,
        seen_s: now.s,
        address: key.dst,
        port: key.dst_port,
        client_port: key.src_port,
        generation: 0,
        state: flow_state::HALF_OPEN,
        flags: flow_flags::DIRECT,
    };
    match install(tables, key, flow, true, now) {
        Ok(client_port) => Verdict {
            address: key.dst,
            port: key.dst_port,
            client_port,
            ..Verdict::bare(Action::ToBackend, Outcome::DirectTranslated)
        },
        Err(outcome) => Verdict::bare(Action::Drop, outcome),
    }
}
