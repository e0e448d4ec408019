//! What the kernel says about interfaces, and the role that each one plays: pure, fed with netlink messages.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage},
    route::{RouteAttribute, RouteMessage, RouteType},
};

use super::{
    point::Role,
    settings::{Interfaces, names},
};

/// Facts about the interfaces of one network namespace.
#[derive(Debug, Default)]
pub(super) struct Net {
    links: BTreeMap<u32, Interface>,
    /// Addresses that others can reach, by interface.
    addresses: BTreeMap<u32, BTreeMap<IpAddr, Standing>>,
    /// Interfaces that carried the default route since they appeared. Losing it (a lease that is renewed, a link that flaps, of
    /// which the kernel says nothing for IPv4) is no reason to take the programs away.
    uplinks: BTreeSet<u32>,
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
    /// Its link carries, or carried, a default route.
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
    pub peer_netns_id: i32,
}

impl Net {
    /// Takes a message in: a notification or a line of a listing.
    #[allow(clippy::wildcard_enum_match_arm, reason = "messages of the kernel, of which few matter")]
    pub fn take(&mut self, message: &RouteNetlinkMessage) -> Effect {
        match message {
            RouteNetlinkMessage::NewLink(link) => self.take_link(link),
            RouteNetlinkMessage::DelLink(link) => self.drop_link(link),
            RouteNetlinkMessage::NewAddress(address) => self.take_address(address, true),
            RouteNetlinkMessage::DelAddress(address) => self.take_address(address, false),
            RouteNetlinkMessage::NewRoute(route) => self.take_route(route),
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
        self.uplinks.retain(|ifindex| self.links.contains_key(ifindex));
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
        let of_link = |(&ifindex, all): (&u32, &BTreeMap<IpAddr, Standing>)| {
            let link = self.links.get(&ifindex).filter(|link| carries_node_addresses(&link.name))?;
            let candidate = |(&address, &standing): (&IpAddr, &Standing)| Candidate {
                ifindex,
                address,
                standing,
                is_uplink: self.uplinks.contains(&ifindex),
                is_loopback: link.loopback,
            };
            Some(all.iter().map(candidate).collect::<Vec<_>>())
        };
        let all = self.addresses.iter().filter_map(of_link).flatten();
        all.filter(|found| found.standing != Standing::Duplicate && is_node_address(found.address)).collect()
    }

    /// The interfaces that get programs.
    pub fn wanted(&self, pods: &Interfaces, external: &Interfaces) -> BTreeMap<u32, Wanted> {
        let wanted = |(&ifindex, link): (&u32, &Interface)| {
            let role = self.role(ifindex, link, pods, external)?;
            let wanted = Wanted {
                ifindex,
                name: link.name.clone(),
                role,
                ethernet: link.ethernet,
                virtual_pair: is_pair(link),
                is_veth: matches!(link.kind, Some(InfoKind::Veth)),
                peer_netns_id: link.peer_netns_id.unwrap_or(-1),
            };
            Some((ifindex, wanted))
        };
        self.links.iter().filter_map(wanted).collect()
    }

    /// Named interfaces first; then what an interface is. A pair's end with the default route is the node's uplink (a node that
    /// is itself a container), any other end whose peer is elsewhere is a pod's.
    fn role(&self, ifindex: u32, link: &Interface, pods: &Interfaces, external: &Interfaces) -> Option<Role> {
        if names(pods, &link.name) {
            return Some(Role::Pod);
        }
        if names(external, &link.name) {
            return Some(Role::External);
        }
        if link.loopback {
            return None;
        }
        let is_uplink = self.uplinks.contains(&ifindex);
        if is_pair(link) && link.peer_netns_id.is_some() && !is_uplink {
            return (*pods == Interfaces::Auto).then_some(Role::Pod);
        }
        match link.kind {
            Some(InfoKind::Bridge) => return Some(Role::Bridge),
            // Nothing ever arrives on a dummy; its addresses belong to services of the node.
            Some(InfoKind::Dummy) => return None,
            Some(ref kind) if is_tunnel(kind) => return Some(Role::Tunnel),
            _ => {}
        }
        let reachable = is_uplink || self.addresses.get(&ifindex).is_some_and(|addresses| !addresses.is_empty());
        (reachable && *external == Interfaces::Auto).then_some(Role::External)
    }

    fn take_link(&mut self, message: &LinkMessage) -> Effect {
        // Bridges announce their ports as links of their own family, without what a link is.
        if message.header.interface_family != AddressFamily::Unspec {
            return Effect::Nothing;
        }
        let Some(link) = interface(message) else { return Effect::Nothing };
        let ifindex = message.header.index;
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
        self.uplinks.remove(&ifindex);
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
        let addresses = self.addresses.entry(message.header.index).or_default();
        let standing = standing(message);
        let changed = if there {
            addresses.insert(address, standing) != Some(standing)
        } else {
            addresses.remove(&address).is_some()
        };
        if changed { Effect::Changed } else { Effect::Nothing }
    }

    fn take_route(&mut self, message: &RouteMessage) -> Effect {
        let before = self.uplinks.len();
        self.uplinks.extend(default_interfaces(message));
        if self.uplinks.len() == before { Effect::Nothing } else { Effect::Changed }
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
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::LinkNetNsId(id) => link.peer_netns_id = Some(*id),
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

/// The interfaces of a default route; none for another route. Policy routing keeps default routes in tables of their own.
fn default_interfaces(message: &RouteMessage) -> Vec<u32> {
    let header = &message.header;
    let is_default = header.destination_prefix_length == 0 && header.kind == RouteType::Unicast;
    if !is_default || !matches!(header.address_family, AddressFamily::Inet | AddressFamily::Inet6) {
        return Vec::new();
    }
    let mut interfaces = Vec::new();
    for attribute in &message.attributes {
        if let RouteAttribute::Oif(ifindex) = attribute {
            interfaces.push(*ifindex);
        } else if let RouteAttribute::MultiPath(hops) = attribute {
            interfaces.extend(hops.iter().map(|hop| hop.interface_index));
        }
    }
    interfaces
}

fn is_pair(link: &Interface) -> bool {
    matches!(link.kind, Some(InfoKind::Veth | InfoKind::Netkit))
}

fn is_tunnel(kind: &InfoKind) -> bool {
    use InfoKind as Kind;
    matches!(
        kind,
        Kind::Vxlan
            | Kind::Geneve
            | Kind::IpIp
            | Kind::Ip6Tnl
            | Kind::SitTun
            | Kind::GreTun
            | Kind::GreTun6
            | Kind::GreTap
            | Kind::GreTap6
            | Kind::Wireguard
            | Kind::Tun
            | Kind::Vti
            | Kind::Vti6
            | Kind::Xfrm
            | Kind::BareUdp
    )
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
