//! Which endpoints a service port has, and which of them take new flows (as kube-proxy's `CategorizeEndpoints`).

mod pairs;
mod port_names;
mod problems;

use std::{cell::OnceCell, cmp::Reverse, collections::BTreeMap, net::SocketAddr};

use super::{EndpointProblem, Mark, Marks, Set, SortedMap, marks::PortMarks, node_context::NodeContext};
use lb_model::{Endpoint, Family, Protocol, ServiceOptions, ServicePort, Slice};
use pairs::{Entry, Pairs};

/// What the API says of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// Ready, or terminating in a service that publishes addresses that are not ready.
    Ready,
    NotReady,
    Terminating,
}

/// One endpoint of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "five answers that do not depend on each other")]
pub struct DesiredEndpoint {
    pub state: EndpointState,
    /// It takes new flows of the cluster set. Never, if no frontend uses that set.
    pub in_cluster_set: bool,
    /// It takes new flows of this node's set. Never, if no frontend uses that set.
    pub in_local_set: bool,
    /// It is on this node.
    pub local: bool,
    /// Its address is one of this node's, whatever is said of where it is: the node itself answers.
    pub own_address: bool,
    pub serving: bool,
    /// 0: no UID known.
    pub uid_hash: u32,
    /// Never 0.
    pub weight: u16,
    pub mark: Mark,
}

impl DesiredEndpoint {
    /// It takes new flows of this set.
    pub fn is_in(&self, set: Set) -> bool {
        match set {
            Set::Cluster => self.in_cluster_set,
            Set::Local => self.in_local_set,
        }
    }

    /// How well it may take new flows, the best first: one that is ready, one that is but is unhealthy, then those of use where
    /// none is ready (KEP-1669). `None`: not at all. Only the best that there are take any, so that unhealthy ones do if all are.
    fn rank(&self) -> Option<Rank> {
        let unhealthy = self.mark == Mark::Unhealthy;
        match self.state {
            _ if self.mark == Mark::Maintenance => None,
            EndpointState::Ready => Some(Rank { terminating: false, unhealthy }),
            EndpointState::Terminating if self.serving => Some(Rank { terminating: true, unhealthy }),
            EndpointState::Terminating | EndpointState::NotReady => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    terminating: bool,
    unhealthy: bool,
}

/// Which sets the frontends of one family use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    pub cluster: bool,
    pub local: bool,
}

impl Needs {
    pub fn add(&mut self, set: Set) {
        match set {
            Set::Cluster => self.cluster = true,
            Set::Local => self.local = true,
        }
    }

