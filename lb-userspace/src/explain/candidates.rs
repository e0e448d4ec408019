//! The backends of the service, and why each of them is chosen or not.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use lb_common::abi::{
    Backend, BackendState, FlowKey, Health, Scheduler, Service, UDP, backend_flags, backend_state, client_tag,
    scheduler, service_flags,
};
use lb_common::decide::Now;
use lb_common::limits::{EVIDENCE_S, PROBE_INTERVAL_S, UDP_ANSWER_S};
use lb_common::map;
use lb_common::state::takes_flows;

use super::decision::Decision;
use super::explanation::CandidateView;
use super::reported::NO_ENDPOINT;
use super::stored::Stored;
use crate::observe::inventory::{ip, state_name};

/// How a backend is chosen among those that are eligible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// No backend is chosen: an entry decides, or nothing does.
    Nothing,
    /// The connection has one.
    Connection,
    /// The client's affinity names one.
    Affinity,
    /// Under client affinity nothing is stored of the client: its hash names one, another one in each period of the timeout.
    Client,
    /// The scheduler names the same one for the next packet.
    Scheduler,
    /// Chance names one: each slot is as likely as another.
    Chance,
    /// Of two that chance names, the one with fewer connections.
    Load,
}

/// The set of slots that serves the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    pub base: u32,
    pub count: u32,
    /// Endpoints of this node alone.
    pub is_local: bool,
}

/// A new connection that asks for a backend.
pub struct NewConnection<'a, const N: usize, S> {
    pub stored: &'a S,
    pub key: FlowKey<N>,
    pub service: Service,
    pub set: Set,
    pub now: Now,
    pub is_socket: bool,
    /// A pod or process of this node.
    pub is_local: bool,
    /// Why a backend drains.
    pub draining: &'a str,
}

/// A backend, and whether a new connection may go there.
struct Judged<const N: usize> {
    id: u32,
    backend: Backend<N>,
    slots: u32,
    obstacle: Obstacle,
}

/// What keeps new connections of a client from a backend.
enum Obstacle {
    None,
    /// They avoid it, while another one is there.
    Avoided(String),
    /// They never go there.
    Closed(String),
}

impl Obstacle {
    const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    const fn is_closed(&self) -> bool {
        matches!(self, Self::Closed(_))
    }
}

/// The backends, and what is left to chance among them.
#[derive(Debug, Default)]
pub struct Candidates {
    pub views: Vec<CandidateView>,
    /// How many of them may be chosen.
    pub eligible: usize,
    /// Chance decides: the same packet may meet another backend, or none.
    pub is_open: bool,
}

/// Every backend of the service that is not gone.
pub fn list<const N: usize, S: Stored>(asked: &NewConnection<'_, N, S>, by: By, decision: &Decision<N>) -> Candidates {
    let mut slots: HashMap<(u32, u32), u32> = HashMap::new();
    for position in 0..asked.set.count {
        let found = asked.stored.get::<map::Slots>(&asked.set.base.wrapping_add(position));
        let fits = |slot: &lb_common::abi::Slot| {
            slot.service == asked.service.id && slot.generation == asked.service.generation
        };
        if let Some(slot) = found.filter(fits) {
            *slots.entry((slot.backend, slot.backend_generation)).or_default() += 1;
        }
    }
    let mut found = asked.stored.all::<map::Backends<N>>();
    found.retain(|(_, backend)| {
        backend.service == asked.service.id && !matches!(backend.state, backend_state::FREE | backend_state::GONE)
    });
    let listed = found.iter().filter(|(_, backend)| backend.state != backend_state::DRAINING);
    let listed: HashSet<[u8; N]> = listed.map(|(_, backend)| backend.address).collect();
    let judged: Vec<Judged<N>> = found
        .into_iter()
        .map(|(id, backend)| {
            let slots = slots.get(&(id, backend.generation)).copied().unwrap_or_default();
            // One whose address has another port number now is in a slice.
            let draining = if listed.contains(&backend.address) { NO_ENDPOINT } else { asked.draining };
            Judged { id, backend, slots, obstacle: obstacle(asked, id, &backend, slots, draining) }
        })
        .collect();
    let pool = Pool::of(&judged);
    let is_by_chance = matches!(by, By::Chance | By::Load) || decision.trace.is_by_chance::<map::Slots>();
    let is_open = is_by_chance && !pool.is_sure(asked.set.count);
    let views = judged.into_iter().map(|one| view(asked, one, by, decision, &pool, is_open)).collect();
    Candidates { views, eligible: pool.backends, is_open }
}

