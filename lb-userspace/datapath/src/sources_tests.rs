//! Which networks the maps get, and the SNAT address of each link.

use super::*;

fn candidate(ifindex: u32, address: &str) -> Candidate {
    let address = address.parse().expect("an address");
    Candidate { ifindex, address, standing: Standing::Primary, is_uplink: false, is_loopback: false }
}

fn of(candidates: &[Candidate], allowed: &[&str], surroundings: &Surroundings) -> Wanted {
    let allowed: Vec<IpNet> = allowed.iter().map(|text| text.parse().expect("a network")).collect();
    let own = candidates.iter().map(|found| found.address).collect();
    wanted(
        candidates,
        &own,
        &DatapathSettings { snat_addresses: allowed, ..DatapathSettings::default() },
        surroundings,
        &Wanted::default(),
    )
}

fn shown<A: ToString>(addresses: &BTreeMap<u32, Vec<A>>) -> Vec<(u32, String)> {
    let texts = |all: &Vec<A>| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    addresses.iter().map(|(ifindex, all)| (*ifindex, texts(all))).collect()
}

fn pairs(expected: &[(u32, &str)]) -> Vec<(u32, String)> {
    expected.iter().map(|(ifindex, address)| (*ifindex, (*address).to_owned())).collect()
}

#[test]
fn each_link_has_its_own_address_and_the_uplinks_serves_the_rest() {
    let mut uplink = candidate(3, "192.0.2.1");
    uplink.is_uplink = true;
    let mut loopback = candidate(1, "10.255.0.1");
    loopback.is_loopback = true;
    let all = [candidate(2, "10.0.0.1"), uplink, candidate(4, "2001:db8::1"), loopback];
    let wanted = of(&all, &[], &Surroundings::default());
    assert_eq!(shown(&wanted.masquerade4), pairs(&[(0, "192.0.2.1"), (2, "10.0.0.1"), (3, "192.0.2.1")]));
    assert_eq!(shown(&wanted.masquerade6), pairs(&[(0, "2001:db8::1"), (4, "2001:db8::1")]));
    let wanted = of(&all, &["10.0.0.0/24"], &Surroundings::default());
    assert_eq!(shown(&wanted.masquerade4), pairs(&[(0, "10.0.0.1"), (2, "10.0.0.1")]));
    assert!(wanted.masquerade6.is_empty());
}

#[test]
fn of_several_the_nodes_own_one_is_taken_and_none_that_will_not_last() {
    let mut passing = candidate(2, "2001:db8::1");
    passing.standing = Standing::Passing;
    let mut private = candidate(2, "2001:db8::2");
    private.standing = Standing::Secondary;
    let lasting = [candidate(2, "2001:db8::4"), candidate(2, "2001:db8::3")];
    let all = [passing, private, lasting[0], lasting[1]];
    let mut surroundings = Surroundings::default();
    assert_eq!(shown(&of(&all, &[], &surroundings).masquerade6)[1].1, "2001:db8::3");
    surroundings.primary = ["2001:db8::4".parse().expect("an address")].into();
    assert_eq!(shown(&of(&all, &[], &surroundings).masquerade6), pairs(&[(0, "2001:db8::4"), (2, "2001:db8::4")]));
}

