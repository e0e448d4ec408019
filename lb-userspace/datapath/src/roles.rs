//! The role that each interface plays: by its name where the options have one, else by what it is, and by the addresses and routes that it has.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use netlink_packet_route::link::InfoKind;

use super::{
    net::{Interface, Net, Part, Wanted},
    point::Role,
    settings::Interfaces,
};

/// The interfaces that get programs.
#[derive(Debug)]
pub(super) struct Roles {
    pub links: BTreeMap<u32, Wanted>,
    /// No link is known to lead outside: each that may do so is taken for external.
    pub no_external_link: Option<NoExternalLink>,
}

/// What is known instead of an external link, and what to do.
#[derive(Debug)]
pub(super) struct NoExternalLink {
    pub found: String,
    pub remedy: &'static str,
}

impl fmt::Display for NoExternalLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.found, self.remedy)
    }
}

impl Net {
    /// `is_pods`: whether an address lies in a network of pods.
    pub fn roles(&self, is_pods: impl Fn(IpAddr) -> bool) -> Roles {
        let is_auto = self.external == Interfaces::Auto;
        let known = self.with_roles(|ifindex, link| self.role(ifindex, link, is_auto));
        let leads_out = |link: &Wanted| {
            link.role == Role::External || link.role == Role::Tunnel && self.defaults.lead_by(link.ifindex)
        };
        if known.values().any(leads_out) {
            return Roles { links: known, no_external_link: None };
        }
        let links = self.with_roles(|ifindex, link| {
            let guess = self.may_lead_out(ifindex, link, &is_pods).then_some(Role::External);
            guess.or_else(|| self.role(ifindex, link, true))
        });
        let taken: Vec<&str> =
            links.values().filter(|link| link.role == Role::External).map(|link| link.name.as_str()).collect();
        let taken = if taken.is_empty() {
            "none is taken for one".to_owned()
        } else {
            format!("taken for one: {}", taken.join(", "))
        };
        let why = if is_auto {
            "no link has a default route, and none that can be no pod's has an address"
        } else {
            "no link's name matches --external-interfaces"
        };
        let remedy = "add the default route, or name the links in --external-interfaces";
        let found = format!("no external link is known: {why}; {taken}");
        Roles { links, no_external_link: Some(NoExternalLink { found, remedy }) }
    }

    /// What was chosen by a name that it has no more: option, the name of then, and the name of now.
    pub fn renamed(&self) -> impl Iterator<Item = (&'static str, &str, &str)> {
        self.named.iter().filter_map(|(ifindex, (role, name))| {
            let link = self.links.get(ifindex)?;
            let option = if *role == Role::Pod { "--pod-interfaces" } else { "--external-interfaces" };
            self.role_by_name(&link.name).is_none().then_some((option, name.as_str(), link.name.as_str()))
        })
    }

    fn with_roles(&self, role: impl Fn(u32, &Interface) -> Option<Role>) -> BTreeMap<u32, Wanted> {
        let wanted = |(&ifindex, link): (&u32, &Interface)| {
            let wanted = Wanted {
                ifindex,
                name: link.name.clone(),
                role: role(ifindex, link)?,
                ethernet: link.ethernet,
                virtual_pair: link.is_pair(),
                is_veth: matches!(link.kind, Some(InfoKind::Veth)),
                part: Part::All,
                peer_netns_id: link.peer_netns_id.unwrap_or(-1),
            };
            Some((ifindex, wanted))
        };
        let mut all: BTreeMap<u32, Wanted> = self.links.iter().filter_map(wanted).collect();
        let external = |ifindex: u32| all.get(&ifindex).is_some_and(|link| link.role == Role::External);
        let pairs = self.links.iter().filter_map(|(port, link)| Some((*port, link.controller?)));
        let pairs = pairs.filter(|(_, bridge)| self.links.get(bridge).is_some_and(Interface::is_bridge));
        let pairs: Vec<(u32, u32)> = pairs.filter(|(port, bridge)| external(*port) && external(*bridge)).collect();
        for (port, bridge) in pairs {
            for (ifindex, part) in [(port, Part::Port), (bridge, Part::Bridge)] {
                all.entry(ifindex).and_modify(|link| link.part = part);
            }
        }
        all
    }