/// Those that may be chosen: the ones without an obstacle, or, where each has one, those that are avoided.
struct Pool {
    avoided: bool,
    backends: usize,
    slots: u32,
}

impl Pool {
    fn of<const N: usize>(judged: &[Judged<N>]) -> Self {
        let avoided = judged.iter().all(|one| !one.obstacle.is_none());
        let mut pool = Self { avoided, backends: 0, slots: 0 };
        let members: Vec<u32> = judged.iter().filter(|one| pool.holds(&one.obstacle)).map(|one| one.slots).collect();
        (pool.backends, pool.slots) = (members.len(), members.iter().sum());
        pool
    }

    /// Whether every search ends at the same backend: each slot leads there. A backend that is avoided may be probed, and slots that are behind
    /// may be met.
    const fn is_sure(&self, count: u32) -> bool {
        self.backends == 1 && self.slots == count
    }

    const fn holds(&self, obstacle: &Obstacle) -> bool {
        obstacle.is_none() || (self.avoided && !obstacle.is_closed())
    }
}

fn view<const N: usize, S: Stored>(
    asked: &NewConnection<'_, N, S>,
    one: Judged<N>,
    by: By,
    decision: &Decision<N>,
    pool: &Pool,
    is_open: bool,
) -> CandidateView {
    let is_eligible = pool.holds(&one.obstacle);
    let is_even = asked.service.scheduler != scheduler::LEAST_CONNECTIONS;
    let is_named = decision.backend == one.id && by != By::Nothing;
    let chosen = is_named && !is_open;
    let chance = (is_open && is_even && is_eligible).then(|| f64::from(one.slots) / f64::from(pool.slots.max(1)));
    let last_resort = !is_eligible && !one.obstacle.is_closed();
    let reason = match one.obstacle {
        Obstacle::Closed(why_closed) if chosen => format!("{why_closed}; {}", why(by, asked.service.scheduler)),
        Obstacle::Closed(why_closed) => why_closed,
        Obstacle::Avoided(why_avoided) if is_eligible && by != By::Nothing => {
            format!("{why_avoided}; may be chosen, as every other one is avoided, too")
        }
        Obstacle::Avoided(why_avoided) => why_avoided,
        Obstacle::None if chosen => why(by, asked.service.scheduler).to_owned(),
        Obstacle::None if is_open => "may be chosen".to_owned(),
        Obstacle::None => why_not(by, asked.service.scheduler).to_owned(),
    };
    CandidateView {
        address: SocketAddr::new(ip(one.backend.address), one.backend.port),
        id: one.id,
        state: state_name(one.backend.state),
        local: one.backend.flags & backend_flags::LOCAL != 0,
        slots: one.slots,
        eligible: is_eligible,
        last_resort,
        chosen,
        chance,
        reason,
    }
}

/// Why the one that is chosen is.
const fn why(by: By, how: u8) -> &'static str {
    match by {
        By::Connection => "the connection's backend",
        By::Affinity => "the client's affinity names it",
        By::Client => "the client's hash names it in this period of the affinity's timeout",
        By::Nothing | By::Scheduler | By::Chance | By::Load => match Scheduler::from_number(how) {
            Some(Scheduler::RoundRobin | Scheduler::Weighted) => "the next slot in turn",
            Some(Scheduler::Maglev) => "the tuple's slot in the Maglev table",
            Some(Scheduler::SourceHash) => "the slot of the client's address",
            Some(Scheduler::Random | Scheduler::LeastConnections) | None => "the only one that may be chosen",
        },
    }
}