    fn any(self) -> bool {
        self.cluster || self.local
    }
}

/// The slices of a service, found by the ports that they serve.
pub(super) struct Listed<'a> {
    slices: Vec<&'a Slice>,
    by_port: BTreeMap<(&'a str, Protocol), Vec<(usize, u16)>>,
    /// Of each family, made when a port asks for it.
    census: [OnceCell<port_names::Census<'a>>; 2],
    /// Whether the first endpoint of any family is on this node.
    is_first_here: OnceCell<bool>,
}

impl<'a> Listed<'a> {
    pub fn new(slices: Vec<&'a Slice>) -> Self {
        let mut by_port: BTreeMap<(&str, Protocol), Vec<(usize, u16)>> = BTreeMap::new();
        for (index, slice) in slices.iter().enumerate() {
            for port in &slice.ports {
                by_port.entry((port.name.as_str(), port.protocol)).or_default().push((index, port.port));
            }
        }
        Self { slices, by_port, census: Default::default(), is_first_here: OnceCell::new() }
    }

    pub fn slices(&self) -> &[&'a Slice] {
        &self.slices
    }

    /// The endpoints of `port`, of the families whose sets are in need (first IPv4, then IPv6), and addresses that two entries have.
    pub fn of_port(
        &self,
        port: &ServicePort,
        needs: [Needs; 2],
        options: Option<&ServiceOptions>,
        context: &NodeContext,
        marks: &PortMarks<'_>,
    ) -> (SortedMap<SocketAddr, DesiredEndpoint>, Vec<EndpointProblem>) {
        let needs_of = |family| needs[usize::from(family == Family::V6)];
        let at = self.by_port.get(&(port.name.as_str(), port.protocol)).map_or(&[][..], Vec::as_slice);
        let mut found: Vec<Candidate<'_>> = Vec::new();
        for (index, number) in at {
            let slice = self.slices[*index];
            if needs_of(slice.family).any() {
                let listed = slice.endpoints.iter();
                found.extend(listed.map(|endpoint| Candidate::new(endpoint, slice, *number, options, context)));
            }
        }
        // One that is listed more than once: the first in the order counts, whatever the order of the slices.
        found.sort_unstable_by(|one, other| {
            one.address.cmp(&other.address).then_with(|| one.precedence().cmp(&other.precedence()))
        });
        let mut pairs = Pairs::default();
        found.dedup_by(|other, first| {
            let is_same = other.address == first.address;
            if is_same {
                pairs.add(first.entry(), other.entry());
            }
            is_same
        });
        for candidate in &mut found {
            candidate.endpoint.mark = marks.of(candidate.address);
        }
        let second = found.partition_point(|candidate| candidate.address.is_ipv4());
        let (v4, v6) = found.split_at_mut(second);
        for (family, needs) in [v4, v6].into_iter().zip(needs) {
            select(family, needs, context);
        }
        (found.into_iter().map(|candidate| (candidate.address, candidate.endpoint)).collect(), pairs.problems())
    }
}

/// An endpoint that is listed in a slice.
struct Candidate<'a> {
    address: SocketAddr,
    endpoint: DesiredEndpoint,
    listed: &'a Endpoint,
    slice: &'a Slice,
}

impl<'a> Candidate<'a> {
    fn new(
        listed: &'a Endpoint,
        slice: &'a Slice,
        port: u16,
        options: Option<&ServiceOptions>,
        context: &NodeContext,
    ) -> Self {
        let state = match (listed.ready, listed.terminating) {
            (true, _) => EndpointState::Ready,
            (false, true) => EndpointState::Terminating,
            (false, false) => EndpointState::NotReady,
        };
        let endpoint = DesiredEndpoint {
            state,
            in_cluster_set: false,
            in_local_set: false,
            local: context.is_here(listed),
            own_address: context.addresses.contains(&listed.address),
            serving: listed.serving,
            uid_hash: listed.uid_hash,
            weight: options.map_or(1, |options| options.weight(listed.address, listed.zone.as_deref())),
            mark: Mark::None,
        };
        Self { address: SocketAddr::new(listed.address, port), endpoint, listed, slice }
    }

    fn entry(&self) -> Entry<'a> {
        Entry { address: self.address, listed: self.listed, slice: self.slice, is_here: self.endpoint.local }
    }

    /// Among those of one address: a ready one first, then that of the newer slice, then the local one; then the pod that runs before the one that
    /// ends and whose address it has; then the best. Hints come last, so that equals are equal in all that matters.
    fn precedence(&self) -> impl Ord + '_ {
        let (endpoint, listed) = (self.endpoint, self.listed);
        let is_unready = endpoint.state != EndpointState::Ready;
        (
            (is_unready, Reverse(self.slice.created_s), Reverse(endpoint.local), listed.terminating, endpoint.state),
            (Reverse(endpoint.serving), Reverse(endpoint.uid_hash), listed.hint_nodes(), listed.hint_zones()),
            (&listed.zone, &self.slice.name),
        )
    }
}

/// Whom topology hints choose among the endpoints that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Everybody,
    Node,
    Zone,
}

