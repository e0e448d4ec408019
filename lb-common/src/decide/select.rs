//! The first packet of a flow: look the service up, pick a slot, check that both belong together, write the flow.

use super::affinity::remembered;
use super::client::{Asker, Client, admits, serve_from};
use super::frontend::{asked, is_whole};
use super::node_port::serves;
use super::packet::{Hook, Now};
use super::pick::{Pick, Picked, Wish};
use super::search::{ANY_EVIDENCE, AS_ANY_NODE, BY_CLIENT, BY_TUPLE, PROBES, choose};
use super::step::Step;
use super::tables::Tables;
use super::verdict::Action;
use super::work::{Work, allocation};
use super::{dsr, limit, nat, outlier, share, vip};
use crate::abi::{FlowKey, Service, UDP, flow_flags, half_open_flags, second, service_flags};
use crate::limits::SERVICE_LOOKUPS;
use crate::outcome::Outcome;

/// The step for a packet of no connection: it goes to a backend of the service that it asks for.
#[inline(always)]
pub fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    let picked = pick_for_packet(tables, work, hook);
    if picked != Picked::NoService && work.packet.begins() && !work.is_chosen() && tables.hands_over() {
        work.verdict.settle(Action::Pass, Outcome::PassedHandOver);
        return Step::Decided;
    }
    let Work { packet, verdict, pick, .. } = &mut *work;
    if picked == Picked::NoService {
        return match packet.begins() {
            _ if vip::unserved(tables, work, hook) => Step::Decided,
            // Later segments collide with nothing.
            false => Step::Decided,
            true => Step::Direct,
        };
    }
    verdict.service = pick.service.id;
    match picked {
        Picked::Backend => return found(tables, work, hook),
        Picked::NotHere => verdict.drop(Outcome::DroppedNotHere),
        Picked::Martian => verdict.drop(Outcome::DroppedMartian),
        Picked::Denied => verdict.drop(Outcome::DroppedSourceRange),
        Picked::Limited => verdict.drop(Outcome::DroppedRateLimit),
        Picked::Empty if pick.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            verdict.drop(Outcome::DroppedNoLocalEndpoint);
        }
        Picked::Empty => verdict.refuse(packet, Outcome::RefusedNoEndpoint),
        Picked::Unasked => verdict.refuse(packet, Outcome::RefusedNoFlow),
        Picked::Torn | Picked::NoService => verdict.drop(Outcome::DroppedTorn),
    }
    // The verdict holds if there is no such connection.
    let may_be_known = matches!(picked, Picked::Denied | Picked::Empty | Picked::Unasked);
    if may_be_known && !packet.begins() { Step::MidStream } else { Step::Decided }
}

#[inline(always)]
fn pick_for_packet<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Picked {
    let begins = work.packet.begins();
    if work.is_chosen() {
        return dsr::arrived(tables, work, hook, begins);
    }
    // Most packets that come here are no service's, and the clock takes longer than the look-up: it is read to pick a backend only.
    let (wish, now_ns) = if !begins {
        (Wish::NONE, 0)
    } else if work.beginning == Outcome::Moved {
        (Wish::AGAIN, tables.now_ns())
    } else if work.beginning == Outcome::SecondHandshake {
        (Wish::SAFE, tables.now_ns())
    } else {
        (Wish::PROBE, tables.now_ns())
    };
    let now = Now::from_ns(now_ns);
    pick(tables, &work.packet.key, Asker::Packet(hook), 0, wish, now, &mut work.pick)
}