/// Why one that may be chosen is not.
const fn why_not(by: By, how: u8) -> &'static str {
    match by {
        By::Nothing => "takes new connections",
        By::Connection => "takes new connections; this one keeps its backend",
        By::Affinity => "the client's affinity names another one",
        By::Client => "the client's hash names another one in this period of the affinity's timeout",
        By::Scheduler | By::Chance | By::Load => match Scheduler::from_number(how) {
            Some(Scheduler::RoundRobin | Scheduler::Weighted) => "not its turn",
            Some(Scheduler::Maglev) => "not in the tuple's slot of the Maglev table",
            Some(Scheduler::SourceHash) => "not in the slot of the client's address",
            Some(Scheduler::Random | Scheduler::LeastConnections) | None => "the client's hash names another one",
        },
    }
}

/// What keeps new connections of this client away.
fn obstacle<const N: usize, S: Stored>(
    asked: &NewConnection<'_, N, S>,
    id: u32,
    backend: &Backend<N>,
    slots: u32,
    draining: &str,
) -> Obstacle {
    const UNHEALTHY: &str = "unhealthy: its active checks fail";
    let is_unhealthy = backend.flags & backend_flags::UNHEALTHY != 0;
    if let Some(state) = of_state(backend, slots, draining) {
        return Obstacle::Closed(state.to_owned());
    }
    if slots == 0 {
        let is_local = backend.flags & backend_flags::LOCAL != 0;
        let why = if is_unhealthy {
            UNHEALTHY
        } else if asked.set.is_local && !is_local {
            "not on this node, and the traffic policy is Local"
        } else {
            "not in the set that serves this client: topology hints name other zones, or the tables are behind"
        };
        return Obstacle::Closed(why.to_owned());
    }
    if !takes_flows(backend, asked.now.ds) {
        return Obstacle::Closed("takes no new connections any more; its slots are not written anew yet".to_owned());
    }
    // What this node has seen counts for nothing where every node must choose alike.
    if asked.service.flags & service_flags::DSR != 0 && !asked.is_local {
        return Obstacle::None;
    }
    if is_unhealthy {
        return Obstacle::Avoided(UNHEALTHY.to_owned());
    }
    let health = asked.stored.get::<map::Health<N>>(&id).filter(|health| health.generation == backend.generation);
    health.and_then(|health| of_health(asked, &health)).map_or(Obstacle::None, Obstacle::Avoided)
}

/// The state, where it is the reason.
const fn of_state<'a, const N: usize>(backend: &Backend<N>, slots: u32, draining: &'a str) -> Option<&'a str> {
    // Slots decide; a state without slots is their reason.
    if slots != 0 {
        return None;
    }
    match BackendState::from_number(backend.state) {
        Some(BackendState::Unready) => Some("unready"),
        Some(BackendState::Terminating) => Some("terminating"),
        Some(BackendState::Draining) => Some(draining),
        Some(BackendState::Maintenance) => Some("in maintenance, by hand"),
        Some(BackendState::Free | BackendState::Active | BackendState::Gone) | None => None,
    }
}

fn of_health<const N: usize, S: Stored>(asked: &NewConnection<'_, N, S>, health: &Health) -> Option<String> {
    let now_s = asked.now.s;
    if health.ejected_s != 0 {
        // Of any width: a test builds the agent with wider fields.
        let last_s = u64::from(health.probe_s).max(u64::from(health.ejected_s));
        let left_s = u64::from(PROBE_INTERVAL_S).saturating_sub(u64::from(now_s).saturating_sub(last_s));
        let since_s = now_s.saturating_sub(health.ejected_s);
        // A socket call probes nobody.
        return match left_s {
            0 if !asked.is_socket => None,
            0 => Some(format!("ejected {since_s} s ago: connections to it were left unanswered or refused")),
            _ => Some(format!("ejected {since_s} s ago: the next connection probes it in {left_s} s")),
        };
    }
    let client = client_tag(&asked.key.src, asked.service.id, 0);
    let age_s = now_s.saturating_sub(health.evidence_s);
    let counts = age_s <= EVIDENCE_S && (asked.key.protocol != UDP || age_s >= UDP_ANSWER_S);
    let is_own = health.evidence_client == client && health.evidence_client != 0;
    if is_own && counts {
        return Some("left a connection of this client unanswered, or refused it, lately".to_owned());
    }
    // Nobody moves a process's connect: it heeds everybody's evidence.
    let is_heeded = asked.is_socket && asked.key.protocol != UDP && health.evidence_client != 0;
    (is_heeded && counts).then(|| "left a connection unanswered, or refused it, lately".to_owned())
}
