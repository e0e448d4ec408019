//! A node: a host with forwarding on, pods behind veths, and a cgroup, a bpffs and a run directory of its own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};

use super::cgroup::Cgroup;
use super::namespace::{Namespace, NetNs};
use super::offload::{Checksums, set_checksums};
use super::{Addresses, Families, Host, Uplink};
use crate::scene::{self, Scene};

/// What may differ between nodes.
#[derive(Clone, Copy, Debug)]
pub struct NodeOptions {
    /// Reverse path filter of all links: 0 off, 1 strict, 2 loose.
    pub rp_filter: u8,
    /// Offloads of the pods' links, both ends.
    pub pod_checksums: Checksums,
    /// What the node and its pods have addresses of.
    pub families: Families,
    /// Its link to the wire.
    pub uplink: Uplink,
    /// Other people's rules.
    pub scene: Scene,
    /// Settings under `/proc/sys` that the node has besides: names and values.
    pub sysctls: &'static [(&'static str, &'static str)],
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            rp_filter: 1,
            pod_checksums: Checksums::Partial,
            families: Families::Both,
            uplink: Uplink::Plain,
            scene: Scene::Bare,
            sysctls: &[],
        }
    }
}

/// A node; dropped, its pods must be gone first (they hold no reference, but live in its links).
#[derive(Debug)]
pub struct Node {
    host: NetNs,
    cgroup: Cgroup,
    namespace: Namespace,
    addresses: Addresses,
    number: u32,
    options: NodeOptions,
    bpffs: PathBuf,
    run_dir: PathBuf,
    pods: AtomicU32,
}