#[test]
fn all_addresses_of_a_link_that_are_named_stand_in_and_no_more_than_have_room() {
    let mut own: Vec<Candidate> = (1..=6).map(|last| candidate(2, &format!("192.0.2.{last}"))).collect();
    own[1].standing = Standing::Passing;
    own[3].is_uplink = true;
    own.extend((1..=2).map(|last| Candidate { is_loopback: true, ..candidate(1, &format!("203.0.113.{last}")) }));
    let surroundings = Surroundings {
        primary: ["192.0.2.4".parse().expect("an address")].into(),
        published: ["192.0.2.5".parse().expect("an address")].into(),
        ..Surroundings::default()
    };
    let all = "192.0.2.4 192.0.2.1 192.0.2.3 192.0.2.6";
    let both = ["192.0.2.0/24", "203.0.113.0/24"];
    assert_eq!(shown(&of(&own, &both, &surroundings).masquerade4), pairs(&[(0, all), (2, all)]));
    let alone = pairs(&[(0, "192.0.2.4"), (2, "192.0.2.4")]);
    assert_eq!(shown(&of(&own, &[], &surroundings).masquerade4), alone, "one, where none is named");
    let loopback = pairs(&[(0, "203.0.113.1 203.0.113.2")]);
    assert_eq!(shown(&of(&own, &both[1..], &surroundings).masquerade4), loopback, "for every link");
}

#[test]
fn an_address_that_a_service_is_published_at_is_the_last_choice() {
    let published =
        |text: &str| Surroundings { published: [text.parse().expect("an address")].into(), ..Surroundings::default() };
    let all = [candidate(2, "192.0.2.1"), candidate(2, "192.0.2.2"), candidate(3, "198.51.100.1")];
    let wanted = of(&all, &[], &published("192.0.2.1"));
    assert_eq!(shown(&wanted.masquerade4), pairs(&[(0, "192.0.2.2"), (2, "192.0.2.2"), (3, "198.51.100.1")]));
    let wanted = of(&all, &[], &published("198.51.100.1"));
    assert_eq!(shown(&wanted.masquerade4), pairs(&[(0, "192.0.2.1"), (2, "192.0.2.1")]), "no entry: that of any link");
    let only = [candidate(2, "192.0.2.1")];
    assert_eq!(shown(&of(&only, &[], &published("192.0.2.1")).masquerade4), pairs(&[(0, "192.0.2.1")]));
    // The node's own address does not move.
    let own = Surroundings { primary: ["192.0.2.1".parse().expect("an address")].into(), ..published("192.0.2.1") };
    assert_eq!(shown(&of(&only, &[], &own).masquerade4), pairs(&[(0, "192.0.2.1"), (2, "192.0.2.1")]));
}

#[test]
fn the_address_that_stands_in_stays_while_the_node_is_not_known() {
    let uplink = |address: &str| Candidate { is_uplink: true, ..candidate(2, address) };
    let all = [uplink("192.0.2.1"), uplink("192.0.2.2"), candidate(3, "10.0.0.1"), candidate(3, "10.0.0.2")];
    let own: BTreeSet<IpAddr> = all.iter().map(|found| found.address).collect();
    let written = |all: &[Candidate], surroundings: &Surroundings, held: &Wanted| {
        wanted(all, &own, &DatapathSettings::default(), surroundings, held)
    };
    let known = Surroundings {
        pods: Some(BTreeSet::new()),
        primary: ["192.0.2.2".parse().expect("an address")].into(),
        ..Surroundings::default()
    };
    let before = written(&all, &known, &Wanted::default());
    let expected = pairs(&[(0, "192.0.2.2"), (2, "192.0.2.2"), (3, "10.0.0.1")]);
    assert_eq!(shown(&before.masquerade4), expected);
    // The agent starts anew, and the API has not sent the Node yet; something is published at the address besides.
    let unknown = Surroundings { published: known.primary.clone(), ..Surroundings::default() };
    let after = written(&all, &unknown, &before);
    assert_eq!(shown(&after.masquerade4), expected);
    assert_eq!(
        shown(&written(&all, &unknown, &Wanted::default()).masquerade4)[1].1,
        "192.0.2.1",
        "by itself another one"
    );
    // An address that the node has no more is no SNAT address.
    let fewer = shown(&written(&[all[0], all[2]], &unknown, &after).masquerade4);
    assert_eq!(fewer, pairs(&[(0, "192.0.2.1"), (2, "192.0.2.1"), (3, "10.0.0.1")]));
    let other = Surroundings { primary: ["192.0.2.1".parse().expect("an address")].into(), ..known };
    assert_eq!(shown(&written(&all, &other, &after).masquerade4)[1].1, "192.0.2.1", "the Node is the truth");
}

