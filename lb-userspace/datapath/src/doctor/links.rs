//! The links: whether the kernel forwards, filters by reverse paths, has room for outer headers, and delivers what XDP needs.

use std::{fs, path::Path};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
    route::RouteMessage,
};

use super::{
    finding::{Finding, Level, Wishes},
    offload,
};
use crate::{
    DatapathError,
    error::netlink_thread,
    net::{Net, Part, Wanted},
    point::Role,
    roles::{NoExternalLink, Roles},
    serving,
    settings::{SocketLb, XdpMode},
};
use lb_model::{Family, Mode};

/// The smallest MTU of a family, and what an outer header takes of it.
const LEAST: [(Family, u32, u32); 2] = [(Family::V4, 576, 20), (Family::V6, 1_280, 40)];

/// A link to the outside.
struct Outside {
    wanted: Wanted,
    mtu: u32,
    /// Index of the other end of a pair, in its own namespace.
    peer: Option<u32>,
    families: Vec<Family>,
}

/// Everything about links.
pub(super) fn examine(wishes: &Wishes) -> Vec<Finding> {
    let (links, unknown) = match outside(wishes) {
        Ok(found) => found,
        Err(error) => {
            return vec![Finding::bad("links", Level::Fail, error.to_string(), "run it as root, on the node itself")];
        }
    };
    let names: Vec<&str> = links.iter().map(|link| link.wanted.name.as_str()).collect();
    let mut findings = match unknown {
        None => vec![Finding::ok("links", format!("to the outside: {}", names.join(", ")))],
        Some(NoExternalLink { found, remedy }) => vec![Finding::bad("links", Level::Warn, found, remedy)],
    };
    for link in &links {
        findings.push(forwarding(link));
        findings.push(reverse_path(link, wishes.socket_lb, reverse_path_filter));
        findings.push(xdp(link, wishes.xdp_mode, |link| {
            offload::of_peer(link.peer, link.wanted.peer_netns_id, &wishes.namespaces)
        }));
        if wishes.mode != Mode::Snat {
            findings.push(room(link));
        }
    }
    findings
}

/// The links to the outside, as an agent would see them.
fn outside(wishes: &Wishes) -> Result<(Vec<Outside>, Option<NoExternalLink>), DatapathError> {
    let net = Net::new(&wishes.pod_interfaces, &wishes.external_interfaces);
    let (net, messages) = netlink_thread(|handle| async move {
        let failed = || DatapathError::netlink("list the interfaces, addresses and routes");
        let mut net = net;
        let messages: Vec<LinkMessage> = handle.link().get().execute().try_collect().await.map_err(failed())?;
        for message in &messages {
            net.take(&RouteNetlinkMessage::NewLink(message.clone()));
        }
        let mut addresses = handle.address().get().execute();
        while let Some(address) = addresses.try_next().await.map_err(failed())? {
            net.take(&RouteNetlinkMessage::NewAddress(address));
        }
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut all = RouteMessage::default();
            all.header.address_family = family;
            let mut routes = handle.route().get(all).execute();
            while let Some(route) = routes.try_next().await.map_err(failed())? {
                net.take(&RouteNetlinkMessage::NewRoute(route));
            }
        }
        net.finish_listing();
        Ok((net, messages))
    })?;
    let candidates = net.candidates();
    let Roles { links, no_external_link } = net.roles(|_| false);
    let links = links.into_values().filter(|wanted| wanted.role == Role::External).map(|wanted| {
        let of_link =
            |v4| candidates.iter().any(|found| found.ifindex == wanted.ifindex && found.address.is_ipv4() == v4);
        let families = [(Family::V4, true), (Family::V6, false)].into_iter().filter(|(_, v4)| of_link(*v4));
        let families = families.map(|(family, _)| family).collect();
        let message = messages.iter().find(|message| message.header.index == wanted.ifindex);
        let attributes = message.map(|message| message.attributes.as_slice()).unwrap_or_default();
        let mtu = attributes.iter().find_map(|it| if let LinkAttribute::Mtu(mtu) = it { Some(*mtu) } else { None });
        let peer = attributes.iter().find_map(|it| if let LinkAttribute::Link(peer) = it { Some(*peer) } else { None });
        Outside { wanted, mtu: mtu.unwrap_or_default(), peer, families }
    });
    Ok((links.collect(), no_external_link))
}