impl Node {
    pub(super) fn new(host: Host, number: u32, directory: &Path, options: NodeOptions) -> Result<Self> {
        let Host { namespace, addresses } = host;
        namespace.sysctl("net/ipv4/ip_forward", "1")?;
        namespace.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        for scope in ["all", "default", options.uplink.name()] {
            namespace.sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), &options.rp_filter.to_string())?;
        }
        let cgroup = Cgroup::new(namespace.name())?;
        let bpffs = directory.join(format!("node{number}-bpf"));
        std::fs::create_dir(&bpffs)?;
        mount(Some("bpf"), &bpffs, Some("bpf"), MsFlags::empty(), Some("mode=0700"))
            .with_context(|| format!("mounting a bpffs on {}", bpffs.display()))?;
        let run_dir = directory.join(format!("node{number}-run"));
        std::fs::create_dir(&run_dir)?;
        let host = namespace.netns().clone().in_cgroup(cgroup.path());
        let node =
            Self { host, cgroup, namespace, addresses, number, options, bpffs, run_dir, pods: AtomicU32::new(1) };
        scene::install(options.scene, &node).with_context(|| format!("the scene {}", options.scene.name()))?;
        for (name, value) in options.sysctls {
            node.namespace.sysctl(name, value)?;
        }
        Ok(node)
    }

    /// Where its host processes run: its namespace, counted to its cgroup.
    pub fn netns(&self) -> &NetNs {
        &self.host
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its addresses on the wire, whether it has both or not.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The addresses that it has on the wire.
    pub fn ips(&self) -> Vec<IpAddr> {
        self.families().of(self.addresses)
    }

    /// The rules that are on it.
    pub fn scene(&self) -> Scene {
        self.options.scene
    }

    /// What it and its pods have addresses of.
    pub fn families(&self) -> Families {
        self.options.families
    }

    /// Name for `--node-name` and for endpoints' `nodeName`.
    pub fn node_name(&self) -> String {
        format!("node{}", self.number)
    }

    /// Name of its link with the addresses and the default route.
    pub fn uplink(&self) -> &'static str {
        self.options.uplink.name()
    }

    /// Name of the wire's end of its link.
    pub fn port(&self) -> String {
        format!("port{}", self.number)
    }

    /// Directory for `--cgroup-root`.
    pub fn cgroup(&self) -> &Path {
        self.cgroup.path()
    }

    /// Directory for `--bpffs`: a bpffs of its own.
    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// Directory for `--run-dir`.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Addresses of its pods, IPv4.
    pub fn pod_net4(&self) -> String {
        format!("10.244.{}.0/24", self.number)
    }

    /// Addresses of its pods, IPv6.
    pub fn pod_net6(&self) -> String {
        format!("fd00:244:{:x}::/48", self.number)
    }

    /// The networks of its pods, of the families that it has.
    pub fn pod_nets(&self) -> Vec<String> {
        match self.families() {
            Families::Both => vec![self.pod_net4(), self.pod_net6()],
            Families::Ipv6 => vec![self.pod_net6()],
        }
    }

    /// Lets this node reach the pods of another one.
    pub fn route_to(&self, other: &Node) -> Result<()> {
        let (Addresses { v4, v6 }, link) = (other.addresses, self.uplink());
        // Where the uplink has no subnet, the other node is a neighbour all the same.
        self.namespace.ip(&self.families().commands(
            &format!("route add {} via {v4} dev {link} onlink", other.pod_net4()),
            &format!("route add {} via {v6} dev {link} onlink", other.pod_net6()),
        ))
    }

    /// A pod behind a routed veth: a host route to it, and the gateway's address on the host's end.
    pub fn pod(&self, name: &str) -> Result<Pod> {
        let pod = self.bare_pod(name, false)?;
        let Addresses { v4, v6 } = pod.addresses;
        let Addresses { v4: gateway4, v6: gateway6 } = self.address(false, 126)?;
        let link = &pod.link;
        self.namespace.ip(&self.families().commands(
            &format!("address add {gateway4}/32 dev {link}\nroute add {v4}/32 dev {link}"),
            &format!("address add {gateway6}/128 dev {link} nodad\nroute add {v6}/128 dev {link}"),
        ))?;
        pod.namespace.ip(&self.families().commands(
            &format!("address add {v4}/32 dev eth0\nroute add {gateway4} dev eth0\nroute add default via {gateway4}"),
            &format!(
                "address add {v6}/128 dev eth0 nodad\nroute add {gateway6} dev eth0\nroute add ::/0 via {gateway6}"
            ),
        ))?;
        Ok(pod)
    }

    /// A pod on the node's bridge `cni0`, which is made with the first.
    pub fn bridged_pod(&self, name: &str) -> Result<Pod> {
        let Addresses { v4: gateway4, v6: gateway6 } = self.address(true, 126)?;
        if self.namespace.ip_show(&["link", "show", "cni0"]).is_err() {
            self.namespace.ip("link add cni0 type bridge\nlink set cni0 up")?;
            self.namespace.ip(&self.families().commands(
                &format!("address add {gateway4}/25 dev cni0"),
                &format!("address add {gateway6}/64 dev cni0 nodad"),
            ))?;
        }
        let pod = self.bare_pod(name, true)?;
        let Addresses { v4, v6 } = pod.addresses;
        self.namespace.ip(&format!("link set {} master cni0", pod.link))?;
        pod.namespace.ip(&self.families().commands(
            &format!("address add {v4}/25 dev eth0\nroute add default via {gateway4}"),
            &format!("address add {v6}/64 dev eth0 nodad\nroute add ::/0 via {gateway6}"),
        ))?;
        Ok(pod)
    }

    /// The routed pods have the lower half of the pods' addresses, those on the bridge the upper half, a subnet.
    fn address(&self, bridged: bool, number: u32) -> Result<Addresses> {
        let (node, half) = (self.number, u32::from(bridged));
        Ok(Addresses {
            v4: format!("10.244.{node}.{}", half * 128 + number).parse()?,
            v6: format!("fd00:244:{node:x}:{half}::{number:x}").parse()?,
        })
    }

    /// A namespace behind a veth, links up, without addresses.
    fn bare_pod(&self, name: &str, bridged: bool) -> Result<Pod> {
        let number = self.pods.fetch_add(1, Ordering::Relaxed);
        let namespace = Namespace::new(&format!("{}-{name}", self.namespace.name()))?;
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        let link = format!("veth{number}");
        self.namespace.ip(&format!("link add {link} type veth peer name eth0 netns {}", namespace.name()))?;
        set_checksums(&self.namespace, &link, self.options.pod_checksums)?;
        set_checksums(&namespace, "eth0", self.options.pod_checksums)?;
        namespace.ip(&format!("{}\nlink set eth0 up", self.families().loopback_commands()))?;
        self.namespace.ip(&format!("link set {link} up"))?;
        let addresses = self.address(bridged, number)?;
        let pod = Pod { node: self.namespace.name().to_owned(), namespace, addresses, families: self.families(), link };
        scene::add_pod(self.options.scene, self, &pod)?;
        Ok(pod)
    }
}

/// A pod: a namespace behind a veth; dropped, it is gone, and so is its link.
#[derive(Debug)]
pub struct Pod {
    node: String,
    namespace: Namespace,
    addresses: Addresses,
    families: Families,
    link: String,
}

impl Pod {
    /// Where its processes run.
    pub fn netns(&self) -> &NetNs {
        self.namespace.netns()
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its addresses, whether it has both or not.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// The addresses that it has.
    pub fn ips(&self) -> Vec<IpAddr> {
        self.families.of(self.addresses)
    }

    /// Name of its link at the node.
    pub fn link(&self) -> &str {
        &self.link
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // The namespace lives on while a thread is in it; the link goes at once, as when a container dies.
        super::namespace::run_ip(&["-n", &self.node, "link", "delete", &self.link], "").ok();
    }
}
