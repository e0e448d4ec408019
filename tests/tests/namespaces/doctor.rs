//! `ballast doctor` on nodes with something wrong: each is named with its remedy, nothing else is, and nothing is changed.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lb_tests::agent::{Agent, Manifest, SOON};
use lb_tests::peers::eventually;
use lb_tests::topology::{Checksums, Node, Topology, set_checksums};
use serde_json::Value;

/// A node, and an agent that does not run.
struct Scenario {
    agent: Agent,
    node: Node,
    topology: Topology,
}

impl Scenario {
    fn new(subject: &str) -> Self {
        let topology = Topology::new(subject).unwrap();
        let node = topology.node().unwrap();
        Self { agent: Agent::prepare(&node, &[]).unwrap(), node, topology }
    }

    /// The exit code and the findings.
    fn examine(&self, flags: &[&str]) -> (i32, Vec<Value>) {
        self.examine_below(self.node.cgroup(), flags)
    }

    /// With this root of the cgroups that are served.
    fn examine_below(&self, cgroup: &Path, flags: &[&str]) -> (i32, Vec<Value>) {
        let cgroup = format!("--cgroup-root={}", cgroup.display());
        let arguments: Vec<&str> = ["doctor", "-o", "json", &cgroup].into_iter().chain(flags.iter().copied()).collect();
        let output = self.agent.cli(&arguments).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        (output.status.code().unwrap(), report["findings"].as_array().unwrap().clone())
    }

    /// The one finding that is not as it should be.
    fn only(&self, flags: &[&str], exit: i32, check: &str) -> Value {
        let (code, findings) = self.examine(flags);
        let mut bad: Vec<Value> = findings.into_iter().filter(|finding| finding["level"] != "ok").collect();
        assert!(bad.len() == 1 && code == exit, "exit code {code}: {bad:#?}");
        let finding = bad.remove(0);
        assert_eq!(finding["check"], check, "{finding:#}");
        assert_eq!(finding["level"], if exit == 0 { "warn" } else { "fail" }, "{finding:#}");
        finding
    }
}

fn remedy(finding: &Value) -> &str {
    finding["remedy"].as_str().unwrap()
}

#[test]
fn a_sound_node_has_nothing_to_mend() {
    let mut scenario = Scenario::new("doctor-sound");
    let (code, findings) = scenario.examine(&[]);
    assert_eq!(code, 0, "{findings:#?}");
    assert!(findings.iter().all(|finding| finding["level"] == "ok" && finding["remedy"].is_null()), "{findings:#?}");
    for check in ["privileges", "kernel", "btf", "bpffs", "cgroup", "forwarding", "xdp", "other-proxies"] {
        assert!(findings.iter().any(|finding| finding["check"] == check), "no {check}: {findings:#?}");
    }
    // An agent beside it is asked, too.
    scenario.agent.write(&Manifest::default()).unwrap();
    scenario.agent.restart().unwrap();
    let (code, findings) = scenario.examine(&[]);
    let own: Vec<&Value> = findings.iter().filter(|finding| finding["check"] == "agent").collect();
    assert!(code == 0 && own[0]["found"] == "runs", "{own:#?}");
}

/// As where only the container's own cgroup is mounted.
#[test]
fn processes_outside_the_cgroup_that_is_served_are_named() {
    struct Cgroup(PathBuf);
    impl Drop for Cgroup {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir(&self.0);
        }
    }
    let scenario = Scenario::new("doctor-cgroup");
    let is_root = |folder: &&Path| std::fs::metadata(folder).is_ok_and(|folder| folder.ino() == 1);
    let root = scenario.node.cgroup().ancestors().find(is_root).expect("the root of the hierarchy");
    let nested = Cgroup(root.join(format!("doctor-{}", std::process::id())));
    std::fs::create_dir(&nested.0).unwrap();
    let mut sleep = scenario.node.netns().run(|| Command::new("sleep").arg("60").spawn()).unwrap();
    let (code, findings) = scenario.examine_below(&nested.0, &[]);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
    let finding = findings.iter().find(|finding| finding["check"] == "cgroup").unwrap();
    let found = finding["found"].as_str().unwrap();
    assert!(code == 0 && finding["level"] == "warn", "{finding:#}");
    assert!(found.contains(&format!("sleep ({})", sleep.id())) && found.contains("node port"), "{found}");
    assert!(remedy(finding).contains("/sys/fs/cgroup"), "{finding:#}");
}

#[test]
fn xdp_over_a_veth_is_judged_by_the_other_ends_checksums() {
    let scenario = Scenario::new("doctor-xdp");
    let (wire, port) = (scenario.topology.wire(), scenario.node.port());
    let (code, findings) = scenario.examine(&["--xdp-mode=native"]);
    assert_eq!(code, 0, "{findings:#?}");
    set_checksums(wire, &port, Checksums::Partial).unwrap();
    let finding = scenario.only(&["--xdp-mode=native"], 1, "xdp");
    assert!(remedy(&finding).contains(&format!("ethtool -K {port} tx off")), "{finding:#}");
    // Unasked, tc serves such a link.
    assert_eq!(scenario.examine(&[]).0, 0);
}

