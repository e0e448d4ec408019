//! The networks of pods, nodes and services, and the address of this node that masquerade uses. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use ipnet::IpNet;
use lb_common::{
    abi::{MASQUERADE_ADDRESSES, V4, V6, network_flags},
    service_cidrs::{Cover, FAMILIES, index},
};

use super::{
    net::{Candidate, Standing},
    settings::DatapathSettings,
};
use lb_model::Family;

/// Key of `masquerade4` and `masquerade6` for links that have none of their own.
pub(super) const ANY_LINK: u32 = 0;

/// What the rest of the agent knows of the cluster's network, and the links do not show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Networks of the pods that the Node object names; `None`: not known yet.
    pub pods: Option<BTreeSet<IpNet>>,
    /// The node's own addresses as the Node object has them.
    pub primary: BTreeSet<IpAddr>,
    /// Addresses of the other nodes as their objects have them, where they matter; `None`: not known yet.
    pub peers: Option<Arc<BTreeSet<IpAddr>>>,
    /// Service CIDRs that the source names; `None`: not known yet.
    pub service_cidrs: Option<Arc<BTreeSet<IpNet>>>,
    /// Addresses of this node that services are published at: they may move to another node.
    pub published: BTreeSet<IpAddr>,
    /// Families in which something is published for external clients.
    pub families: BTreeSet<Family>,
    /// Whether something of that has direct server return.
    pub is_direct: bool,
}

/// What both pairs of tables should hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub networks: BTreeMap<IpNet, u32>,
    /// By link: the first address, and those to go on to.
    pub masquerade4: BTreeMap<u32, Vec<Ipv4Addr>>,
    pub masquerade6: BTreeMap<u32, Vec<Ipv6Addr>>,
}

/// `settings`: the networks that they name add to those of the surroundings, and where addresses that stand in for clients are taken from,
/// all of a link; empty: anywhere, one of each link. `held`: what is in the tables, of which the networks of pods, the other nodes and
/// services, and the addresses that stand in, stay while nothing else is known.
pub(super) fn wanted(
    candidates: &[Candidate],
    own: &BTreeSet<IpAddr>,
    settings: &DatapathSettings,
    surroundings: &Surroundings,
    held: &Wanted,
) -> Wanted {
    let mut wanted = Wanted::default();
    let kept =
        |flag: u32| held.networks.iter().filter(move |(_, flags)| **flags & flag != 0).map(|(network, _)| *network);
    let known = surroundings.pods.as_ref();
    let pods: Vec<IpNet> =
        known.map_or_else(|| kept(network_flags::PODS).collect(), |pods| pods.iter().copied().collect());
    let pods = pods.iter().chain(&settings.cluster_cidrs).map(|network| (*network, network_flags::PODS));
    let known = surroundings.peers.as_ref();
    let others: Vec<IpNet> = known.map_or_else(
        || kept(network_flags::PEER).collect(),
        |others| others.iter().map(|address| IpNet::from(*address)).collect(),
    );
    let peers = others.iter().chain(&settings.dsr_peers).map(|network| (*network, network_flags::PEER));
    let known = surroundings.service_cidrs.as_ref();
    let services: Vec<IpNet> =
        known.map_or_else(|| kept(network_flags::SERVICES).collect(), |cidrs| cidrs.iter().copied().collect());
    let services = services.iter().chain(&settings.service_cidrs).map(|network| (*network, network_flags::SERVICES));
    let own = own.iter().map(|address| (IpNet::from(*address), network_flags::NODE));
    for (network, flag) in pods.chain(peers).chain(services).chain(own) {
        *wanted.networks.entry(network.trunc()).or_default() |= flag;
    }
    inherit(&mut wanted.networks);

    let allowed = &settings.snat_addresses;
    let is_allowed =
        |found: &&Candidate| allowed.is_empty() || allowed.iter().any(|network| network.contains(&found.address));
    let most = if allowed.is_empty() { 1 } else { MASQUERADE_ADDRESSES };
    let allowed: Vec<&Candidate> = candidates.iter().filter(is_allowed).collect();
    for is_v4 in [true, false] {
        let family: Vec<&Candidate> =
            allowed.iter().copied().filter(|found| found.address.is_ipv4() == is_v4).collect();
        let own = Own { surroundings, held };
        for (ifindex, addresses) in by_link(&family, &own, most) {
            for address in addresses {
                match address {
                    IpAddr::V4(v4) => wanted.masquerade4.entry(ifindex).or_default().push(v4),
                    IpAddr::V6(v6) => wanted.masquerade6.entry(ifindex).or_default().push(v6),
                }
            }
        }
    }
    wanted
}

