//! `ballast cleanup --kube-proxy` after the real kube-proxy: nothing of it is left, rules of others are untouched, and its connections live
//! on. Needs root, a kube-apiserver, `nft`, `iptables` and `ipset`.

use std::process::Command;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::routed::{KubeProxies, Rules};
use lb_tests::topology::{Node, NodeOptions};

/// Rules and sets of others, among them those that are named as kube-proxy's.
const NFTABLES: &str = "\
    nft add table ip mine
    nft add chain ip mine KUBE-SERVICES
    nft add chain ip mine post { type nat hook postrouting priority 100 ; }
    nft add rule ip mine post ip saddr 10.99.0.0/16 masquerade
    nft add rule ip mine post jump KUBE-SERVICES";
const IPTABLES: &str = "\
    iptables -t nat -N MINE
    iptables -t nat -A PREROUTING -m comment --comment KUBE-SERVICES -j MINE
    iptables -t nat -A POSTROUTING -s 10.99.0.0/16 -j MASQUERADE
    iptables -t mangle -N KUBE-IPTABLES-HINT
    iptables -t mangle -N KUBE-KUBELET-CANARY
    iptables -N KUBE-FIREWALL
    iptables -A KUBE-FIREWALL -d 127.0.0.0/8 -s 203.0.113.1 -j DROP
    iptables -A OUTPUT -j KUBE-FIREWALL
    iptables -N KUBE-ROUTER-FORWARD
    iptables -A FORWARD -j KUBE-ROUTER-FORWARD
    ip6tables -t nat -N MINE
    ip6tables -t nat -A PREROUTING -j MINE";
/// What IPVS mode leaves beside its rules. The kernel of the test has no IPVS.
const IPVS: &str = "\
    ipset create KUBE-CLUSTER-IP hash:ip,port
    ipset create KUBE-6-NODE-PORT-TCP bitmap:port range 0-65535
    ipset create KUBE-SRC-OF-ANOTHER hash:ip
    ip link add kube-ipvs0 type bridge";

