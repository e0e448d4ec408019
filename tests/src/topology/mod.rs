//! Networks made of namespaces: nodes, pods and outside hosts on one wire, with addresses of both families.
//!
//! ```text
//!            wire (a bridge in a namespace of its own, 192.0.2.254)
//!      eth0 ─┴─ eth0 ─────────── eth0
//!    node 1    node 2           outside host
//!   ├ veth ── pod (routed: /32 and /128, gateway on the host's end)
//!   └ cni0 ── pod (bridged: /24 and /64)
//! ```
//!
//! Each node has a bpffs, a cgroup and a run directory of its own, so that several agents run side by side and nothing
//! outlives the test. Names begin with `blt`, the pid and a counter; [`sweep`] removes what a dead run left behind.

mod cgroup;
mod families;
mod namespace;
mod node;
mod offload;
mod sweep;
pub mod tun;
mod uplink;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use lb_common::family::Family;

pub use cgroup::remove_patiently as remove_cgroup_patiently;
pub use families::Families;
pub use namespace::{Namespace, NetNs};
pub use node::{Node, NodeOptions, Pod};
pub use offload::{Checksums, set_checksums};
pub use sweep::sweep;
pub use uplink::Uplink;

/// Every name of ours begins so.
pub const PREFIX: &str = "blt";
/// Where directories of tests stand: one for each topology, with bpffs mounts and run directories in it.
pub const RUN_ROOT: &str = "/run/ballast-tests";
/// Cluster IPs of the tests are taken from here; no host has an address in it.
pub const SERVICE_NET4: &str = "10.96.0.0/16";
/// IPv6 cluster IPs of the tests are taken from here.
pub const SERVICE_NET6: &str = "fd00:96::/112";

static COUNTER: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();

/// Addresses of one host, one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// Both, for loops over the families.
    pub fn both(self) -> [IpAddr; 2] {
        [self.v4.into(), self.v6.into()]
    }

    /// The one of this family.
    pub fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }

    /// The one of the other address's family.
    pub fn like(self, other: IpAddr) -> IpAddr {
        self.of(Family::of(other))
    }
}

/// A wire and everything on it; dropped, all of it is removed.
#[derive(Debug)]
pub struct Topology {
    name: String,
    wire: Namespace,
    directory: Directory,
    hosts: AtomicU32,
}

impl Topology {
    /// An empty wire. `subject` is part of every name that `ip netns` shows.
    pub fn new(subject: &str) -> Result<Self> {
        SWEPT.call_once(|| {
            if let Err(error) = sweep() {
                eprintln!("sweep of an earlier run's leftovers failed: {error:#}");
            }
        });
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{subject}", std::process::id());
        let directory = Directory::new(&name)?;
        let wire = Namespace::new(&format!("{name}-wire"))?;
        wire.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        wire.sysctl("net/ipv4/ip_forward", "1")?;
        wire.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        wire.ip("link add br0 type bridge\n\
                 link set br0 up\n\
                 address add 192.0.2.254/24 dev br0\n\
                 address add 2001:db8:1::fe/64 dev br0 nodad")?;
        Ok(Self { name, wire, directory, hosts: AtomicU32::new(1) })
    }

    /// Name that all names of this topology begin with.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Directory of this topology, removed with it: a place for manifests.
    pub fn directory(&self) -> &Path {
        &self.directory.0
    }

    /// The namespace of the wire: it also is every host's default gateway, and so may watch or drop.
    pub fn wire(&self) -> &Namespace {
        &self.wire
    }

    /// A node with the default options.
    pub fn node(&self) -> Result<Node> {
        self.node_with(NodeOptions::default())
    }

    /// A node.
    pub fn node_with(&self, options: NodeOptions) -> Result<Node> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed);
        let host = self.host(&format!("node{number}"), number, options.families, options.uplink)?;
        Node::new(host, number, &self.directory.0, options).with_context(|| format!("node {number} of {}", self.name))
    }

    /// A host on the wire that is no node: with the families of the node `via`, and routes for pods and cluster IPs by way of it.
    pub fn outside(&self, name: &str, via: &Node) -> Result<Outside> {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed);
        let families = via.families();
        let host = self.host(name, number, families, Uplink::Plain)?;
        let Addresses { v4, v6 } = via.addresses();
        host.namespace.ip(&families.commands(
            &format!("route add {SERVICE_NET4} via {v4}\nroute add {} via {v4}", via.pod_net4()),
            &format!("route add {SERVICE_NET6} via {v6}\nroute add {} via {v6}", via.pod_net6()),
        ))?;
        Ok(Outside { namespace: host.namespace, addresses: host.addresses, families })
    }

    fn host(&self, name: &str, number: u32, families: Families, uplink: Uplink) -> Result<Host> {
        let namespace = Namespace::new(&format!("{}-{name}", self.name))?;
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        let addresses =
            Addresses { v4: format!("192.0.2.{number}").parse()?, v6: format!("2001:db8:1::{number:x}").parse()? };
        let port = format!("port{number}");
        // The host's end is made in its namespace under its final name: nothing shows up in the namespace of the test.
        self.wire.ip(&format!(
            "link add {port} type veth peer name eth0 netns {}\nlink set {port} master br0 up",
            namespace.name()
        ))?;
        // As on the wire: packets carry complete checksums, and the peer of a link with XDP has NAPI.
        set_checksums(&self.wire, &port, Checksums::Complete)?;
        set_checksums(&namespace, "eth0", Checksums::Complete)?;
        let Addresses { v4, v6 } = addresses;
        namespace.ip(&format!("{}\nlink set eth0 up", families.loopback_commands()))?;
        uplink.make(&namespace)?;
        let link = uplink.name();
        namespace.ip(&families.commands(
            &format!("address add {v4}/24 dev {link}\nroute add default via 192.0.2.254"),
            &format!("address add {v6}/64 dev {link} nodad\nroute add ::/0 via 2001:db8:1::fe"),
        ))?;
        Ok(Host { namespace, addresses })
    }
}

/// A host on the wire, before it becomes a node or an outside host.
struct Host {
    namespace: Namespace,
    addresses: Addresses,
}

/// A host on the wire that is no node.
#[derive(Debug)]
pub struct Outside {
    namespace: Namespace,
    addresses: Addresses,
    families: Families,
}

impl Outside {
    /// Where its clients and servers run.
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

    pub fn families(&self) -> Families {
        self.families
    }
}

/// The topology's directory, removed with it.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Result<Self> {
        let path = Path::new(RUN_ROOT).join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("directory {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        sweep::remove_directory(&self.0);
    }
}
