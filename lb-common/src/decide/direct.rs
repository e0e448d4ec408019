//! A client's own direct traffic to an address that also is a backend of one of its service flows.
//!
//! Both look the same to the backend, and a reply entry would rewrite the direct connection's replies. So the second comer
//! gets another source port (TCP), or the ownership of the replies (UDP).

use super::select::install;
use super::{Action, Now, Tables, Work, forget_owner, pair_key};
use crate::abi::{Flow, TCP, UDP, flow_flags, flow_state, tag};
use crate::outcome::Outcome;
use crate::state;

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    let key = &work.packet.key;
    let starts = key.protocol == UDP || (key.protocol == TCP && state::opens(work.packet.tcp_flags));
    if !starts {
        return;
    }
    work.pair_key = key.reversed();
    if tables.flow(&work.pair_key, &mut work.other).is_none() {
        return;
    }
    let holder = &work.other;
    if holder.flags & flow_flags::REPLY == 0 {
        return;
    }
    let now = Now::from_ns(tables.now_ns());
    work.owner = pair_key(&work.pair_key, holder);
    let protocol = work.owner.protocol;
    let timeout_s = tables.timeout_s(protocol, holder.state);
    let yields = state::yields(holder, timeout_s, now.s);
    if yields || protocol == UDP {
        tables.remove_flow(&work.pair_key);
        if yields {
            return forget_owner(tables, work);
        }
        let flow = &mut work.other;
        if let Some(entry) = tables.flow(&work.owner, flow)
            && pair_key(&work.owner, flow) == work.pair_key
        {
            tables.touch(entry, flow.tag, flow.seen_s, flow.state, flow.flags | flow_flags::REPLY_LOST);
        }
        return work.settle(Action::Pass, Outcome::AmbiguousUdp);
    }
    work.flow = Flow {
        tag: tag(&work.packet.key),
        backend: 0,
        seen_s: now.s,
        since_s: now.s,
        isn: 0,
        address: work.packet.key.dst,
        port: work.packet.key.dst_port,
        client_port: work.packet.key.src_port,
        generation: 0,
        state: flow_state::HALF_OPEN,
        flags: flow_flags::DIRECT,
    };
    match install(tables, work, false, true, now) {
        Ok(()) => work.rewrite(Action::ToBackend, Outcome::DirectTranslated, false),
        Err(outcome) => work.settle(Action::Drop, outcome),
    }
}
