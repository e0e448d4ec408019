//! Interfaces and their roles, from messages as the kernel sends them.

use std::net::Ipv4Addr;

use super::{super::roles::Roles, *};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};

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

/// An address that is alone in its network, as that of a pod's gateway.
fn lone_address(index: u32) -> RouteNetlinkMessage {
    let RouteNetlinkMessage::NewAddress(mut message) = address(index, AddressScope::Universe) else { unreachable!() };
    message.header.prefix_len = 32;
    RouteNetlinkMessage::NewAddress(message)
}

fn port(mut link: LinkMessage, controller: u32) -> RouteNetlinkMessage {
    link.attributes.push(LinkAttribute::Controller(controller));
    RouteNetlinkMessage::NewLink(link)
}

fn default_route(index: u32) -> RouteMessage {
    default_route_of(index, RouteHeader::RT_TABLE_MAIN.into())
}

fn default_route_of(index: u32, table: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.attributes.push(RouteAttribute::Table(table));
    message.header.address_family = AddressFamily::Inet;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Oif(index));
    message
}

fn net(messages: impl IntoIterator<Item = RouteNetlinkMessage>) -> Net {
    named("auto", "auto", messages)
}

fn named(pods: &str, external: &str, messages: impl IntoIterator<Item = RouteNetlinkMessage>) -> Net {
    let [pods, external] = [pods, external].map(|text| text.parse().expect("well-formed"));
    let mut net = Net::new(&pods, &external);
    for message in messages {
        net.take(&message);
    }
    net
}

fn roles(net: &Net) -> Roles {
    net.roles(|_| false)
}

fn role(net: &Net, index: u32) -> Option<Role> {
    roles(net).links.get(&index).map(|wanted| wanted.role)
}

/// A round that lists these links.
fn list(net: &mut Net, links: impl IntoIterator<Item = LinkMessage>) {
    net.restart_listing();
    for link in links {
        net.take(&NewLink(link));
    }
    net.finish_listing();
}

use RouteNetlinkMessage::{DelLink, DelRoute, NewLink, NewRoute};

#[test]
fn a_pair_with_its_peer_elsewhere_is_a_pod() {
    let net = net([NewLink(pair(5, "veth5", 2)), NewLink(link(6, "veth6", Some(InfoKind::Veth)))]);
    assert_eq!(role(&net, 5), Some(Role::Pod));
    assert_eq!(role(&net, 6), None, "both ends here");
    assert_eq!(roles(&net).links[&5].peer_netns_id, 2);
}

#[test]
fn a_pods_link_with_the_gateways_address_stays_a_pods() {
    let uplink = || [NewLink(link(2, "eth0", None)), address(2, AddressScope::Universe)];
    let net = net(uplink().into_iter().chain([NewLink(pair(5, "veth5", 2)), lone_address(5)]));
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
    let wanted = roles(&net).links;
    assert!(wanted[&3].ethernet && !wanted[&4].ethernet);
}

#[test]
fn names_go_before_what_a_link_is() {
    let links = || [NewLink(pair(5, "up0", 2)), NewLink(pair(6, "pod1", 3)), NewLink(link(7, "eth0", None))];
    let net = named("auto", "up*", links());
    assert_eq!((role(&net, 5), role(&net, 6)), (Some(Role::External), Some(Role::Pod)));
    let net = named("eth0", "auto", links());
    assert_eq!(role(&net, 7), Some(Role::Pod));
    assert_eq!(role(&net, 6), None, "only what is named");
}

#[test]
fn a_rename_keeps_the_role() {
    let mut net = net([NewLink(pair(5, "tmp0", 2))]);
    assert_eq!(net.take(&NewLink(pair(5, "cali5", 2))), Effect::Changed);
    assert_eq!(roles(&net).links[&5].name, "cali5");
}