    /// `is_auto`: external links are found by what they are.
    fn role(&self, ifindex: u32, link: &Interface, is_auto: bool) -> Option<Role> {
        if let Some((role, _)) = self.named.get(&ifindex) {
            return Some(*role);
        }
        if link.loopback {
            return None;
        }
        if is_auto && self.leads_out(ifindex, link) || self.is_port_to_outside(link, is_auto) {
            return Some(Role::External);
        }
        if link.is_end_of_pair() {
            return (self.pods == Interfaces::Auto).then_some(Role::Pod);
        }
        match link.kind {
            Some(InfoKind::Bridge) => Some(Role::Bridge),
            Some(ref kind) if is_tunnel(kind) => Some(Role::Tunnel),
            _ => None,
        }
    }

    /// Whether a link leads outside by what it is. Packets of a port are the bridge's or the bond's, and nothing ever arrives on a dummy.
    pub fn leads_out(&self, ifindex: u32, link: &Interface) -> bool {
        let (is_in_use, has_default) = (self.in_use.contains_key(&ifindex), self.defaults.lead_by(ifindex));
        if self.is_port(link) || link.loopback {
            return false;
        }
        if link.is_end_of_pair() {
            // The uplink of a node that is itself a container; any other pair may be a pod's. Egress gateways lead by a pod's link with a table of its own,
            // and the address of a pod's gateway is in no subnet.
            let has_subnet = self.in_use.get(&ifindex) == Some(&true);
            return self.defaults.lead_all_by(ifindex) || has_default && has_subnet;
        }
        if link.is_bridge() {
            return self.defaults.lead_all_by(ifindex) || (is_in_use || has_default) && self.has_device(ifindex);
        }
        link.is_device() && (is_in_use || has_default)
    }

    /// Whether a link may lead outside, where none is known to: an address in a subnet that is no pods', but on a bridge of pods.
    fn may_lead_out(&self, ifindex: u32, link: &Interface, is_pods: impl Fn(IpAddr) -> bool) -> bool {
        let is_by_name = self.named.contains_key(&ifindex);
        let in_subnet = self.addresses.get(&ifindex).into_iter().flatten();
        let mut in_subnet = in_subnet.filter(|(address, own)| own.has_subnet && !is_pods(**address));
        !is_by_name && link.is_end_of_pair() && !self.is_port(link) && in_subnet.next().is_some()
    }

    /// Whether the link is one of a bridge's or a bond's. A VRF's links are links of their own.
    fn is_port(&self, link: &Interface) -> bool {
        let controller = link.controller.and_then(|controller| self.links.get(&controller));
        controller.is_some_and(|controller| !matches!(controller.kind, Some(InfoKind::Vrf)))
    }

    /// Whether a link is a port by which an external bridge leads outside: a device; on a bridge without any, each pair, one of which must be it.
    fn is_port_to_outside(&self, link: &Interface, is_auto: bool) -> bool {
        let Some(bridge) = link.controller else { return false };
        let by_name = self.named.get(&bridge).map(|(role, _)| *role == Role::External);
        let leads_out = |found: &Interface| by_name.unwrap_or_else(|| is_auto && self.leads_out(bridge, found));
        let is_outer = self.links.get(&bridge).is_some_and(|found| found.is_bridge() && leads_out(found));
        let is_pair = link.is_end_of_pair() && !self.has_device(bridge);
        is_outer && (is_pair || link.is_device() && !link.is_pair())
    }

    /// Whether a network device is a port of this bridge.
    fn has_device(&self, bridge: u32) -> bool {
        self.links.values().any(|port| port.controller == Some(bridge) && port.is_device() && !port.is_pair())
    }
}

impl Interface {
    fn is_pair(&self) -> bool {
        matches!(self.kind, Some(InfoKind::Veth | InfoKind::Netkit))
    }

    /// A pair whose other end is in another namespace.
    fn is_end_of_pair(&self) -> bool {
        self.is_pair() && self.peer_netns_id.is_some()
    }

    fn is_bridge(&self) -> bool {
        matches!(self.kind, Some(InfoKind::Bridge))
    }

    /// A card, or what is made of one as a bond or a VLAN.
    fn is_device(&self) -> bool {
        let is_other =
            self.loopback || self.is_end_of_pair() || self.is_bridge() || matches!(self.kind, Some(InfoKind::Dummy));
        !is_other && !self.kind.as_ref().is_some_and(is_tunnel)
    }
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
