//! Writes a scene into a node's namespace.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use lb_common::family::Family;

use super::{Names, Scene, pods, rules};
use crate::topology::{Namespace, Node, Pod};

/// Puts everything on a node that is there before its first pod.
pub(crate) fn install(scene: Scene, node: &Node) -> Result<()> {
    let namespace = node.namespace();
    match scene {
        Scene::Aws => {
            namespace.sysctl("net/ipv4/conf/eth0/rp_filter", "2")?;
            for family in ["-4", "-6"] {
                namespace.ip_show(&[family, "rule", "add", "pref", "1024", "fwmark", "0x80/0x80", "table", "main"])?;
            }
        }
        Scene::Docker => {
            namespace.ip("link add docker0 type bridge\nlink set docker0 up")?;
            namespace.ip(&node.families().commands("address add 172.17.0.1/16 dev docker0", ""))?;
        }
        Scene::Cloud => without_subnet(node)?,
        Scene::NodeLocalDns => {
            let lines = Family::ALL.map(|family| {
                rules::cache_addresses(family).map(|address| format!("address add {address} dev lo\n")).concat()
            });
            namespace.ip(&node.families().commands(&lines[0], &lines[1]))?;
        }
        Scene::Firewalld => run(namespace, &["nft", "-f", "-"], rules::FIREWALLD)?,
        _ => {}
    }
    for family in Family::ALL {
        let names = Names::of(node, family);
        sets(scene, &names, namespace)?;
        for text in rules::iptables(scene, &names) {
            restore(namespace, family, &text)?;
        }
    }
    Ok(())
}

/// Adds what the scene has for each pod.
pub(crate) fn add_pod(scene: Scene, node: &Node, pod: &Pod) -> Result<()> {
    let namespace = node.namespace();
    for family in Family::ALL {
        let (names, address) = (Names::of(node, family), pod.addresses().of(family).to_string());
        match scene {
            Scene::Aws => {
                let family = if family == Family::V4 { "-4" } else { "-6" };
                namespace.ip_show(&[family, "rule", "add", "pref", "512", "to", &address, "table", "main"])?;
            }
            Scene::Calico => run(namespace, &["ipset", "add", &format!("{}pods", names.set_prefix()), &address], "")?,
            _ => {}
        }
        if let Some(text) = pods::iptables(scene, &names, pod.link(), &address) {
            restore(namespace, family, &text)?;
        }
    }
    Ok(())
}

/// The uplink has an address without a subnet: everything is behind the gateway.
fn without_subnet(node: &Node) -> Result<()> {
    let address = node.addresses();
    node.namespace().ip(&node.families().commands(
        &format!(
            "address delete {0}/24 dev eth0\naddress add {0}/32 dev eth0\nroute add 192.0.2.254 dev eth0 scope link\n\
             route add default via 192.0.2.254 dev eth0",
            address.v4
        ),
        &format!(
            "address delete {0}/64 dev eth0\naddress add {0}/128 dev eth0 nodad\nroute add 2001:db8:1::fe dev eth0\n\
             route replace ::/0 via 2001:db8:1::fe dev eth0",
            address.v6
        ),
    ))
}

/// The sets that rules of this scene match.
fn sets(scene: Scene, names: &Names, namespace: &Namespace) -> Result<()> {
    let (prefix, cluster) = (names.set_prefix(), names.cluster);
    let (inet, clients) = match names.family {
        Family::V4 => {
            ("inet", ["10.0.0.0/8", "172.16.0.0/12", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24"].as_slice())
        }
        Family::V6 => ("inet6", ["fd00::/8", "2001:db8::/32"].as_slice()),
    };
    let set = |name: &str, nets: &[&str]| {
        let members: Vec<String> = nets.iter().map(|net| format!("add {prefix}{name} {net}\n")).collect();
        format!("create {prefix}{name} hash:net family {inet}\n{}", members.concat())
    };
    let text = match scene {
        Scene::Calico => {
            [set("all-ipam-pools", &[cluster]), set("masq-ipam-pools", &[cluster]), set("pods", &[])].concat()
        }
        Scene::Netpol => set("allowed", clients),
        _ => return Ok(()),
    };
    run(namespace, &["ipset", "restore"], &text)
}

/// Adds to the tables of iptables; what is in them stays.
fn restore(namespace: &Namespace, family: Family, text: &str) -> Result<()> {
    let program = match family {
        Family::V4 => "iptables-nft-restore",
        Family::V6 => "ip6tables-nft-restore",
    };
    run(namespace, &[program, "--noflush"], text)
}

fn run(namespace: &Namespace, words: &[&str], input: &str) -> Result<()> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = namespace
        .netns()
        .start(&mut command)
        .with_context(|| format!("starting {}: `cargo xtask setup` installs it", words[0]))?;
    child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{}: {}\n{input}",
        words.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
