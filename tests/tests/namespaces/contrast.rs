//! The table of external clients with the real kube-proxy in place of Ballast: it differs in what the manual lists, and in nothing else.

use std::collections::BTreeMap;

use lb_tests::agent::Manifest;
use lb_tests::routed::{Contrast, DIFFERENCES, KubeProxies, Network, Unserved, wrong_at_unserved};
use lb_tests::topology::{SERVICE_NET4, SERVICE_NET6};

use crate::north_south::chosen;

#[test]
fn kube_proxy_differs_as_the_manual_says() {
    let network = Network::new("contrast").unwrap();
    let manifest = Manifest::of(network.services());
    let nodes: Vec<_> = network.nodes.iter().collect();
    let kube_proxies = KubeProxies::start(&network.topology, &nodes, &manifest).unwrap();
    let cells = chosen();
    let all = Contrast::run(&network, &cells);
    let unserved = wrong_at_unserved(&network, Unserved::with_kube_proxy).unwrap();
    kube_proxies.check().unwrap();
    assert!(unserved.is_empty(), "{}", unserved.concat());
    assert_eq!(all.len(), cells.len(), "cells that nobody asked for");
    let wrong: Vec<String> = all
        .iter()
        .filter(|contrast| !contrast.is_right())
        .map(|Contrast { cell, found, expected }| {
            let name = expected.map_or("nothing", |difference| difference.name);
            format!("{cell:?}: {:?} with Ballast, {name} expected: {found:?}\n", cell.due())
        })
        .collect();
    let mut found: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for contrast in &all {
        let name = contrast.expected.map_or("no difference", |difference| difference.name);
        let (cells, differ) = found.entry(name).or_default();
        *cells += 1;
        *differ += usize::from(contrast.differs());
    }
    assert!(wrong.is_empty(), "{} of {} cells are wrong:\n{}", wrong.len(), cells.len(), wrong.concat());
    let shown = |name: &str| found.get(name).is_some_and(|(_, differ)| *differ > 0);
    let absent: Vec<&str> = DIFFERENCES.iter().map(|difference| difference.name).filter(|name| !shown(name)).collect();
    assert_eq!(absent, Vec::<&str>::new(), "differences that did not occur");
}

/// With Ballast in its place, by the same addresses and ports.
#[test]
fn what_no_service_has_ends_as_with_kube_proxy() {
    let mut network = Network::new("unserved").unwrap();
    let manifest = Manifest::of(network.services());
    network.start(&manifest, &[&format!("--service-cidr={SERVICE_NET4},{SERVICE_NET6}")]).unwrap();
    let wrong = wrong_at_unserved(&network, Unserved::with_ballast).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn the_manual_lists_every_difference() {
    let page = include_str!("../../../docs/src/kube-proxy.md");
    let listed = |name: &str| page.lines().any(|line| line.starts_with(&format!("| {name} |")));
    let missing: Vec<_> = DIFFERENCES.iter().map(|known| known.name).filter(|name| !listed(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}