/// The longest prefix alone is looked at: it says what those around it say, too. But addresses of pods and nodes within a service CIDR are
/// theirs, not services'.
fn inherit(networks: &mut BTreeMap<IpNet, u32>) {
    // By address and then by length: what is around a network comes before it, and after all that does not hold its address.
    let mut around: Vec<(IpNet, u32)> = Vec::new();
    for (network, flags) in networks {
        while around.last().is_some_and(|(last, _)| !last.contains(network)) {
            around.pop();
        }
        *flags |= around.last().map_or(0, |(_, flags)| *flags & !network_flags::SERVICES);
        around.push((*network, *flags));
    }
}

/// What rules addresses out of the service CIDRs, of IPv4 and of IPv6.
pub(super) fn covers(networks: &BTreeMap<IpNet, u32>) -> [Cover; FAMILIES] {
    let cidrs =
        || networks.iter().filter(|(_, flags)| **flags & network_flags::SERVICES != 0).map(|(network, _)| network);
    let v4 = cidrs().filter_map(|network| match network {
        IpNet::V4(v4) => Some((v4.network().octets(), v4.prefix_len().into())),
        IpNet::V6(_) => None,
    });
    let v6 = cidrs().filter_map(|network| match network {
        IpNet::V4(_) => None,
        IpNet::V6(v6) => Some((v6.network().octets(), v6.prefix_len().into())),
    });
    let mut covers = [Cover::default(); FAMILIES];
    covers[index::<V4>() as usize] = Cover::of(v4);
    covers[index::<V6>() as usize] = Cover::of(v6);
    covers
}

/// Which of the node's addresses are its own before others.
struct Own<'a> {
    surroundings: &'a Surroundings,
    held: &'a Wanted,
}

impl Own<'_> {
    /// Until the Node is known, as after a restart with the API away, the address that stands in stays: connections of clients live by it.
    fn is_primary(&self, ifindex: u32, address: IpAddr) -> bool {
        if self.surroundings.pods.is_some() || !self.surroundings.primary.is_empty() {
            return self.surroundings.primary.contains(&address);
        }
        let first = match address {
            IpAddr::V4(_) => first(&self.held.masquerade4, ifindex),
            IpAddr::V6(_) => first(&self.held.masquerade6, ifindex),
        };
        first == Some(address)
    }
}

fn first<A: Copy + Into<IpAddr>>(held: &BTreeMap<u32, Vec<A>>, ifindex: u32) -> Option<IpAddr> {
    held.get(&ifindex)?.first().map(|address| (*address).into())
}

/// The addresses of each link that has some, so many at most, and of all others: those of the link of the best one.
fn by_link(family: &[&Candidate], own: &Own<'_>, most: usize) -> BTreeMap<u32, Vec<IpAddr>> {
    let is_primary = |ifindex: u32, found: &Candidate| own.is_primary(ifindex, found.address);
    // The node's own address does not move, whatever is published there.
    let is_published = |ifindex: u32, found: &Candidate| {
        own.surroundings.published.contains(&found.address) && !is_primary(ifindex, found)
    };
    let of_link = |ifindex: u32| {
        let own = family.iter().filter(|found| found.ifindex == ifindex && !is_published(ifindex, found));
        let mut own: Vec<&Candidate> = own.copied().collect();
        own.sort_by_key(|found| (found.standing, !is_primary(ifindex, found), found.address));
        // Others than the best must last: connections of many clients would end with them. A second one of IPv6 is one for privacy.
        let lasts = |found: &Candidate| match found.standing {
            Standing::Primary => true,
            Standing::Secondary => found.address.is_ipv4(),
            Standing::Passing | Standing::Duplicate => false,
        };
        let lasting = own.iter().enumerate().filter(|(at, found)| *at == 0 || lasts(found));
        lasting.map(|(_, found)| found.address).take(most).collect::<Vec<IpAddr>>()
    };
    let links: BTreeSet<u32> = family.iter().filter(|found| !found.is_loopback).map(|found| found.ifindex).collect();
    let mut addresses: BTreeMap<u32, Vec<IpAddr>> =
        links.into_iter().map(|ifindex| (ifindex, of_link(ifindex))).filter(|(_, own)| !own.is_empty()).collect();
    let any = family.iter().min_by_key(|found| {
        // One that may move serves better than none.
        let (is_published, is_primary) = (is_published(ANY_LINK, found), is_primary(ANY_LINK, found));
        (is_published, !is_primary, !found.is_uplink, found.standing, found.ifindex, found.address)
    });
    if let Some(any) = any {
        let mut all = of_link(any.ifindex);
        all.retain(|address| *address != any.address);
        all.insert(0, any.address);
        all.truncate(most);
        addresses.insert(ANY_LINK, all);
    }
    addresses
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