/// Looks a frontend up for this client and picks a backend of the set that serves it, consistent even while the agent replaces the
/// service.
///
/// Under client affinity it is the backend that the client had last (`netns`: see [`AffinityKey::netns`](crate::abi::AffinityKey::netns)), while that one takes new
/// flows; else one that the client's address and the period of the timeout name, so that the client's parallel first connections agree. Ejected and
/// unhealthy backends are avoided.
#[inline(always)]
pub fn pick<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    asker: Asker,
    netns: u32,
    wish: Wish,
    now: Now,
    pick: &mut Pick<N>,
) -> Picked {
    let frontend = asked(key);
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(&frontend, &mut pick.service) {
            return Picked::NoService;
        }
        if !is_whole(&frontend, &pick.service) {
            continue;
        }
        if !serves(&pick.service, asker) {
            return Picked::NoService;
        }
        let client = asker.client(tables, &key.src);
        if client == Client::Martian {
            return Picked::Martian;
        }
        if !admits(tables, &pick.service, key, asker) {
            return Picked::Denied;
        }
        serve_from(&mut pick.service, client);
        pick.client = client as u32;
        if pick.service.slot_count == 0 {
            return Picked::Empty;
        }
        if wish == Wish::NONE {
            return Picked::Unasked;
        }
        let is_limited = Client::is_outside(client as u32) && pick.service.rate != 0 && wish != Wish::AGAIN;
        if is_limited && limit::exceeds(tables, &pick.service, &key.src) {
            return Picked::Limited;
        }
        let is_shared = as_any_node(&pick.service, client);
        let by_tuple = client != Client::Near && key.protocol != UDP && tables.is_flood();
        let sticks = !is_shared && pick.service.affinity_timeout_s != 0;
        if sticks && remembered(tables, key, netns, now.ds, pick) {
            // Under a flood, later packets find it by the same two steps.
            let keeps_ejected =
                by_tuple || (matches!(asker, Asker::Packet(_)) && is_retried(&pick.service, key, client as u32));
            let (id, generation) = (pick.slot.backend, pick.slot.backend_generation);
            let is_avoided = match asker {
                Asker::Packet(_) => {
                    let client = outlier::client_of(key, &pick.service);
                    outlier::is_avoided(tables, id, generation, (client, key.protocol), now.s)
                }
                Asker::Process(_) if key.protocol == UDP => outlier::is_ejected(tables, id, generation),
                Asker::Process(_) => {
                    outlier::is_avoided(tables, id, generation, (outlier::ANY_CLIENT, key.protocol), now.s)
                }
            };
            if keeps_ejected || !is_avoided {
                return Picked::Backend;
            }
        }
        let mut how = match wish {
            _ if is_shared => AS_ANY_NODE,
            _ if by_tuple => AS_ANY_NODE | BY_TUPLE,
            Wish::PROBE | Wish::AGAIN => PROBES,
            _ => 0,
        };
        if sticks {
            how = how & !BY_TUPLE | BY_CLIENT;
        }
        // A datagram may be sent elsewhere later, and a query under way is no evidence.
        if matches!(asker, Asker::Process(_)) && key.protocol != UDP {
            how |= ANY_EVIDENCE;
        }
        if choose(tables, key, netns, how, now, pick) {
            return Picked::Backend;
        }
    }
    Picked::Torn
}

/// Whether another node may meet the flow's packets, and must lead them to the same backend.
#[inline(always)]
fn as_any_node(service: &Service, client: Client) -> bool {
    service.flags & service_flags::DSR != 0 && client != Client::Near
}

/// Whether a connection of this client leaves a backend that leaves it unanswered: its SYN is retried. Any other connection has no evidence
/// of its own. The entry of a client of another node does not say by which of the service's sets it is served.
#[inline(always)]
fn is_retried<const N: usize>(service: &Service, key: &FlowKey<N>, client: u32) -> bool {
    let is_hashed = service.flags & service_flags::DSR != 0;
    key.protocol != UDP
        && service.flags & service_flags::NO_RETRY == 0
        && (client == Client::Near as u32 || (client == Client::Outside as u32 && !is_hashed))
}

/// Makes the original entry of a new connection, whose backend is in `work.pick`: all but its tuple.
#[inline(always)]
pub(super) fn found<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let is_udp = work.packet.is_udp();
    work.connection.begin(&work.packet, now);
    if work.pick.client == Client::Outside as u32 {
        work.connection.original.flow.flags = flow_flags::EXTERNAL;
    }
    let by_tuple = hook.has(Hook::FROM_OUTSIDE) && !is_udp && tables.is_flood();
    // A SYN with data is never retried: two backends might process the data (RFC 7413). By tuple, a lost entry leads to the first backend again.
    if work.packet.payload == 0
        && !by_tuple
        && !work.is_chosen()
        && is_retried(&work.pick.service, &work.packet.key, work.pick.client)
    {
        work.connection.original.flags = half_open_flags::MOVES;
    }
    let is_hashed = work.pick.service.flags & service_flags::DSR != 0 && work.pick.client != Client::Near as u32;
    if work.pick.service.affinity_timeout_s != 0 && !is_hashed {
        work.connection.original.flags |= half_open_flags::AFFINITY;
    }
    nat::aim(work, hook);
    work.allocation = allocation::KEEP_PORT;
    if work.beginning == Outcome::SecondHandshake {
        if hook.has(Hook::FROM_OUTSIDE) && dsr::is_meant(work) {
            // The answers would not pass here.
            work.verdict.drop(Outcome::DroppedNoPort);
            return Step::Decided;
        }
        work.connection.original.flow.second = second::OWN;
        work.connection.original.flags &= !half_open_flags::MOVES;
        work.allocation = allocation::SECOND;
    } else if by_tuple {
        work.allocation |= allocation::BY_TUPLE;
        work.beginning = Outcome::SelectedByTuple;
    }
    if hook.has(Hook::FROM_OUTSIDE) && dsr::is_meant(work) {
        dsr::aim(work);
    } else if work.packet.opens()
        && share::is_exceeded(tables, &work.packet.key.src, work.connection.original.flow.flags)
    {
        work.verdict.refuse(&work.packet, Outcome::RefusedClientShare);
        return Step::Decided;
    } else if !nat::source(tables, work) {
        work.verdict.drop(Outcome::DroppedNoAddress);
        return Step::Decided;
    }
    Step::Allocate
}
