//! Each field has one fate, and the result is a configuration that the agent takes.

use super::*;

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn of(fields: &str) -> Migrated {
    migrate(&format!("{HEAD}{fields}")).expect("converted")
}

fn options(fields: &str) -> Vec<(&'static str, String)> {
    of(fields).options.into_iter().filter(|(name, _)| *name != "source").collect()
}

fn left(fields: &str) -> Vec<String> {
    of(fields).left.into_iter().map(|left| left.field).collect()
}

#[test]
fn an_ipvs_configuration_keeps_scheduler_timeouts_and_networks() {
    let migrated = of("
mode: ipvs
hostnameOverride: n1
clusterCIDR: 10.244.0.0/16,fd00:10::/56
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 5}
ipvs: {scheduler: wlc, strictARP: true, tcpTimeout: 15m0s, udpTimeout: 5m0s}
nodePortAddresses: [10.0.0.0/8]
metricsBindAddress: 0.0.0.0:10249
");
    assert_eq!(
        migrated.to_string(),
        "# A configuration of Ballast, made from one of kube-proxy.
source: \"kube\"
kubeconfig: \"/var/lib/kube-proxy/kubeconfig.conf\"
cluster-cidr: \"10.244.0.0/16,fd00:10::/56\"
node-name: \"n1\"
scheduler: \"least-connections\"
flow-timeouts: \"open=900s,udp-stream=300s\"
metrics-bind: \"0.0.0.0:10249\"
nodeport-addresses: \"10.0.0.0/8\"
"
        .lines()
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .join("\n")
            + "\n"
    );
}

#[test]
fn what_has_no_counterpart_is_named() {
    let fields = "mode: ipvs\niptables: {masqueradeAll: true, masqueradeBit: 14}\nipvs: {scheduler: sed}\nconntrack: {min: 131073, maxPerCore: 32768}\n\
                  enableProfiling: true\nspeling: 1\n";
    let mut named = left(fields);
    named.sort_unstable();
    assert_eq!(named, ["conntrack.min", "enableProfiling", "iptables.masqueradeAll", "ipvs.scheduler", "speling"]);
    assert!(of(fields).to_string().contains("#   ipvs.scheduler: \"sed\"\n#     Ballast has no such scheduler"));
    assert_eq!(left("iptables: {localhostNodePorts: false}\n"), ["iptables.localhostNodePorts"]);
    assert_eq!(left("conntrack: {tcpEstablishedTimeout: 999h0m0s}\n"), ["conntrack.tcpEstablishedTimeout"]);
}

#[test]
fn a_field_of_another_mode_counts_for_nothing() {
    assert_eq!(options("mode: iptables\nipvs: {scheduler: sh, tcpTimeout: 1h0m0s}\n"), []);
    assert_eq!(left("mode: nftables\niptables: {masqueradeAll: true}\n"), [""; 0]);
    assert_eq!(options("detectLocal: {interfaceNamePrefix: cali}\n"), []);
    assert_eq!(
        options("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: cali}\n"),
        [("pod-interfaces", "cali*".to_owned())]
    );
}

#[test]
fn defaults_of_a_mode_that_differ_from_ours_are_written() {
    assert_eq!(options("mode: nftables\n"), [("nodeport-addresses", "primary".to_owned())]);
    assert_eq!(options("mode: ipvs\n"), [("scheduler", "round-robin".to_owned())]);
    assert_eq!(options(""), []);
    assert_eq!(options("healthzBindAddress: 0.0.0.0:10256\nmetricsBindAddress: 127.0.0.1\n"), []);
    assert_eq!(options("healthzBindAddress: 192.0.2.1\n"), [("health-bind", "192.0.2.1:10256".to_owned())]);
}

#[test]
fn the_config_map_of_kubeadm_is_read() {
    let inner = format!("{HEAD}hostnameOverride: n1\n").replace('\n', "\n    ");
    let map =
        format!("kind: ConfigMap\ndata:\n  config.conf: |\n    {inner}\n  kubeconfig.conf: |\n    kind: Config\n");
    assert_eq!(
        migrate(&map).expect("converted").options,
        [("source", "kube".to_owned()), ("node-name", "n1".to_owned())]
    );
    assert!(migrate("kind: ConfigMap\ndata: {}\n").expect_err("refused").contains("no KubeProxyConfiguration"));
    assert!(migrate("kind: Pod\napiVersion: v1\n").expect_err("refused").contains("Pod of v1"));
    assert!(migrate("a: [").is_err());
}

#[test]
fn go_durations_are_read() {
    assert_eq!(go_duration("1h2m3s"), Some(Duration::from_secs(3723)));
    assert_eq!(go_duration("1.5s"), Some(Duration::from_millis(1500)));
    assert_eq!([go_duration("5"), go_duration("x"), go_duration("1d")], [None; 3]);
}

/// The manual's table has a row for each field, in this order.
#[test]
fn the_manual_names_each_field() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/migrating.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let wanted: Vec<String> = FIELDS.iter().map(|(field, becomes)| row(field, becomes)).collect();
    assert!(rows == wanted, "docs/src/migrating.md is stale: this is the table\n{}", wanted.join("\n"));
}

fn row(field: &str, becomes: &Becomes) -> String {
    match becomes {
        Becoming(option, _) => format!("| `{field}` | `{option}` | |"),
        Needless(why) => format!("| `{field}` | not needed | {why} |"),
        Missing(why) => format!("| `{field}` | none | {why} |"),
    }
}
