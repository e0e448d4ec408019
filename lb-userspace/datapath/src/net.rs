//! What the kernel says about interfaces: pure, fed with netlink messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
};

use super::{
    default_routes::DefaultRoutes,
    point::{Point, Role},
    settings::{Interfaces, names},
};

/// Facts about the interfaces of one network namespace.
#[derive(Debug, Default)]
pub(super) struct Net {
    /// Which links are named, by the options.
    pub(super) pods: Interfaces,
    pub(super) external: Interfaces,
    pub(super) links: BTreeMap<u32, Interface>,
    /// Addresses that others can reach, by interface.
    pub(super) addresses: BTreeMap<u32, BTreeMap<IpAddr, Own>>,
    /// Interfaces that had such an address since they appeared, and whether one in a subnet. Losing it is no reason to take programs away: a lease is
    /// renewed.
    pub(super) in_use: BTreeMap<u32, bool>,
    pub(super) defaults: DefaultRoutes,
    /// Interfaces with a role by name, and the name that they had then. They keep it while they are there: a rename ends no connection.
    pub(super) named: BTreeMap<u32, (Role, String)>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Own {
    pub standing: Standing,
    /// Other hosts have addresses beside it.
    pub has_subnet: bool,
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub name: String,
    pub kind: Option<InfoKind>,
    /// Packets begin with an Ethernet header.
    pub ethernet: bool,
    pub loopback: bool,
    /// Id of the peer's network namespace, if the peer is in another one.
    pub peer_netns_id: Option<i32>,
    /// Index of the bridge, bond or VRF that it is part of.
    pub controller: Option<u32>,
}

/// How fit an address is to be the source of packets; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Primary,
    /// A second one of its network (IPv4), or one that is soon given up for privacy (IPv6).
    Secondary,
    /// Deprecated, or not proven to be the only one yet.
    Passing,
    /// Another one on the link has it, too.
    Duplicate,
}

/// An address that packets may leave the node with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub ifindex: u32,
    pub address: IpAddr,
    pub standing: Standing,
    /// Its link leads outside.
    pub is_uplink: bool,
    pub is_loopback: bool,
}

/// What a message asks for beyond what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Nothing,
    /// Roles may have changed.
    Changed,
    /// An interface left for another namespace: its peer is not announced, so links must be listed again.
    Relist,
}

/// An interface that gets programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub ifindex: u32,
    pub name: String,
    pub role: Role,
    pub ethernet: bool,
    /// Packets of a local peer, whose checksums are completed only on a real wire.
    pub virtual_pair: bool,
    /// A pair whose other end may be handed packets: those of others have programs of their own there.
    pub is_veth: bool,
    pub part: Part,
    pub peer_netns_id: i32,
}

/// Which packets are met at a link. A bridge's netfilter (`br_netfilter`) sees packets before the bridge itself does, so those that come in are
/// met at its ports, and those that leave at the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Those that leave by an external bridge.
    Bridge,
    All,
    /// Those that come in by its ports.
    Port,
}

impl Part {
    pub fn meets(self, point: Point) -> bool {
        match self {
            Self::Bridge => point == Point::Out,
            Self::All => true,
            Self::Port => point == Point::In,
        }
    }
}

impl Net {
    /// `pods`, `external`: which links the options name.
    pub fn new(pods: &Interfaces, external: &Interfaces) -> Self {
        Self { pods: pods.clone(), external: external.clone(), ..Self::default() }
    }

