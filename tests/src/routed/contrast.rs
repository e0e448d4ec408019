//! The table of [`super::table`] with the real kube-proxy on each node: which cells differ from Ballast's.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::differences::{DIFFERENCES, Difference, Finds};
use super::table::{Said, is_silence, said, side_by_side};
use super::{Cell, Due, Network, POD_NETS};
use crate::agent::Manifest;
use crate::cluster::{Hosted, KubeProxy, Process, SETTLE_LIMIT};
use crate::topology::{Node, Outside, Topology};

/// kube-proxy 1.36 writes rules for the service CIDRs in a full sync only. If it learns them after its first one, the next comes an hour later
/// (`setupNFTables` in `pkg/proxy/nftables/proxier.go`). So it is started anew if it has not written them after this time.
const LATE_CIDRS: Duration = Duration::from_secs(20);
/// How long an answer is waited for that must not come: nothing but this tells silence from slowness.
const SILENCE: Duration = Duration::from_millis(700);
/// Pause between two looks at the rules.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A kube-proxy on each node, and the API that they follow. Fields in the order in which they must end.
pub struct KubeProxies {
    processes: Vec<Process>,
    _cluster: Hosted,
    _host: Outside,
}

/// What kube-proxy writes its rules with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    Nftables,
    /// The iptables that the node has: rules of nf_tables.
    Iptables,
    /// The one before, with tables of its own in the kernel.
    OldIptables,
}

/// The programs of iptables that kube-proxy calls.
const IPTABLES: [&str; 6] =
    ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"];

impl Rules {
    /// All rules of the family in a node's namespace, as its own program lists them.
    pub fn list(self, node: &Node, v4: bool) -> Result<String> {
        let family = if v4 { "ip" } else { "ip6" };
        let mut command = match self {
            Self::Nftables => std::process::Command::new("nft"),
            Self::Iptables => std::process::Command::new(format!("{family}tables-nft-save")),
            Self::OldIptables => std::process::Command::new(format!("{family}tables-legacy-save")),
        };
        if self == Self::Nftables {
            command.args(["--stateless", "list", "ruleset", family]);
        }
        let output = node.netns().run(|| command.output()).with_context(|| format!("{command:?}: install iptables"))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn mode(self) -> &'static str {
        if self == Self::Nftables { "nftables" } else { "iptables" }
    }

    /// A folder with the programs under the names that kube-proxy looks for.
    fn programs(self, folder: &Path) -> Result<Option<PathBuf>> {
        let kind = match self {
            Self::Nftables => return Ok(None),
            Self::Iptables => "nft",
            Self::OldIptables => "legacy",
        };
        let folder = folder.join(kind);
        std::fs::create_dir_all(&folder)?;
        for name in IPTABLES {
            let target = format!("/usr/sbin/xtables-{kind}-multi");
            std::os::unix::fs::symlink(target, folder.join(name)).context(name)?;
        }
        Ok(Some(folder))
    }
}

impl KubeProxies {
    /// Starts them on these nodes with these services, and waits until each serves all of them.
    pub fn start(topology: &Topology, nodes: &[&Node], manifest: &Manifest) -> Result<Self> {
        Self::start_with(Rules::Nftables, topology, nodes, manifest)
    }

