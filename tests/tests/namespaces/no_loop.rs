//! What is sent to an address of services and served by nothing never leaves by the default route: not refused ports, not strays, not
//! other protocols. Needs root and BPF.

use std::net::IpAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{External, Manifest};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::eventually;
use lb_tests::strays::{GRE, Gateway, send, strays};
use lb_tests::topology::NodeOptions;

/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_secs(30);

fn addresses(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|text| text.parse().unwrap())
}

#[test]
fn nothing_that_is_sent_to_an_address_of_services_goes_on_to_the_router() {
    let fixture = Fixture::new("noloop", Pods::Routed, 1, NodeOptions::default());
    let outside = fixture.topology.outside("outside", &fixture.node).unwrap();
    let (balanced, external) =
        (addresses(["198.51.100.10", "2001:db8:5::10"]), addresses(["203.0.113.7", "2001:db8:7::7"]));
    let node = fixture.node.addresses();
    for address in balanced.iter().chain(&external) {
        outside.namespace().ip(&format!("route add {address} via {}", node.like(*address))).unwrap();
    }
    let own = External { external_ips: external.to_vec(), load_balancer_ips: balanced.to_vec(), ..External::default() };
    let service = fixture.web().with(own);
    let cluster = service.cluster_ips.both();
    let agent = fixture.agent(&Manifest::of([service]), &["--external-ips", "on"]);
    let gateway = Gateway::watch(&fixture.topology).unwrap();

    let mut sent = 0;
    let before = Counters::read(agent.bpffs()).unwrap();
    let senders = [(outside.netns(), true), (fixture.client.netns(), false), (fixture.node.netns(), false)];
    for (from, is_outside) in senders {
        let own: Vec<IpAddr> =
            cluster.into_iter().chain(balanced).chain(external.into_iter().filter(|_| is_outside)).collect();
        for (to, (protocol, payload)) in
            own.iter().flat_map(|to| strays(*to).into_iter().map(move |stray| (*to, stray)))
        {
            send(from, to, protocol, &payload).unwrap();
            sent += 1;
        }
    }
    let refused = || {
        let after = Counters::read(agent.bpffs()).unwrap();
        (after.since(&before, Outcome::RefusedUnserved), after.line_since(&before))
    };
    eventually("all are refused", LIMIT, || (refused().0 >= sent).then_some(()));
    assert_eq!(refused().0, sent, "{}", refused().1);
    let ours: Vec<IpAddr> = cluster.into_iter().chain(balanced).chain(external).collect();
    let seen = gateway.seen();
    let gone: Vec<_> = seen.iter().filter(|(to, _)| ours.contains(to)).collect();
    assert!(gone.is_empty(), "{gone:?}");

    // What a pod sends to another port of an external IP may be for the owner of the address; and the watch is awake.
    for to in external {
        send(fixture.client.netns(), to, GRE, &[0; 8]).unwrap();
        eventually("it went on", LIMIT, || gateway.seen().contains(&(to, GRE)).then_some(()));
    }
}