fn run(node: &Node, rules: Rules, lines: &str) {
    let suffix = if rules == Rules::OldIptables { "-legacy" } else { "-nft" };
    for line in lines.lines() {
        let mut words = line.split_whitespace();
        let program = words.next().unwrap();
        let program = if program.ends_with("tables") { format!("{program}{suffix}") } else { program.to_owned() };
        let mut command = Command::new(&program);
        command.args(words);
        let output = node.netns().run(|| command.output()).unwrap_or_else(|error| panic!("{program}: {error}"));
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The rules of both families, without counters, and without chains and tables of the kernel's own that are empty. kube-proxy writes the
/// kubelet's `KUBE-FIREWALL` anew.
fn listed(node: &Node, rules: Rules) -> String {
    let text = [true, false].map(|v4| rules.list(node, v4).unwrap()).concat();
    if rules == Rules::Nftables {
        return text;
    }
    let own = |line: &&str| {
        let is_chain = line.starts_with(':') && line.contains(" - ");
        (is_chain || line.starts_with("-A")) && !line.contains("KUBE-FIREWALL")
    };
    let lines = text.lines().filter(own).map(|line| line.split(" [").next().unwrap().to_owned() + "\n");
    lines.collect()
}

fn said(agent: &Agent, arguments: &[&str]) -> (bool, String) {
    let output = agent.cli(&[&["cleanup", "--kube-proxy"], arguments].concat()).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn sets(node: &Node) -> String {
    let mut command = Command::new("ipset");
    command.args(["list", "-name"]);
    String::from_utf8(node.netns().run(|| command.output()).unwrap().stdout).unwrap()
}

fn nothing_is_left_of(rules: Rules) {
    let fixture = Fixture::new("kp-cleanup", Pods::Routed, 1, NodeOptions::default());
    let node = &fixture.node;
    for name in ["close", "time_wait", "fin_wait", "last_ack"] {
        node.namespace().sysctl(&format!("net/netfilter/nf_conntrack_tcp_timeout_{name}"), "1").unwrap();
    }
    let agent = Agent::prepare(node, &[]).unwrap();
    assert_eq!(said(&agent, &[]), (true, "nothing of kube-proxy is there\n".to_owned()));
    run(node, rules, if rules == Rules::Nftables { NFTABLES } else { IPTABLES });
    let before = listed(node, rules);
    assert_eq!(said(&agent, &[]).1, "nothing of kube-proxy is there\n", "rules of others");

    let service = fixture.web();
    let manifest = Manifest::of([service.clone()]);
    let mut kube_proxies = KubeProxies::start_with(rules, &fixture.topology, &[node], &manifest).unwrap();
    let frontends = service.frontends(Protocol::Tcp);
    let mut streams: Vec<Stream> =
        frontends.iter().map(|to| Stream::connect(fixture.client.netns(), *to).unwrap()).collect();
    for stream in &mut streams {
        assert_eq!(stream.ask("by kube-proxy").unwrap().server, "b0");
    }
    let (done, text) = said(&agent, &[]);
    assert!(!done && text.contains("kube-proxy runs in this network namespace"), "{text}");
    kube_proxies.stop();
    run(node, rules, IPVS);

    let full = listed(node, rules);
    let (done, planned) = said(&agent, &["--dry-run"]);
    assert!(done && planned.contains("would remove") && planned.contains("would add table ballast-nat"), "{planned}");
    assert_eq!(listed(node, rules), full, "a dry run changes nothing");
    let (done, text) = said(&agent, &[]);
    assert!(done, "{text}");
    assert_eq!(text, planned.replace("would remove", "removed").replace("would add", "added"));
    for what in ["ipset KUBE-CLUSTER-IP", "ipset KUBE-6-NODE-PORT-TCP", "link kube-ipvs0"] {
        assert!(text.contains(&format!("removed {what}\n")), "{what}: {text}");
    }
    assert_eq!(sets(node), "KUBE-SRC-OF-ANOTHER\n");
    let after = listed(node, rules);
    if rules != Rules::Nftables {
        assert_eq!(after, before, "rules of others");
        let has_firewall = |v4| rules.list(node, v4).unwrap().contains("KUBE-FIREWALL");
        assert!(has_firewall(true), "a kubelet has rules of IPv4");
        assert!(!has_firewall(false), "none has rules of IPv6");
    }
    assert!(!after.contains("kube-proxy") && after.contains("10.99.0.0/16"), "{after}");
    for stream in &mut streams {
        assert_eq!(stream.ask("without its rules").unwrap().server, "b0", "{rules:?}");
    }
    let (done, text) = said(&agent, &[]);
    assert!(done && text.lines().all(|line| line.starts_with("kept table")), "{text}");

    for stream in streams {
        stream.end().unwrap();
    }
    eventually("no connection is translated", SOON, || {
        let (done, text) = said(&agent, &[]);
        assert!(done, "{text}");
        (text == "nothing of kube-proxy is there\n").then_some(())
    });
    assert_eq!(listed(node, rules), before, "rules of others");
}

#[test]
fn nothing_is_left_of_the_nftables_mode() {
    nothing_is_left_of(Rules::Nftables);
}

#[test]
fn nothing_is_left_of_the_iptables_mode() {
    nothing_is_left_of(Rules::Iptables);
}

#[test]
fn nothing_is_left_of_the_iptables_mode_on_the_old_iptables() {
    nothing_is_left_of(Rules::OldIptables);
}

/// As in the image: the kernel is asked, and the report says what it takes.
#[test]
fn the_old_iptables_without_its_programs_is_named() {
    let fixture = Fixture::new("kp-legacy", Pods::Routed, 0, NodeOptions::default());
    let node = &fixture.node;
    run(node, Rules::OldIptables, "iptables -t nat -N KUBE-SERVICES");
    let mut command = Command::new(lb_tests::agent::binary().unwrap());
    command.args(["cleanup", "--kube-proxy"]).env("PATH", "/nonexistent");
    let output = node.netns().run(|| command.output()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && text.contains("iptables-legacy-save is not here"), "{text}");
}