    /// [`Self::start`] with these rules.
    pub fn start_with(rules: Rules, topology: &Topology, nodes: &[&Node], manifest: &Manifest) -> Result<Self> {
        let host = topology.outside("api", nodes[0])?;
        let cluster = Hosted::start(&host)?;
        cluster.create(manifest)?;
        let start = |node: &Node| {
            let kubeconfig = cluster.kubeconfig().display().to_string();
            let kube_proxy = KubeProxy { node, kubeconfig, folder: node.run_dir().to_owned() };
            let fields = json!({
                "mode": rules.mode(),
                "clusterCIDR": POD_NETS, "detectLocalMode": "ClusterCIDR",
                "featureGates": {"AllowServiceExternalIPs": true},
            });
            kube_proxy.start_by(&fields, rules.programs(node.run_dir())?.as_deref())
        };
        let mut processes = Vec::new();
        for node in nodes {
            cluster.create_node(node)?;
            processes.push(start(node)?);
        }
        let began = Instant::now();
        for (at, node) in nodes.iter().enumerate() {
            let mut started = Instant::now();
            while !serves(rules, node, manifest)? {
                processes[at].check()?;
                ensure!(
                    began.elapsed() < SETTLE_LIMIT,
                    "kube-proxy does not serve them all:\n{}",
                    processes[at].tail()
                );
                if started.elapsed() > LATE_CIDRS {
                    // It listens at fixed ports: the one before ends first.
                    drop(processes.remove(at));
                    processes.insert(at, start(node)?);
                    started = Instant::now();
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
        let this = Self { processes, _cluster: cluster, _host: host };
        Ok(this)
    }

    /// Ends them. Their rules stay.
    pub fn stop(&mut self) {
        self.processes.clear();
    }

    /// Whether all of them still run.
    pub fn check(&self) -> Result<()> {
        self.processes.iter().try_for_each(Process::check)
    }
}

/// Whether the rules name each cluster IP, and the service CIDRs of both families. They are written all at once, after all objects were listed.
fn serves(rules: Rules, node: &Node, manifest: &Manifest) -> Result<bool> {
    let listed = rules.list(node, true)? + &rules.list(node, false)?;
    let mut addresses = manifest.services.iter().flat_map(|service| service.cluster_ips.both());
    if rules == Rules::Nftables {
        let knows_cidrs = listed.matches("Drop traffic to unallocated ClusterIPs").count() == 2;
        return Ok(knows_cidrs && addresses.all(|address| listed.contains(&format!(" {address} . tcp . 80 "))));
    }
    let rule = |address: IpAddr| format!("-A KUBE-SERVICES -d {address}/{} ", if address.is_ipv4() { 32 } else { 128 });
    Ok(addresses.all(|address| listed.contains(&rule(address))))
}

/// What a client found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The right server answered, and what is said of the address that it saw.
    Served {
        own: bool,
        of_entry: bool,
    },
    Silence,
    Refused,
    /// The kernel did not let it send.
    NotPermitted,
    /// Anything else, in words.
    Other(String),
}

impl Found {
    /// Whether this is it. A process's own address may also be that of the link.
    fn is(&self, expected: Finds) -> bool {
        match (self, expected) {
            (Self::Served { own, .. }, Finds::Due(Due::Own)) => *own,
            (Self::Served { of_entry, .. }, Finds::Due(Due::Masqueraded)) => *of_entry,
            (Self::Silence, Finds::Due(Due::Dropped))
            | (Self::Refused, Finds::Due(Due::Refused))
            | (Self::NotPermitted, Finds::NotPermitted) => true,
            _ => false,
        }
    }
}

/// A cell, what was found in it, and the difference that is expected there.
#[derive(Debug)]
pub struct Contrast {
    pub cell: Cell,
    pub found: Found,
    pub expected: Option<&'static Difference>,
}

impl Contrast {
    /// Asks for all of these cells.
    pub fn run(network: &Network, cells: &[Cell]) -> Vec<Self> {
        side_by_side(cells, |cell| {
            let expected = DIFFERENCES.iter().find(|difference| (difference.concerns)(cell));
            let silent = finds(cell, expected) == Finds::Due(Due::Dropped);
            let said = said(network, cell, silent.then_some(SILENCE));
            Self { cell, found: found(network, cell, said), expected }
        })
    }

    /// Whether it is as with Ballast, or differs as it should.
    pub fn is_right(&self) -> bool {
        self.found.is(finds(self.cell, self.expected))
    }

    /// Whether a user would notice.
    pub fn differs(&self) -> bool {
        !self.found.is(Finds::Due(self.cell.due()))
    }
}

/// What a client of kube-proxy is to find.
fn finds(cell: Cell, expected: Option<&Difference>) -> Finds {
    expected.map_or_else(|| Finds::Due(cell.due()), |difference| difference.kube_proxy)
}

fn found(network: &Network, cell: Cell, said: Said) -> Found {
    match said {
        Ok((answer, local)) if answer.server == cell.backend.name() => {
            let seen = answer.peer.ip();
            Found::Served { own: seen == local.ip(), of_entry: network.is_of_node(cell.entry(), seen) }
        }
        Ok((answer, _)) => Found::Other(format!("answered by {}", answer.server)),
        Err(error) => error.into(),
    }
}

/// Nobody answered.
impl From<std::io::Error> for Found {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            _ if is_silence(&error) => Self::Silence,
            ErrorKind::ConnectionRefused => Self::Refused,
            // The connection was over, and the kernel named no error for it: seen once in some thousand refusals.
            _ if error.to_string() == "no error set after POLLHUP" => Self::Refused,
            ErrorKind::PermissionDenied => Self::NotPermitted,
            _ => Self::Other(format!("{error:?}")),
        }
    }
}
