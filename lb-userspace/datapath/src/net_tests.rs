//! Roles of interfaces, from messages as the kernel sends them.

use std::net::Ipv4Addr;

use super::*;

fn link(index: u32, name: &str, kind: Option<InfoKind>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.link_layer_type = LinkLayerType::Ether;
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    if let Some(kind) = kind {
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
    }
    message
}

fn pair(index: u32, name: &str, peer: i32) -> LinkMessage {
    let mut message = link(index, name, Some(InfoKind::Veth));
    message.attributes.push(LinkAttribute::LinkNetNsId(peer));
    message
}

fn address(index: u32, scope: AddressScope) -> RouteNetlinkMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.scope = scope;
    message.attributes.push(AddressAttribute::Local(Ipv4Addr::new(192, 0, 2, 1).into()));
    RouteNetlinkMessage::NewAddress(message)
}

fn default_route(index: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Oif(index));
    message
}

fn net(messages: impl IntoIterator<Item = RouteNetlinkMessage>) -> Net {
    let mut net = Net::default();
    for message in messages {
        net.take(&message);
    }
    net
}

fn role(net: &Net, index: u32) -> Option<Role> {
    net.wanted(&Interfaces::Auto, &Interfaces::Auto).get(&index).map(|wanted| wanted.role)
}

use RouteNetlinkMessage::{DelLink, DelRoute, NewLink, NewRoute};

#[test]
fn a_pair_with_its_peer_elsewhere_is_a_pod() {
    let net = net([NewLink(pair(5, "veth5", 2)), NewLink(link(6, "veth6", Some(InfoKind::Veth)))]);
    assert_eq!(role(&net, 5), Some(Role::Pod));
    assert_eq!(role(&net, 6), None, "both ends here");
    assert_eq!(net.wanted(&Interfaces::Auto, &Interfaces::Auto)[&5].peer_netns_id, 2);
}

#[test]
fn a_pods_link_with_the_gateways_address_stays_a_pods() {
    let net = net([NewLink(pair(5, "veth5", 2)), address(5, AddressScope::Universe)]);
    assert_eq!(role(&net, 5), Some(Role::Pod));
}

#[test]
fn the_uplink_of_a_node_in_a_container_is_external() {
    let net = net([NewLink(pair(2, "eth0", 0)), NewRoute(default_route(2))]);
    assert_eq!(role(&net, 2), Some(Role::External));
}

#[test]
fn external_is_a_reachable_address_or_the_default_route() {
    let net = net([
        NewLink(link(2, "eth0", None)),
        NewLink(link(3, "eth1", None)),
        NewLink(link(4, "eth2", None)),
        NewLink(link(5, "dummy0", Some(InfoKind::Dummy))),
        address(2, AddressScope::Universe),
        NewRoute(default_route(3)),
        address(4, AddressScope::Link),
        address(5, AddressScope::Universe),
    ]);
    assert_eq!([2, 3, 4, 5].map(|index| role(&net, index)), [Some(Role::External), Some(Role::External), None, None]);
}

#[test]
fn bridges_and_tunnels_are_known_by_kind_and_loopback_is_left_alone() {
    let mut loopback = link(1, "lo", None);
    loopback.header.flags |= LinkFlags::Loopback;
    let mut wireguard = link(4, "wg0", Some(InfoKind::Wireguard));
    wireguard.header.link_layer_type = LinkLayerType::None;
    let net = net([
        NewLink(loopback),
        address(1, AddressScope::Universe),
        NewLink(link(2, "cni0", Some(InfoKind::Bridge))),
        address(2, AddressScope::Universe),
        NewLink(link(3, "flannel.1", Some(InfoKind::Vxlan))),
        NewLink(wireguard),
    ]);
    assert_eq!(role(&net, 1), None);
    assert_eq!(role(&net, 2), Some(Role::Bridge));
    assert_eq!(role(&net, 3), Some(Role::Tunnel));
    let wanted = net.wanted(&Interfaces::Auto, &Interfaces::Auto);
    assert!(wanted[&3].ethernet && !wanted[&4].ethernet);
}

#[test]
fn names_go_before_what_a_link_is() {
    let net = net([NewLink(pair(5, "up0", 2)), NewLink(pair(6, "pod1", 3)), NewLink(link(7, "eth0", None))]);
    let wanted = net.wanted(&Interfaces::Auto, &"up*".parse().expect("well-formed"));
    assert_eq!((wanted[&5].role, wanted[&6].role), (Role::External, Role::Pod));
    let wanted = net.wanted(&"eth0".parse().expect("well-formed"), &Interfaces::Auto);
    assert_eq!(wanted[&7].role, Role::Pod);
    assert!(!wanted.contains_key(&6), "only what is named");
}

