//! Ballast's plan against the real kube-proxy's rules: random clusters, and for every frontend who serves it.

use lb_seed::short_or_long;
use lb_tests::cluster::stub::selector::Query;
use lb_tests::kube_proxy_diff::{self, compare::Comparison, intended_differences::KNOWN};
use serde_json::json;

/// How many clusters are compared at most: of so many, some show each known difference.
const CLUSTERS_MAX: usize = 5_000;

#[test]
fn ballast_serves_what_kube_proxy_serves() {
    // Of the settings. The short form goes on until nothing is missing, which one or two batches mostly show.
    let batches = short_or_long(1, 10);
    let mut comparison = Comparison::default();
    loop {
        let differing = kube_proxy_diff::run(&mut comparison, batches, lb_seed::of_run()).expect("a comparison");
        for cluster in &differing {
            println!("{cluster}");
        }
        assert_eq!(comparison.differences, 0, "no decision explains these differences\n{comparison}");
        let unseen: Vec<_> =
            KNOWN.iter().map(|known| known.name).filter(|name| !comparison.known.contains_key(name)).collect();
        if comparison.clusters >= CLUSTERS_MAX || unseen.is_empty() {
            println!("{comparison}");
            assert_eq!(unseen, Vec::<&str>::new(), "known differences that no cluster shows");
            return;
        }
    }
}

/// With one input less Ballast serves otherwise, and the comparison finds it.
#[test]
fn whatever_ballast_misses_is_found() {
    let found = kube_proxy_diff::run_distorted(lb_seed::of_run(), short_or_long(25, 100)).expect("a comparison");
    for (name, differences) in found {
        println!("without {name}: {differences} packets differ");
        assert_eq!(differences == 0, name == "nothing", "without {name}");
    }
}

#[test]
fn the_manual_lists_every_known_difference() {
    let page = include_str!("../../../docs/src/kube-proxy.md");
    let listed = |name: &str| page.lines().any(|line| line.to_lowercase().starts_with(&format!("| {name} |")));
    let missing: Vec<_> = KNOWN.iter().map(|known| known.name).filter(|name| !listed(&name.to_lowercase())).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn the_stub_api_understands_kube_proxys_selectors() {
    let query = Query::parse(
        "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&fieldSelector=spec.clusterIP%21%3DNone&watch=true",
    );
    assert!(query.is("watch") && !query.is("sendInitialEvents"));
    let selector = query.selector();
    let mut service = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"clusterIP": "10.96.0.1"}});
    assert!(selector.admits(&service));
    service["spec"]["clusterIP"] = "None".into();
    assert!(!selector.admits(&service));
    service["spec"]["clusterIP"] = "10.96.0.1".into();
    service["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "other".into();
    assert!(!selector.admits(&service));
    let query = Query::parse("fieldSelector=metadata.name%3Dnode-a");
    assert!(query.selector().admits(&json!({"metadata": {"name": "node-a"}})));
    assert!(!query.selector().admits(&json!({"metadata": {"name": "node-b"}})));
}