    /// Takes a message in: a notification or a line of a listing.
    #[allow(clippy::wildcard_enum_match_arm, reason = "messages of the kernel, of which few matter")]
    pub fn take(&mut self, message: &RouteNetlinkMessage) -> Effect {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.take_link(link),
            RouteNetlinkMessage::DelLink(link) => self.drop_link(link),
            RouteNetlinkMessage::NewAddress(address) => self.take_address(address, true),
            RouteNetlinkMessage::DelAddress(address) => self.take_address(address, false),
            RouteNetlinkMessage::NewRoute(route) if self.defaults.add(route) => Effect::Changed,
            RouteNetlinkMessage::DelRoute(route) => {
                self.defaults.delete(route);
                Effect::Nothing
            }
            _ => Effect::Nothing,
        }
    }

    /// Forgets interfaces and addresses, to list them again; routes may be many, and only those of new interfaces matter.
    pub fn restart_listing(&mut self) {
        self.links.clear();
        self.addresses.clear();
    }

    /// Everything is listed: what was known of interfaces that are gone is forgotten.
    pub fn finish_listing(&mut self) {
        self.defaults.end_round(|ifindex| self.links.contains_key(&ifindex));
        self.in_use.retain(|ifindex, _| self.links.contains_key(ifindex));
        self.named.retain(|ifindex, _| self.links.contains_key(ifindex));
    }

    pub fn contains(&self, ifindex: u32) -> bool {
        self.links.contains_key(&ifindex)
    }

    /// Addresses of the node by which others reach it.
    pub fn reachable(&self) -> BTreeSet<IpAddr> {
        let named = |ifindex| self.links.get(ifindex).is_none_or(|link| carries_node_addresses(&link.name));
        let on_links = self.addresses.iter().filter(|(ifindex, _)| named(*ifindex));
        on_links.flat_map(|(_, all)| all.keys()).copied().filter(|address| is_node_address(*address)).collect()
    }

    /// Addresses of this node by link, but those that another host uses, too.
    pub fn candidates(&self) -> Vec<Candidate> {
        let of_link = |(&ifindex, all): (&u32, &BTreeMap<IpAddr, Own>)| {
            let link = self.links.get(&ifindex).filter(|link| carries_node_addresses(&link.name))?;
            let candidate = |(&address, own): (&IpAddr, &Own)| Candidate {
                ifindex,
                address,
                standing: own.standing,
                is_uplink: self.defaults.lead_by(ifindex) && self.leads_out(ifindex, link),
                is_loopback: link.loopback,
            };
            Some(all.iter().map(candidate).collect::<Vec<_>>())
        };
        let all = self.addresses.iter().filter_map(of_link).flatten();
        all.filter(|found| found.standing != Standing::Duplicate && is_node_address(found.address)).collect()
    }

    /// The role that the options give to a name: pods' first.
    pub(super) fn role_by_name(&self, name: &str) -> Option<Role> {
        if names(&self.pods, name) {
            return Some(Role::Pod);
        }
        names(&self.external, name).then_some(Role::External)
    }

    fn take_link(&mut self, message: &LinkMessage) -> Effect {
        // Bridges announce their ports as links of their own family, without what a link is.
        if message.header.interface_family != AddressFamily::Unspec {
            return Effect::Nothing;
        }
        let Some(link) = interface(message) else { return Effect::Nothing };
        let ifindex = message.header.index;
        if let Some(role) = self.role_by_name(&link.name) {
            self.named.insert(ifindex, (role, link.name.clone()));
        }
        let before = self.links.insert(ifindex, link.clone());
        if before.as_ref() == Some(&link) { Effect::Nothing } else { Effect::Changed }
    }

    fn drop_link(&mut self, message: &LinkMessage) -> Effect {
        if message.header.interface_family != AddressFamily::Unspec {
            return Effect::Nothing;
        }
        let ifindex = message.header.index;
        self.links.remove(&ifindex);
        self.addresses.remove(&ifindex);
        self.in_use.remove(&ifindex);
        self.defaults.drop_link(ifindex);
        self.named.remove(&ifindex);
        let moved = message.attributes.iter().any(|attribute| matches!(attribute, LinkAttribute::NewNetnsId(_)));
        if moved { Effect::Relist } else { Effect::Changed }
    }

    fn take_address(&mut self, message: &AddressMessage, there: bool) -> Effect {
        if message.header.scope != AddressScope::Universe {
            return Effect::Nothing;
        }
        // The local address: on a point-to-point link the other attribute holds the peer's.
        let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
        let local =
            find(|attribute| if let AddressAttribute::Local(address) = attribute { Some(*address) } else { None });
        let other =
            || find(|attribute| if let AddressAttribute::Address(address) = attribute { Some(*address) } else { None });
        let Some(address) = local.or_else(other) else { return Effect::Nothing };
        let length = if address.is_ipv4() { 32 } else { 128 };
        let own = Own { standing: standing(message), has_subnet: message.header.prefix_len < length };
        let addresses = self.addresses.entry(message.header.index).or_default();
        let changed = if there {
            *self.in_use.entry(message.header.index).or_default() |= own.has_subnet;
            addresses.insert(address, own) != Some(own)
        } else {
            addresses.remove(&address).is_some()
        };
        if changed { Effect::Changed } else { Effect::Nothing }
    }
}

/// Whether the addresses of an interface are the node's. kube-proxy in IPVS mode leaves every cluster IP on one of its own behind:
/// taken for node addresses, each of them would get every node port.
pub fn carries_node_addresses(interface: &str) -> bool {
    interface != "kube-ipvs0"
}

/// Whether an address is one that clients elsewhere may use for the node: no loopback, no link-local one.
pub fn is_node_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || v4.is_multicast()),
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified() || v6.is_multicast()),
    }
}

fn standing(message: &AddressMessage) -> Standing {
    let flags = message
        .attributes
        .iter()
        .find_map(|attribute| if let AddressAttribute::Flags(flags) = attribute { Some(*flags) } else { None });
    // The header has room for the first eight of them.
    let flags = flags.unwrap_or_else(|| AddressFlags::from_bits_retain(message.header.flags.bits().into()));
    if flags.contains(AddressFlags::Dadfailed) {
        Standing::Duplicate
    } else if flags.intersects(AddressFlags::Deprecated | AddressFlags::Tentative | AddressFlags::Optimistic) {
        Standing::Passing
    } else if flags.contains(AddressFlags::Secondary) {
        Standing::Secondary
    } else {
        Standing::Primary
    }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "messages of the kernel, of which few matter")]
fn interface(message: &LinkMessage) -> Option<Interface> {
    let flags = message.header.flags;
    let mut link = Interface {
        name: String::new(),
        kind: None,
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        loopback: flags.contains(LinkFlags::Loopback),
        peer_netns_id: None,
        controller: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::LinkNetNsId(id) => link.peer_netns_id = Some(*id),
            LinkAttribute::Controller(index) => link.controller = (*index != 0).then_some(*index),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos
                    .iter()
                    .find_map(|info| if let LinkInfo::Kind(kind) = info { Some(kind.clone()) } else { None });
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// The name of an interface of the thread's network namespace; `None`: there is no such interface, which nix 0.31 takes for one with an
/// empty name.
pub fn name_of(ifindex: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(ifindex).ok()?.into_string().ok()?;
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
#[path = "net_tests.rs"]
mod tests;