#[test]
fn a_link_that_loses_the_name_that_chose_it_keeps_its_role_and_is_named() {
    let mut net = named("auto", "eth*", [NewLink(link(2, "eth0", None))]);
    assert_eq!(net.renamed().count(), 0);
    net.take(&NewLink(link(2, "wan0", None)));
    assert_eq!(role(&net, 2), Some(Role::External));
    assert_eq!(net.renamed().collect::<Vec<_>>(), [("--external-interfaces", "eth0", "wan0")]);
    list(&mut net, [link(2, "wan0", None)]);
    assert_eq!(role(&net, 2), Some(Role::External), "after a round");
    net.take(&DelLink(link(2, "wan0", None)));
    net.take(&NewLink(link(2, "wan0", None)));
    assert_eq!(role(&net, 2), None, "the index of another interface");
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
fn a_pair_whose_default_route_is_deleted_for_good_is_a_pods_again() {
    let mut net = net([NewLink(pair(2, "veth2", 0)), NewRoute(default_route(2))]);
    net.take(&DelRoute(default_route(2)));
    list(&mut net, [pair(2, "veth2", 0)]);
    assert_eq!(role(&net, 2), Some(Role::External), "a lease may be renewed just now");
    net.take(&NewRoute(default_route(2)));
    for _ in 0..5 {
        list(&mut net, [pair(2, "veth2", 0)]);
    }
    assert_eq!(role(&net, 2), Some(Role::External), "it came back");
    net.take(&DelRoute(default_route(2)));
    for _ in 0..3 {
        list(&mut net, [pair(2, "veth2", 0)]);
    }
    assert_eq!(role(&net, 2), Some(Role::Pod));
}

#[test]
fn an_egress_gateway_leaves_a_pods_link_a_pods() {
    let gateway = || [NewLink(pair(5, "veth5", 2)), NewRoute(default_route_of(5, 100))];
    assert_eq!(role(&net(gateway()), 5), Some(Role::Pod));
    assert_eq!(role(&net(gateway().into_iter().chain([lone_address(5)])), 5), Some(Role::Pod));
    let second_uplink = gateway().into_iter().chain([address(5, AddressScope::Universe)]);
    assert_eq!(role(&net(second_uplink), 5), Some(Role::External), "policy routing by the node's address in a subnet");
    let of_a_bridge = [
        NewLink(link(3, "cni0", Some(InfoKind::Bridge))),
        address(3, AddressScope::Universe),
        port(pair(5, "veth5", 2), 3),
        NewRoute(default_route_of(3, 100)),
    ];
    let net = net(of_a_bridge);
    assert_eq!([3, 5].map(|index| role(&net, index)), [Some(Role::Bridge), Some(Role::Pod)]);
}

#[test]
fn a_bridge_with_a_device_is_external_and_its_pods_are_pods() {
    let net = net([
        NewLink(link(3, "br0", Some(InfoKind::Bridge))),
        address(3, AddressScope::Universe),
        // It had an address before it became a port.
        NewLink(link(2, "eth0", None)),
        address(2, AddressScope::Universe),
        NewRoute(default_route(2)),
        port(link(2, "eth0", None), 3),
        port(pair(5, "veth5", 2), 3),
    ]);
    let external = Some(Role::External);
    assert_eq!([2, 3, 5].map(|index| role(&net, index)), [external, external, Some(Role::Pod)]);
    assert_eq!([2, 3, 5].map(|index| roles(&net).links[&index].part), [Part::Port, Part::Bridge, Part::All]);
}

#[test]
fn a_bridge_of_a_node_in_a_container_is_external_and_no_port_of_it_is_a_pods() {
    let net = net([
        NewLink(link(3, "br0", Some(InfoKind::Bridge))),
        address(3, AddressScope::Universe),
        NewRoute(default_route(3)),
        port(pair(2, "eth0", 0), 3),
        NewLink(link(4, "cni0", Some(InfoKind::Bridge))),
        address(4, AddressScope::Universe),
        port(pair(5, "veth5", 2), 4),
    ]);
    let external = Some(Role::External);
    let expected = [external, external, Some(Role::Bridge), Some(Role::Pod)];
    assert_eq!([2, 3, 4, 5].map(|index| role(&net, index)), expected);
}

#[test]
fn bridges_with_tunnels_and_inner_pairs_stay_bridges_of_pods() {
    let net = net([
        NewLink(link(3, "weave", Some(InfoKind::Bridge))),
        address(3, AddressScope::Universe),
        port(link(4, "vxlan-6784", Some(InfoKind::Vxlan)), 3),
        port(link(5, "vethwe-bridge", Some(InfoKind::Veth)), 3),
    ]);
    assert_eq!([3, 4].map(|index| role(&net, index)), [Some(Role::Bridge), Some(Role::Tunnel)]);
}

#[test]
fn bonds_and_vlans_are_external_and_links_of_a_bond_are_not() {
    let net = net([
        NewLink(link(3, "bond0", Some(InfoKind::Bond))),
        address(3, AddressScope::Universe),
        NewLink(link(4, "bond0.100", Some(InfoKind::Vlan))),
        address(4, AddressScope::Universe),
        NewLink(link(2, "eth0", None)),
        address(2, AddressScope::Universe),
        port(link(2, "eth0", None), 3),
        NewLink(link(6, "vrf0", Some(InfoKind::Vrf))),
        port(link(7, "eth1", None), 6),
        address(7, AddressScope::Universe),
    ]);
    let external = Some(Role::External);
    assert_eq!([2, 3, 4, 7].map(|index| role(&net, index)), [None, external, external, external]);
}

#[test]
fn a_device_stays_external_without_its_address() {
    let mut net = net([NewLink(link(2, "eth0", None)), address(2, AddressScope::Universe)]);
    let RouteNetlinkMessage::NewAddress(gone) = address(2, AddressScope::Universe) else { unreachable!() };
    net.take(&RouteNetlinkMessage::DelAddress(gone));
    list(&mut net, [link(2, "eth0", None)]);
    assert_eq!(role(&net, 2), Some(Role::External), "a lease is renewed");
}

#[test]
fn without_a_known_link_all_are_external_that_may_be() {
    let found = |net: &Net| roles(net).no_external_link.map(|none| none.to_string()).unwrap_or_default();
    let links = || {
        [
            NewLink(pair(2, "eth0", 0)),
            address(2, AddressScope::Universe),
            NewLink(pair(5, "veth5", 2)),
            lone_address(5),
            NewLink(link(3, "cni0", Some(InfoKind::Bridge))),
            address(3, AddressScope::Universe),
            NewLink(link(4, "vx0", Some(InfoKind::Vxlan))),
            NewLink(link(6, "eth1", None)),
        ]
    };
    let pair_alone = net(links());
    let expected = [Some(Role::External), Some(Role::Pod), Some(Role::Bridge), Some(Role::Tunnel), None];
    assert_eq!([2, 5, 3, 4, 6].map(|index| role(&pair_alone, index)), expected);
    assert!(found(&pair_alone).contains("taken for one: eth0"), "{}", found(&pair_alone));
    let in_pods_network = pair_alone.roles(|_| true).links;
    assert_eq!(in_pods_network[&2].role, Role::Pod, "the gateway of a pods' network");
    let by_tunnel = net(links().into_iter().chain([NewRoute(default_route(4))]));
    assert_eq!((role(&by_tunnel, 2), found(&by_tunnel).as_str()), (Some(Role::Pod), ""), "a tunnel leads outside");

    let uplink = || [NewLink(link(7, "eth2", None)), address(7, AddressScope::Universe)];
    let unmatched = named("auto", "wan*", uplink());
    assert_eq!(role(&unmatched, 7), Some(Role::External));
    assert!(found(&unmatched).contains("--external-interfaces; taken for one: eth2"), "{}", found(&unmatched));
    assert!(found(&net(uplink())).is_empty());
    assert!(found(&net([])).contains("none is taken for one"));
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
