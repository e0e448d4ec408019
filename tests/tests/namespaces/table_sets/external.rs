//! Sets of tables and external clients, whose connections are masqueraded: by XDP, and by tc filters as kernels without TCX have them.

use lb_tests::agent::Agent;
use lb_tests::external_client::{DNS, ExternalClient, HTTP};

use super::paused;
use super::settle;
use super::traffic::{Amount, Frontends, Traffic};

/// Ended connections keep their SNAT ports for a minute: no more new ones than there are ports.
fn amount() -> Amount {
    Amount { held: lb_seed::short_or_long(80, 400), new: 60 }
}
const SIZES: [&str; 2] = ["--map-sizes=flows4=65536,flows6=65536", "--map-sizes=flows4=16384,flows6=16384,slots=65536"];

fn switch_under(subject: &str, flags: [&str; 2]) {
    let mut scene = ExternalClient::with(subject, &[&flags[..], &SIZES[..1]].concat(), |service| service);
    let root = scene.nodes[0].bpffs().join("ballast");
    let mut before = settle(&root, "the first start");
    let places = [scene.client.netns().clone(), scene.client.netns().clone()];
    let frontends = Frontends { tcp: scene.frontends(HTTP).to_vec(), udp: scene.frontends(DNS).to_vec() };
    let traffic = Traffic::start(&places, &frontends, amount());
    traffic.check("before");
    for sizes in [SIZES[1], SIZES[0]].into_iter().cycle().take(lb_seed::short_or_long(2, 4)) {
        scene.agent.kill();
        let all = [&["--external-ips", "on"], &flags[..], &[sizes]].concat();
        let next = Agent::prepare(&scene.nodes[0], &all).unwrap();
        std::mem::forget(std::mem::replace(&mut scene.agent, next)); // The next one cleans up.
        scene.agent.restart().unwrap();
        let set = settle(&root, sizes);
        assert_ne!(set, before, "another set is in force");
        traffic.check(sizes);
        before = set;
    }
}

#[test]
fn external_clients_go_on_at_each_write_of_an_agent_that_moves_their_connections() {
    let flags = ["--external-ips", "on", "--xdp-mode=generic"];
    let mut scene = ExternalClient::with("pausedexternal", &[&flags[2..], &SIZES[..1]].concat(), |service| service);
    let root = scene.nodes[0].bpffs().join("ballast");
    settle(&root, "the first start");
    let frontends = Frontends { tcp: scene.frontends(HTTP).to_vec(), udp: scene.frontends(DNS).to_vec() };
    let mut clients = paused::Clients::new(scene.client.netns(), &frontends);
    scene.agent.kill();
    let next = Agent::prepare(&scene.nodes[0], &[&flags[..], &[SIZES[1]]].concat()).unwrap();
    std::mem::forget(std::mem::replace(&mut scene.agent, next)); // The next one cleans up.
    paused::restart(&mut scene.agent, &root, &mut clients);
}

#[test]
fn connections_of_external_clients_move_under_xdp() {
    switch_under("setsxdp", ["--xdp-mode=generic", "--tc-attach=auto"]);
}

#[test]
fn connections_of_external_clients_move_under_tc_filters() {
    switch_under("setsclsact", ["--xdp-mode=off", "--tc-attach=clsact"]);
}