/// Chooses the endpoints of one family that take new flows.
fn select(found: &mut [Candidate<'_>], needs: Needs, context: &NodeContext) {
    if needs.cluster {
        let best = best(found.iter().map(|c| c.endpoint));
        let any_ready = best.is_some_and(|rank| !rank.terminating);
        let topology = if any_ready { topology(found, best, context) } else { Topology::Everybody };
        for Candidate { endpoint, listed, .. } in found.iter_mut() {
            endpoint.in_cluster_set = best.is_some() && endpoint.rank() == best && is_meant(listed, topology, context);
        }
    }
    if needs.local {
        let best = best(found.iter().map(|c| c.endpoint).filter(|endpoint| endpoint.local));
        for Candidate { endpoint, .. } in found.iter_mut() {
            endpoint.in_local_set = endpoint.local && best.is_some() && endpoint.rank() == best;
        }
    }
}

/// Puts endpoints whose sets are known, but not why, into maintenance and out of it. Of the best, those take new flows that did before and
/// those that come back; if none of these is left, all. Where nothing changes, the sets stay.
pub(super) fn maintain(endpoints: &mut SortedMap<SocketAddr, DesiredEndpoint>, marks: &Marks) {
    let before = endpoints.clone();
    for (address, endpoint) in endpoints.iter_mut() {
        endpoint.mark = match endpoint.mark {
            _ if marks.maintains(*address) => Mark::Maintenance,
            Mark::Maintenance => Mark::None,
            mark @ (Mark::None | Mark::Unhealthy) => mark,
        };
    }
    if *endpoints == before {
        return;
    }
    for (family, set) in Family::ALL.into_iter().flat_map(|family| [(family, Set::Cluster), (family, Set::Local)]) {
        let may = |address: &SocketAddr, endpoint: &DesiredEndpoint| {
            Family::of(address.ip()) == family && (set == Set::Cluster || endpoint.local)
        };
        let ranks = endpoints.iter().filter(|(address, endpoint)| may(address, endpoint));
        let best = ranks.filter_map(|(_, endpoint)| endpoint.rank()).min();
        let is_best = |address: &SocketAddr, endpoint: &DesiredEndpoint| {
            may(address, endpoint) && best.is_some() && endpoint.rank() == best
        };
        let was_chosen = |address: &SocketAddr| {
            before.get(address).is_some_and(|was| was.is_in(set) || was.mark == Mark::Maintenance)
        };
        let any = endpoints.iter().any(|(address, endpoint)| is_best(address, endpoint) && was_chosen(address));
        for (address, endpoint) in endpoints.iter_mut() {
            if Family::of(address.ip()) == family {
                let is_chosen = is_best(address, endpoint) && (was_chosen(address) || !any);
                match set {
                    Set::Cluster => endpoint.in_cluster_set = is_chosen,
                    Set::Local => endpoint.in_local_set = is_chosen,
                }
            }
        }
    }
}

/// The best that there are.
fn best(endpoints: impl Iterator<Item = DesiredEndpoint>) -> Option<Rank> {
    endpoints.filter_map(|endpoint| endpoint.rank()).min()
}

/// Hints count if every endpoint that is ready has one, and one of them is meant for here: of nodes first, then of zones. One that
/// is kept from new flows counts as one that is not ready.
fn topology(found: &[Candidate<'_>], best: Option<Rank>, context: &NodeContext) -> Topology {
    let ready = || found.iter().filter(|c| c.endpoint.rank() == best).map(|c| c.listed);
    for topology in [Topology::Node, Topology::Zone] {
        let hinted = ready().filter(|endpoint| !hints(endpoint, topology).is_empty()).count();
        let complete = hinted == ready().count();
        if complete && ready().any(|endpoint| is_meant(endpoint, topology, context)) {
            return topology;
        }
    }
    Topology::Everybody
}

fn hints(endpoint: &Endpoint, topology: Topology) -> &[String] {
    match topology {
        Topology::Everybody => &[],
        Topology::Node => endpoint.hint_nodes(),
        Topology::Zone => endpoint.hint_zones(),
    }
}

fn is_meant(endpoint: &Endpoint, topology: Topology, context: &NodeContext) -> bool {
    let here = match topology {
        Topology::Everybody => return true,
        Topology::Node => &context.node_name,
        Topology::Zone => &context.zone,
    };
    here.as_ref().is_some_and(|here| hints(endpoint, topology).contains(here))
}

/// Which sets of one family have endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Filled {
    pub cluster: bool,
    pub local: bool,
    /// There is an endpoint that could serve, somewhere.
    pub usable: bool,
}

/// What the sets of a family came to.
pub(super) fn filled(endpoints: &SortedMap<SocketAddr, DesiredEndpoint>, family: Family) -> Filled {
    let mut filled = Filled::default();
    for (_, endpoint) in endpoints.iter().filter(|(address, _)| Family::of(address.ip()) == family) {
        filled.cluster |= endpoint.in_cluster_set;
        filled.local |= endpoint.in_local_set;
        filled.usable |= endpoint.rank().is_some();
    }
    filled
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
