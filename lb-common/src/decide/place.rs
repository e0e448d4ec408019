//! A new flow gets its entries: half-open ones, and a tuple of its own for the answers.

use super::entries::{forget_owner, leads_to, pair_of, same, set_pair_key};
use super::select::stick;
use super::{Action, Hook, NotInserted, Now, Tables, Work, fast, health, masquerade, schedule};
use crate::abi::{FlowKey, HalfOpen, TCP, flow_flags, half_open_flags, tag};
use crate::limits::{ADDRESS_ATTEMPTS, PORT_ATTEMPTS, SOCKET_ATTEMPTS};
use crate::outcome::Outcome;
use crate::{state, words};

/// What [`Work::placing`] says: for what a flow gets its entries, and which tuples will do.
pub(super) mod placing {
    /// The flow's first packet.
    pub(in super::super) const NEW: u32 = 1;
    /// The flow goes to another backend.
    pub(in super::super) const MOVED: u32 = 2;
    /// A direct connection that gives way.
    pub(in super::super) const DIRECT: u32 = 4;
    /// The client's own port, if it is free.
    pub(in super::super) const KEEP_PORT: u32 = 8;
    /// The backend sees an address of this node. (Where it is the client itself, that may be the service's, too.)
    pub(in super::super) const FROM_NODE: u32 = 16;
    /// A translated port is one that belongs to the tuple.
    pub(in super::super) const BY_TUPLE: u32 = 32;
}

/// Gives the flow in `work.half` its entries, and sends the packet to where it leads.
#[inline(always)]
pub(super) fn place<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let now = Now::from_ns(tables.now_ns());
    let masqueraded = work.half.flow.flags & flow_flags::MASQUERADED != 0;
    // Only the client's own link names its namespace, and only TCP has sockets that the kernel can be asked for.
    let sockets = hook.has(Hook::FROM_CLIENT) && work.packet.key.protocol == TCP && !masqueraded;
    if let Err(outcome) = write(tables, work, hook, sockets, now) {
        work.settle(Action::Drop, outcome);
        work.verdict.backend = work.half.flow.backend;
        return;
    }
    let mut outcome = Outcome::DirectTranslated;
    let mut route = hook.has(Hook::ROUTED);
    if work.placing & placing::DIRECT != 0 {
        route = false;
    } else {
        if work.placing & placing::MOVED != 0 {
            keep_left(tables, work);
            outcome = Outcome::Retried;
        } else {
            // No answer passes here of what goes whole to the backend's node.
            let is_tunnelled = work.half.flow.port == 0;
            if !is_tunnelled {
                health::begun(tables, work, now);
                tables.begun(now.s);
            }
            let own = work.half.flow.client_port == work.packet.key.src_port;
            outcome = match (own, work.pick.probes != 0) {
                _ if is_tunnelled => Outcome::Tunnelled,
                (_, true) => Outcome::Probed,
                _ if work.placing & placing::BY_TUPLE != 0 => work.beginning,
                _ if work.placing & placing::FROM_NODE != 0 => Outcome::Masqueraded,
                (false, _) => Outcome::PortTranslated,
                (true, _) => work.beginning,
            };
        }
        stick(tables, &work.pick, &work.packet.key, 0, now.ds);
    }
    words::copy(&work.half.flow, &mut work.flow);
    work.rewrite(Action::ToBackend, outcome, route);
}

/// Keeps the entry of the answers of the backend that the flow has left, so that a late answer is known as one.
#[inline(always)]
fn keep_left<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    // Another flow may have claimed the tuple since the entry was lost.
    let taken = tables.half_open(&work.left_key, &mut work.other_half)
        && !leads_to(&work.left_key, &work.other_half.flow, &work.packet.key);
    if !taken && !same(&work.left_key, &work.pair_key) {
        // Lost, a late answer passes untouched, and the client refuses it itself.
        let _ = tables.insert_half_open(&work.left_key, &work.left, true);
    }
}

/// Writes `work.half` and the entry of the other direction, under a translated source port if the client's own is taken or not
/// to be kept. `sockets`: what the client's own TCP sockets hold is taken, too.
#[inline(always)]
fn write<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    sockets: bool,
    now: Now,
) -> Result<(), Outcome> {
    set_pair_key(&work.packet.key, &work.half.flow, &mut work.pair_key);
    let link = fast::came_by(tables, &work.half.flow, hook);
    answer_half(work, link);
    let ports = tables.source_ports();
    let keeps = work.placing & placing::KEEP_PORT != 0
        && (work.placing & placing::FROM_NODE == 0 || ports.keeps(work.packet.key.src_port));
    let found = if sockets {
        find::<N, T, SOCKET_ATTEMPTS, true>(tables, work, keeps, now)
    } else {
        find::<N, T, PORT_ATTEMPTS, false>(tables, work, keeps, now)
    };
    match found {
        Reserved::Yes => enter(tables, work),
        Reserved::Taken => Err(Outcome::DroppedNoPort),
        Reserved::Full => Err(Outcome::DroppedTableFull),
    }
}