fn forwarding(link: &Outside) -> Finding {
    let name = &link.wanted.name;
    let off: Vec<&str> = link
        .families
        .iter()
        .filter(|family| serving::forwards(name, **family) == Some(false))
        .map(|family| if *family == Family::V4 { "net.ipv4" } else { "net.ipv6" })
        .collect();
    if off.is_empty() {
        return Finding::ok("forwarding", format!("{name}: on in each family that it has an address of"));
    }
    let remedy: Vec<String> = off.iter().map(|sysctl| format!("sysctl {sysctl}.conf.all.forwarding=1")).collect();
    let found = format!("{name}: off: clients outside reach no pod, and no backend elsewhere");
    Finding::bad("forwarding", Level::Fail, found, remedy.join(", "))
}

/// The filter that counts for a link: the stricter one of its own and that of all.
fn reverse_path_filter(link: &str) -> Option<u8> {
    let read = |name: &str| -> Option<u8> {
        let path = Path::new("/proc/sys/net/ipv4/conf").join(name).join("rp_filter");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let values = [read("all")?, read(link)?];
    // The larger number counts, and 2 is the loose one.
    values.into_iter().max()
}

fn reverse_path(link: &Outside, sockets: SocketLb, filter: impl Fn(&str) -> Option<u8>) -> Finding {
    let name = &link.wanted.name;
    match (filter(name), sockets) {
        (Some(1), SocketLb::Off) => Finding::bad(
            "rp-filter",
            Level::Warn,
            format!("{name}: strict: with --socket-lb off answers to processes of the node are dropped"),
            format!("sysctl net.ipv4.conf.{name}.rp_filter=2, or --socket-lb host"),
        ),
        (Some(1), _) => Finding::ok("rp-filter", format!("{name}: strict, which the socket hooks need not mind")),
        (Some(2), _) => Finding::ok("rp-filter", format!("{name}: loose")),
        _ => Finding::ok("rp-filter", format!("{name}: off")),
    }
}

/// Native XDP on a veth breaks packets whose checksums its other end has left to a card to complete.
fn xdp(link: &Outside, mode: XdpMode, of_peer: impl Fn(&Outside) -> offload::Peer) -> Finding {
    let name = &link.wanted.name;
    match mode {
        XdpMode::Off => return Finding::ok("xdp", format!("{name}: tc serves it (--xdp-mode off)")),
        _ if !link.wanted.ethernet => {
            return Finding::ok("xdp", format!("{name}: tc serves it, without Ethernet headers"));
        }
        _ if link.wanted.part != Part::All => {
            return Finding::ok("xdp", format!("{name}: tc serves a bridge and its ports"));
        }
        XdpMode::Auto if link.wanted.virtual_pair => {
            return Finding::ok("xdp", format!("{name}: tc serves it, since its other end is on this host"));
        }
        _ if !link.wanted.virtual_pair => return Finding::ok("xdp", format!("{name}: a device's own link")),
        XdpMode::Auto | XdpMode::Native | XdpMode::Generic => {}
    }
    match of_peer(link) {
        offload::Peer::Complete => Finding::ok("xdp", format!("{name}: its other end completes checksums")),
        offload::Peer::Partial(peer) => Finding::bad(
            "xdp",
            Level::Fail,
            format!(
                "{name}: its other end ({peer}) leaves checksums to a card that is not there: XDP breaks what it rewrites, and \
                 receivers drop it"
            ),
            format!("ethtool -K {peer} tx off in its namespace, or --xdp-mode auto or off"),
        ),
        offload::Peer::Unseen => Finding::bad(
            "xdp",
            Level::Warn,
            format!(
                "{name}: its other end cannot be seen from here: if it leaves checksums to a card, XDP breaks packets"
            ),
            "ethtool -k on the other end must say tx-checksumming: off; else --xdp-mode auto or off",
        ),
    }
}

/// Whether the smallest packets of each family still fit with an outer header.
fn room(link: &Outside) -> Finding {
    let Outside { wanted: Wanted { name, .. }, mtu, families, .. } = link;
    let small = LEAST.iter().find(|(family, least, outer)| families.contains(family) && *mtu < least + outer);
    match small {
        None => Finding::ok(
            "mtu",
            format!(
                "{name}: {mtu}, less 20 (IPv4) or 40 (IPv6) for what goes to another node with direct server return"
            ),
        ),
        Some((family, least, outer)) => Finding::bad(
            "mtu",
            Level::Fail,
            format!("{name}: {mtu} leaves no room for the smallest packets in an outer header ({})", text(*family)),
            format!("ip link set {name} mtu {} or more, or --mode snat", least + outer),
        ),
    }
}

fn text(family: Family) -> &'static str {
    if family == Family::V4 { "IPv4" } else { "IPv6" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(mtu: u32, pair: bool) -> Outside {
        let wanted = Wanted {
            ifindex: 2,
            name: "eth0".to_owned(),
            role: Role::External,
            ethernet: true,
            virtual_pair: pair,
            is_veth: pair,
            part: Part::All,
            peer_netns_id: 0,
        };
        Outside { wanted, mtu, peer: Some(7), families: vec![Family::V4, Family::V6] }
    }

    #[test]
    fn xdp_over_a_pair_is_judged_by_its_other_end() {
        let level = |pair, mode, peer: offload::Peer| xdp(&link(1_500, pair), mode, |_| peer.clone()).level;
        let partial = || offload::Peer::Partial("port1".to_owned());
        assert_eq!(level(true, XdpMode::Native, partial()), Level::Fail);
        assert_eq!(level(true, XdpMode::Generic, partial()), Level::Fail);
        assert_eq!(level(true, XdpMode::Native, offload::Peer::Unseen), Level::Warn);
        assert_eq!(level(true, XdpMode::Native, offload::Peer::Complete), Level::Ok);
        // tc serves it, or it is a card.
        assert_eq!(level(true, XdpMode::Auto, partial()), Level::Ok);
        assert_eq!(level(false, XdpMode::Native, partial()), Level::Ok);
        let finding = xdp(&link(1_500, true), XdpMode::Native, |_| partial());
        assert!(finding.remedy.is_some_and(|remedy| remedy.contains("ethtool -K port1 tx off")));
    }

    #[test]
    fn an_outer_header_needs_room_in_each_family() {
        assert_eq!(room(&link(1_320, false)).level, Level::Ok);
        let finding = room(&link(1_319, false));
        assert!(finding.level == Level::Fail && finding.found.contains("IPv6"), "{finding:?}");
        let only4 = Outside { families: vec![Family::V4], ..link(596, false) };
        assert_eq!(room(&only4).level, Level::Ok);
        assert_eq!(room(&Outside { mtu: 595, ..only4 }).level, Level::Fail);
    }

    #[test]
    fn a_strict_filter_matters_without_the_socket_hooks() {
        let level = |filter, sockets| reverse_path(&link(1_500, false), sockets, |_| filter).level;
        assert_eq!(level(Some(1), SocketLb::Off), Level::Warn);
        assert_eq!(level(Some(1), SocketLb::Host), Level::Ok);
        assert_eq!(level(Some(2), SocketLb::Off), Level::Ok);
        assert_eq!(level(None, SocketLb::Off), Level::Ok);
    }
}