#[test]
fn what_keeps_clients_outside_from_being_served_is_named() {
    let scenario = Scenario::new("doctor-links");
    let namespace = scenario.node.namespace();
    namespace.sysctl("net/ipv4/ip_local_port_range", "1024 65535").unwrap();
    namespace.sysctl("net/ipv4/ip_local_reserved_ports", "61000-65535").unwrap();
    let finding = scenario.only(&[], 0, "node-ports");
    assert!(remedy(&finding).contains("ip_local_reserved_ports=30000-32767"), "{finding:#}");
    namespace.sysctl("net/ipv4/ip_local_reserved_ports", "30000-32767,61000-65535").unwrap();
    assert_eq!(scenario.examine(&[]).0, 0);

    namespace.sysctl("net/ipv4/conf/all/forwarding", "0").unwrap();
    let finding = scenario.only(&[], 1, "forwarding");
    assert_eq!(remedy(&finding), "sysctl net.ipv4.conf.all.forwarding=1");
    namespace.sysctl("net/ipv4/conf/all/forwarding", "1").unwrap();

    namespace.ip("link set eth0 mtu 1300").unwrap();
    let finding = scenario.only(&["--mode=dsr"], 1, "mtu");
    assert!(remedy(&finding).contains("mtu 1320 or more, or --mode snat"), "{finding:#}");
    assert_eq!(scenario.examine(&["--mode=snat"]).0, 0);
}

#[test]
fn what_another_proxy_left_is_named() {
    let scenario = Scenario::new("doctor-proxies");
    let nft = |rules: &str| {
        let mut command = Command::new("nft");
        command.arg(rules);
        assert!(scenario.node.namespace().netns().run(|| command.status()).unwrap().success(), "{rules}");
    };
    // Other rules do not matter.
    nft("add table ip mine; add chain ip mine KUBE-LIKE");
    assert_eq!(scenario.examine(&[]).0, 0);
    nft("add table ip kube-proxy");
    let finding = scenario.only(&[], 0, "other-proxies");
    assert!(finding["found"].as_str().unwrap().contains("nftables: table kube-proxy of ip"), "{finding:#}");
    assert!(remedy(&finding).contains("ballast cleanup --kube-proxy"), "{finding:#}");
    nft("delete table ip kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES");
    let finding = scenario.only(&[], 0, "other-proxies");
    assert!(finding["found"].as_str().unwrap().contains("iptables (nf_tables): 1 chains"), "{finding:#}");
    nft("delete table ip nat");
    scenario.node.namespace().ip("link add kube-ipvs0 type bridge").unwrap();
    let finding = scenario.only(&[], 0, "other-proxies");
    assert!(finding["found"].as_str().unwrap().contains("kube-ipvs0"), "{finding:#}");
}

/// Tables of the older iptables and ip6tables in the node's namespace.
fn old_tables(node: &Node) -> [String; 2] {
    let names = |file: &str| match std::fs::read_to_string(format!("/proc/thread-self/net/{file}")) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        names => names.unwrap(),
    };
    node.netns().run(|| ["ip_tables_names", "ip6_tables_names"].map(names))
}

/// A new table would close the fast path until the machine restarts.
#[test]
fn a_look_at_the_node_makes_no_table_of_the_older_iptables() {
    let mut scenario = Scenario::new("doctor-old");
    assert_eq!(old_tables(&scenario.node), ["", ""], "the node begins without");
    scenario.agent.write(&Manifest::default()).unwrap();
    scenario.agent.restart().unwrap();
    for command in [&["sysdump", "-"][..], &["cleanup", "--kube-proxy", "--dry-run"]] {
        let output = scenario.agent.cli(command).unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(old_tables(&scenario.node), ["", ""], "after {command:?}");
    }
    scenario.agent.stop().unwrap();
    assert_eq!(scenario.examine(&[]).0, 0);
    scenario.agent.restart().unwrap();
    assert_eq!(old_tables(&scenario.node), ["", ""], "after doctor and two starts of the agent");
    let fast_path = || scenario.agent.json(&["status"]).unwrap()["agent"]["datapath"]["fastPath"].clone();
    eventually("the fast path is open", SOON, || (fast_path()["open"] == true).then_some(()));

    // Tables that are there count.
    let mut command = Command::new("ip6tables-legacy");
    command.args(["-t", "nat", "-N", "KUBE-SERVICES"]);
    assert!(scenario.node.netns().run(|| command.status()).unwrap().success());
    let (_, findings) = scenario.examine(&[]);
    let is_named = |finding: &Value| finding["found"].as_str().unwrap().contains("chains KUBE- in ip6tables nat");
    assert!(findings.iter().any(is_named), "{findings:#?}");
    assert_eq!(old_tables(&scenario.node), ["", "nat\n"]);
    eventually("the fast path is closed", SOON, || {
        fast_path()["skips"].to_string().contains("ip6tables (legacy) table nat").then_some(())
    });
}

#[test]
fn a_folder_that_is_no_bpf_file_system_fails() {
    let scenario = Scenario::new("doctor-bpffs");
    let node = &scenario.node;
    let mut command = Command::new(lb_tests::agent::binary().unwrap());
    command.args(["doctor", "--bpffs=/proc"]).arg(format!("--run-dir={}", node.run_dir().display()));
    command.arg(format!("--cgroup-root={}", node.cgroup().display()));
    let output = node.netns().run(|| command.output()).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().find(|line| line.contains("bpffs")).unwrap();
    assert!(line.starts_with("FAIL") && line.contains("mount -t bpf bpf"), "{text}");
}
