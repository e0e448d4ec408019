//! The real kube-proxy on sides of its own, fed by one real API server. Its rules are the kernel's: once they stand, kube-proxy and the
//! API server end, and take no more part.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_load::connect_and_ask;
use lb_tests::cluster::KubeProxy;
use lb_tests::topology::{Place, Topology};
use serde_json::json;

use super::ballast::service;
use super::side::{BACKENDS4, Side};
use crate::control::objects;
use crate::control::probe::wait_for;
use crate::control::stage::Cluster;

/// How long the API server may take to read its store, and kube-proxy to make its rules.
const LIMIT: Duration = Duration::from_mins(4);

/// By what kube-proxy serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    /// `iptables-legacy`.
    Iptables,
    /// `iptables-nft`: the same rules, translated.
    IptablesNft,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::IptablesNft => "iptables-nft",
        }
    }

    /// What the tools are called behind; nftables needs none.
    const fn suffix(self) -> &'static str {
        if matches!(self, Self::IptablesNft) { "nft" } else { "legacy" }
    }

    /// Whether there is what it needs.
    pub fn is_there(self) -> bool {
        let tool = match self {
            Self::Nftables => "nft".to_owned(),
            Self::Iptables | Self::IptablesNft => format!("iptables-{}", self.suffix()),
        };
        find(&tool).is_some() && lb_tests::cluster::binary("kube-proxy").is_ok()
    }
}

/// A side with the rules of kube-proxy.
pub struct Proxied {
    pub mode: Mode,
    pub services: usize,
    pub side: Side,
    /// Numbers of the services in the order of their rules, where one comes after the other.
    pub order: Vec<usize>,
}

/// Lets kube-proxy make its rules in each of these modes at each of these numbers of services, ascending.
pub fn install(topology: &Topology, wanted: &[(Mode, usize)], stop: &AtomicBool) -> Result<Vec<Proxied>> {
    let sides: Vec<Side> = wanted.iter().map(|_| Side::new(topology)).collect::<Result<_>>()?;
    let Some(first) = sides.first() else { return Ok(Vec::new()) };
    let cluster = Cluster::start(topology.outside("api", &first.node)?)?;
    for side in &sides {
        cluster.create_node(&side.node)?;
    }
    let mut stored = 0;
    let mut proxied = Vec::new();
    for (&(mode, services), side) in wanted.iter().zip(sides) {
        ensure!(services >= stored, "numbers of services must ascend");
        let target = cluster.count_slices()? + services - stored;
        cluster.store().load(objects::stored_at(stored..services, BACKENDS4), stop)?;
        let read = || (cluster.count_slices().ok()? >= target).then_some(());
        wait_for(LIMIT, stop, read).context("the API server has not read its store in time")?;
        stored = services;
        let what = || format!("kube-proxy, {} at {services} services", mode.name());
        make_rules(topology, &side, &cluster, mode, services, stop).with_context(what)?;
        let order = if mode == Mode::Iptables { order_of(side.node.place(), services)? } else { Vec::new() };
        proxied.push(Proxied { mode, services, side, order });
    }
    Ok(proxied)
}

/// Runs kube-proxy until its rules stand.
fn make_rules(
    topology: &Topology,
    side: &Side,
    cluster: &Cluster,
    mode: Mode,
    services: usize,
    stop: &AtomicBool,
) -> Result<()> {
    let folder = topology.directory().join(format!("kube-proxy-{}", side.node.node_name()));
    std::fs::create_dir_all(&folder)?;
    let programs = (mode != Mode::Nftables).then(|| programs(&folder, mode)).transpose()?;
    let fields = json!({"mode": if mode == Mode::Nftables { "nftables" } else { "iptables" }});
    let kube_proxy = KubeProxy { node: &side.node, kubeconfig: cluster.kubeconfig(), folder };
    let process = kube_proxy.start_by(&fields, programs.as_deref())?;
    for number in [0, services - 1] {
        let is_served = || side.client().run(|| connect_and_ask(service(0, number))).is_ok();
        // Ended, there is nothing to wait for.
        let served = || (is_served() || process.check().is_err()).then_some(());
        wait_for(LIMIT, stop, served)
            .with_context(|| format!("service {number} is not served:\n{}", process.tail()))?;
        process.check()?;
    }
    Ok(())
}

/// A folder in which `iptables` and its relatives are those of the mode.
fn programs(folder: &Path, mode: Mode) -> Result<PathBuf> {
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs)?;
    for family in ["iptables", "ip6tables"] {
        for tool in ["", "-save", "-restore"] {
            let found = find(&format!("{family}-{}{tool}", mode.suffix()));
            let found = found.with_context(|| format!("no {family}-{}{tool}: install iptables", mode.suffix()))?;
            symlink(found, programs.join(format!("{family}{tool}")))?;
        }
    }
    Ok(programs)
}

fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(tool)).find(|candidate| candidate.exists())
}

fn order_of(place: &Place, services: usize) -> Result<Vec<usize>> {
    let output = place.run(|| Command::new("iptables-legacy-save").args(["-t", "nat"]).stdin(Stdio::null()).output());
    let output = output.context("starting iptables-legacy-save")?;
    let order = parse_order(&String::from_utf8_lossy(&output.stdout), services);
    ensure!(order.len() == services, "iptables-legacy-save shows {} services, expected {services}", order.len());
    Ok(order)
}

/// The numbers of ours in the order of the rules of `KUBE-SERVICES`.
fn parse_order(saved: &str, services: usize) -> Vec<usize> {
    let numbers: HashMap<Ipv4Addr, usize> = (0..services).map(|number| (objects::cluster_ip(number), number)).collect();
    let addresses = saved.lines().filter_map(|line| {
        let rest = line.strip_prefix("-A KUBE-SERVICES -d ")?;
        rest.split_once("/32 ")?.0.parse().ok()
    });
    addresses.filter_map(|address: Ipv4Addr| numbers.get(&address).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_stand_in_the_order_of_their_rules() {
        let [first, second] = [objects::cluster_ip(0), objects::cluster_ip(1)];
        let saved = format!(
            "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
             -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-A\n\
             -A KUBE-SERVICES -d {second}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-B\n\
             -A KUBE-SERVICES -d {first}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-C\n\
             -A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n"
        );
        assert_eq!(parse_order(&saved, 2), [1, 0]);
    }
}