/// Claims the answers' tuple, at the client's own port if it is to be kept, else at one of the range, at each address that may stand in
/// for the client in turn. With `SOCKETS`, what the client's
/// own sockets hold is taken, too: it is dear to ask.
#[inline(always)]
fn find<const N: usize, T: Tables<N>, const ATTEMPTS: u32, const SOCKETS: bool>(
    tables: &mut T,
    work: &mut Work<N>,
    keeps: bool,
    now: Now,
) -> Reserved {
    let ports = tables.source_ports();
    let by_tuple = work.placing & placing::BY_TUPLE != 0;
    let start = if by_tuple { schedule::of_tuple(&work.packet.key) } else { tables.random() };
    // Only a client outside has several addresses here, and no sockets that can be asked for.
    let from_node = !SOCKETS && work.placing & placing::FROM_NODE != 0;
    let mut attempt = u32::from(!keeps);
    while attempt <= ATTEMPTS {
        if from_node && attempt > ADDRESS_ATTEMPTS && attempt % ADDRESS_ATTEMPTS == 1 {
            masquerade::next_source(tables, work, attempt / ADDRESS_ATTEMPTS);
        }
        if attempt != 0 {
            work.pair_key.dst_port = ports.pick(start.wrapping_add(attempt.wrapping_mul(0x9e37_79b1)));
            work.pair_half.flow.tag = tag(&work.pair_key);
        }
        attempt += 1;
        if SOCKETS && tables.direct_connection(&work.pair_key) {
            continue;
        }
        let reserved = tables.reserve(work, now.s);
        if reserved != Reserved::Taken {
            return reserved;
        }
    }
    Reserved::Taken
}

/// Writes the client's entry of a flow whose answers' tuple is claimed.
#[inline(always)]
fn enter<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> Result<(), Outcome> {
    work.half.flow.client_port = work.pair_key.dst_port;
    if tables.insert_half_open(&work.packet.key, &work.half, true).is_err() {
        tables.remove_half_open(&work.pair_key);
        return Err(Outcome::DroppedTableFull);
    }
    Ok(())
}

/// Points `work.half` at the backend in `work.pick`, from the client's own port.
#[inline(always)]
pub(super) fn aim<const N: usize>(work: &mut Work<N>, hook: Hook) {
    let (key, flow) = (&work.packet.key, &mut work.half.flow);
    flow.backend = work.pick.slot.backend;
    words::address(&work.pick.backend.address, &mut flow.address);
    flow.port = work.pick.backend.port;
    flow.generation = work.pick.backend.generation as u16;
    flow.client_port = key.src_port;
    masquerade::own_source(work, hook);
}

/// Makes `work.pair_half` the entry of the answers to `work.half`, with their link.
#[inline(always)]
pub(super) fn answer_half<const N: usize>(work: &mut Work<N>, link: u32) {
    words::clear(&mut work.pair_half);
    pair_of(&work.packet.key, &work.half.flow, &work.pair_key, link, &mut work.pair_half.flow);
    work.pair_half.flags = work.half.flags & (half_open_flags::ANSWERED | half_open_flags::RESUMED);
    work.pair_half.answers = work.half.answers;
}

/// What became of a claim.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A live flow holds the tuple.
    Taken = 0,
    Yes,
    /// The table has no room for the claim.
    Full,
}

impl Reserved {
    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Yes,
            2 => Self::Full,
            _ => Self::Taken,
        }
    }
}

/// Claims the answers' tuple `work.pair_key` for `work.pair_half`.
///
/// First the claim among the half-open flows, then a look at the answered ones: another flow's claim is to be seen in one of the two
/// at any time, as it is written there before it is removed here.
///
/// The programs have it as a function that is verified once and by itself ([`Tables::reserve`]).
#[inline(always)]
pub fn reserve<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now_s: u32) -> Reserved {
    let now = Now::from_ds(now_s.saturating_mul(10));
    match tables.insert_half_open(&work.pair_key, &work.pair_half, false) {
        Ok(()) => {}
        Err(NotInserted::Full) => return Reserved::Full,
        Err(NotInserted::Exists) => {
            if !half_yields(tables, work, now) {
                return Reserved::Taken;
            }
            if tables.insert_half_open(&work.pair_key, &work.pair_half, true).is_err() {
                return Reserved::Full;
            }
        }
    }
    if open_yields(tables, work, now) {
        return Reserved::Yes;
    }
    tables.remove_half_open(&work.pair_key);
    Reserved::Taken
}

/// Whether the half-open flow that holds the tuple is this client's own attempt before, or one that is over.
#[inline(always)]
fn half_yields<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    if !tables.half_open(&work.pair_key, &mut work.other_half) {
        return false;
    }
    let holder = &work.other_half.flow;
    if holder.flags & flow_flags::REPLY == 0 {
        return false;
    }
    set_pair_key(&work.pair_key, holder, &mut work.owner);
    if same(&work.owner, &work.packet.key) {
        return true;
    }
    let timeout_s = tables.timeout_s(work.owner.protocol, holder.state);
    if !state::yields(holder, timeout_s, now.s) {
        return false;
    }
    forget_half_owner(tables, &work.owner, &work.pair_key, &mut work.other_half);
    true
}

/// Whether no answered flow holds the tuple: none at all, this client's own one before, or one that is over.
#[inline(always)]
fn open_yields<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now: Now) -> bool {
    if tables.flow(&work.pair_key, &mut work.other).is_none() {
        return true;
    }
    let holder = &work.other;
    if holder.flags & flow_flags::REPLY == 0 {
        return false;
    }
    set_pair_key(&work.pair_key, holder, &mut work.owner);
    if !same(&work.owner, &work.packet.key) {
        let timeout_s = tables.timeout_s(work.owner.protocol, holder.state);
        if !state::yields(holder, timeout_s, now.s) {
            return false;
        }
        forget_owner(tables, work);
    }
    tables.remove_flow(&work.pair_key);
    true
}

/// Removes the client's half-open entry, under `owner`, of a flow whose reply entry stood under `reply`, if it still is that flow's.
#[inline(always)]
pub(super) fn forget_half_owner<const N: usize, T: Tables<N>>(
    tables: &mut T,
    owner: &FlowKey<N>,
    reply: &FlowKey<N>,
    found: &mut HalfOpen<N>,
) {
    if tables.half_open(owner, found) && leads_to(owner, &found.flow, reply) {
        tables.remove_half_open(owner);
    }
}