#[test]
fn networks_of_pods_stay_while_the_node_is_not_known() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let networks = [(network("10.244.1.0/24"), network_flags::PODS), (network("192.0.2.9/32"), network_flags::NODE)];
    let held = Wanted { networks: networks.into(), ..Wanted::default() };
    let own = BTreeSet::from(["192.0.2.1".parse().expect("an address")]);
    let settings = DatapathSettings { cluster_cidrs: vec![network("fd00:10::/56")], ..DatapathSettings::default() };
    let written = |surroundings: &Surroundings| wanted(&[], &own, &settings, surroundings, &held).networks;
    let mut surroundings = Surroundings::default();
    let node = (network("192.0.2.1/32"), network_flags::NODE);
    let cluster = (network("fd00:10::/56"), network_flags::PODS);
    assert_eq!(written(&surroundings), [(network("10.244.1.0/24"), network_flags::PODS), node, cluster].into());
    surroundings.pods = Some([network("10.244.2.0/24")].into());
    assert_eq!(written(&surroundings), [(network("10.244.2.0/24"), network_flags::PODS), node, cluster].into());
}

#[test]
fn the_other_nodes_stay_until_others_are_known_and_the_settings_add_to_them() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let networks = [(network("192.0.2.7/32"), network_flags::PEER), (network("192.0.2.9/32"), network_flags::NODE)];
    let held = Wanted { networks: networks.into(), ..Wanted::default() };
    let written = |surroundings: &Surroundings| {
        let settings = DatapathSettings { dsr_peers: vec![network("fd00:1::/64")], ..DatapathSettings::default() };
        wanted(&[], &BTreeSet::new(), &settings, surroundings, &held).networks.into_keys().collect::<Vec<_>>()
    };
    let pods = Some(BTreeSet::new());
    let mut surroundings = Surroundings { pods, ..Surroundings::default() };
    assert_eq!(written(&surroundings), [network("192.0.2.7/32"), network("fd00:1::/64")]);
    surroundings.peers =
        Some(Arc::new(["192.0.2.8".parse().expect("an address"), "fd00:1::8".parse().expect("an address")].into()));
    assert_eq!(written(&surroundings), [network("192.0.2.8/32"), network("fd00:1::/64"), network("fd00:1::8/128")]);
    surroundings.peers = Some(Arc::default());
    assert_eq!(written(&surroundings), [network("fd00:1::/64")]);
}

/// By the definition: everything that holds a network says something of it.
#[test]
fn a_network_is_all_that_those_around_it_are() {
    let texts = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.0.0.0/16",
        "10.0.0.0/32",
        "10.0.1.0/24",
        "10.0.1.9/32",
        "10.1.0.0/16",
        "11.0.0.1/32",
        "::/0",
        "fd00::/8",
        "fd00::/64",
        "fd00:1::1/128",
    ];
    let all: Vec<IpNet> = texts.iter().map(|text| text.parse().expect("a network")).collect();
    for number in 0..1_u32 << all.len() {
        // Which of them are there, and every third of those says one thing, …
        let of = |at: usize| 1 << ((at + number as usize) % 3);
        let some = || all.iter().enumerate().filter(|(at, _)| number & 1 << at != 0);
        let mut networks: BTreeMap<IpNet, u32> = some().map(|(at, network)| (*network, of(at))).collect();
        inherit(&mut networks);
        for (network, flags) in networks {
            let around = some().filter(|(_, other)| other.contains(&network));
            assert_eq!(flags, around.fold(0, |flags, (at, _)| flags | of(at)), "{network} in {number:b}");
        }
    }
}