#[test]
fn a_rename_keeps_the_role() {
    let mut net = net([NewLink(pair(5, "tmp0", 2))]);
    assert_eq!(net.take(&NewLink(pair(5, "cali5", 2))), Effect::Changed);
    assert_eq!(net.wanted(&Interfaces::Auto, &Interfaces::Auto)[&5].name, "cali5");
}

#[test]
fn the_same_again_is_nothing_new() {
    let mut net = net([NewLink(pair(5, "veth5", 2)), address(5, AddressScope::Universe)]);
    assert_eq!(net.take(&NewLink(pair(5, "veth5", 2))), Effect::Nothing);
    assert_eq!(net.take(&address(5, AddressScope::Universe)), Effect::Nothing);
}

#[test]
fn a_bridge_port_that_leaves_its_bridge_is_still_there() {
    let mut net = net([NewLink(pair(5, "veth5", 2))]);
    let mut port = link(5, "veth5", None);
    port.header.interface_family = AddressFamily::Bridge;
    assert_eq!(net.take(&DelLink(port)), Effect::Nothing);
    assert_eq!(role(&net, 5), Some(Role::Pod));
}

#[test]
fn an_interface_that_moves_away_asks_for_a_new_list() {
    let mut net = net([NewLink(link(5, "a", Some(InfoKind::Veth))), NewLink(link(6, "b", Some(InfoKind::Veth)))]);
    let mut moved = link(6, "b", Some(InfoKind::Veth));
    moved.attributes.push(LinkAttribute::NewNetnsId(3));
    assert_eq!(net.take(&DelLink(moved)), Effect::Relist);
    assert!(!net.contains(6));
}

#[test]
fn an_uplink_stays_one_until_it_disappears() {
    let mut net = net([NewLink(pair(2, "eth0", 0)), NewRoute(default_route(2))]);
    net.take(&DelRoute(default_route(2)));
    assert_eq!(role(&net, 2), Some(Role::External), "a flap takes no program away");

    net.take(&DelLink(pair(2, "eth0", 0)));
    net.take(&NewLink(pair(2, "veth2", 4)));
    assert_eq!(role(&net, 2), Some(Role::Pod), "the index of another interface");
}

#[test]
fn a_new_listing_forgets_what_is_gone() {
    let mut net = net([NewLink(pair(2, "eth0", 0)), NewRoute(default_route(2)), NewLink(pair(3, "veth3", 1))]);
    net.restart_listing();
    net.take(&NewLink(pair(2, "eth0", 0)));
    net.finish_listing();
    assert!(net.contains(2) && !net.contains(3));
    assert_eq!(role(&net, 2), Some(Role::External));
}

#[test]
fn the_nodes_addresses_are_those_that_others_reach() {
    let at = |address: &str| {
        let mut message = AddressMessage::default();
        message.header.index = 2;
        message.header.scope = AddressScope::Universe;
        message.attributes.push(AddressAttribute::Local(address.parse().expect("an address")));
        message
    };
    let all = ["192.0.2.1", "2001:db8::1", "127.0.0.1", "::1", "169.254.1.1", "fe80::1"];
    let mut net = net(all.map(|address| RouteNetlinkMessage::NewAddress(at(address))));
    let shown = |net: &Net| net.reachable().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(shown(&net), ["192.0.2.1", "2001:db8::1"]);
    // What kube-proxy in IPVS mode left behind: every cluster IP, none of them the node's.
    net.take(&RouteNetlinkMessage::NewLink(link(7, "kube-ipvs0", Some(InfoKind::Dummy))));
    let mut cluster_ip = at("10.96.0.1");
    cluster_ip.header.index = 7;
    net.take(&RouteNetlinkMessage::NewAddress(cluster_ip));
    assert_eq!(shown(&net), ["192.0.2.1", "2001:db8::1"]);
    assert_eq!(net.take(&RouteNetlinkMessage::DelAddress(at("192.0.2.1"))), Effect::Changed);
    assert_eq!(shown(&net), ["2001:db8::1"]);
}

#[test]
fn an_index_without_an_interface_has_no_name() {
    assert_eq!(name_of(1).as_deref(), Some("lo"));
    assert_eq!(name_of(u32::MAX >> 1), None);
}