#[test]
fn a_network_within_another_one_is_both() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let own = BTreeSet::from(["192.0.2.1".parse().expect("an address")]);
    let (cluster_cidrs, dsr_peers) = (vec![network("192.0.0.0/16")], vec![network("192.0.2.0/24")]);
    let settings = DatapathSettings { cluster_cidrs, dsr_peers, ..DatapathSettings::default() };
    let wanted = wanted(&[], &own, &settings, &Surroundings::default(), &Wanted::default());
    let all = network_flags::PODS | network_flags::PEER;
    let flags: Vec<u32> = wanted.networks.into_values().collect();
    assert_eq!(flags, [network_flags::PODS, all, all | network_flags::NODE], "the longest prefix alone is looked at");
}

#[test]
fn service_cidrs_stay_until_others_are_known_and_the_settings_add_to_them() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let networks =
        [(network("10.96.0.0/12"), network_flags::SERVICES), (network("10.244.0.0/16"), network_flags::PODS)];
    let held = Wanted { networks: networks.into(), ..Wanted::default() };
    let settings = DatapathSettings { service_cidrs: vec![network("fd00:96::/112")], ..DatapathSettings::default() };
    let written = |surroundings: &Surroundings| {
        let wanted = wanted(&[], &BTreeSet::new(), &settings, surroundings, &held);
        assert!(wanted.networks.values().all(|flags| *flags == network_flags::SERVICES));
        wanted.networks.into_keys().collect::<Vec<_>>()
    };
    let mut surroundings = Surroundings { pods: Some(BTreeSet::new()), ..Surroundings::default() };
    assert_eq!(written(&surroundings), [network("10.96.0.0/12"), network("fd00:96::/112")]);
    surroundings.service_cidrs = Some(Arc::new([network("10.112.0.0/16"), network("10.113.0.0/16")].into()));
    assert_eq!(written(&surroundings), [network("10.112.0.0/16"), network("10.113.0.0/16"), network("fd00:96::/112")]);
    surroundings.service_cidrs = Some(Arc::default());
    assert_eq!(written(&surroundings), [network("fd00:96::/112")]);
}

#[test]
fn addresses_of_pods_and_nodes_within_a_service_cidr_are_not_services() {
    let network = |text: &str| text.parse::<IpNet>().expect("a network");
    let settings = DatapathSettings {
        cluster_cidrs: vec![network("10.0.0.0/8"), network("10.96.4.0/24")],
        service_cidrs: vec![network("10.96.0.0/12"), network("10.96.4.128/25"), network("fd00:96::/112")],
        dsr_peers: vec![network("10.96.0.7/32")],
        ..DatapathSettings::default()
    };
    let own = ["10.96.0.10", "fd00:96::a", "192.0.2.1"].map(|address| address.parse().expect("an address")).into();
    let wanted = wanted(&[], &own, &settings, &Surroundings::default(), &Wanted::default()).networks;
    let services = wanted.iter().filter(|(_, flags)| **flags & network_flags::SERVICES != 0);
    let services: Vec<(String, u32)> = services.map(|(network, flags)| (network.to_string(), *flags)).collect();
    let both = network_flags::PODS | network_flags::SERVICES;
    let expected = [("10.96.0.0/12", both), ("10.96.4.128/25", both), ("fd00:96::/112", network_flags::SERVICES)];
    assert_eq!(services, expected.map(|(network, flags)| (network.to_owned(), flags)));
    let [v4, v6] = covers(&wanted);
    assert!(v4.may_hold(&[10, 96, 0, 99]) && v4.may_hold(&[10, 111, 0, 1]) && !v4.may_hold(&[10, 244, 0, 1]));
    let address = |text: &str| text.parse::<Ipv6Addr>().expect("an address").octets();
    assert!(v6.may_hold(&address("fd00:96::63")) && !v6.may_hold(&address("fd00:97::63")));
    assert_eq!(covers(&BTreeMap::from([(network("10.0.0.0/8"), network_flags::PODS)])), [Cover::default(); FAMILIES]);
}
