//! A version of Ballast under measurement: its agent on a node of its own fills the tables, and its programs are run by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use aya::maps::MapData;
use aya::programs::{SchedClassifier, loaded_programs};
use lb_tests::cluster::Process;
use lb_tests::topology::{Node, Pod, Topology};

use super::frames::{ACK, SYN, tcp};
use super::runner::{Ran, run};

/// The service, in both families.
const CLUSTER_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 80)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x80))];
const PORT: u16 = 80;
const TARGET: u16 = 8080;
/// How soon it must serve.
const SOON: Duration = Duration::from_mins(1);
/// `TC_ACT_SHOT`.
const DROP: u32 = 2;
/// The backend's initial sequence number.
const BACKEND_ISN: u32 = 9_000;

/// The programs of one version, with one service of one backend in the tables. Fields in the order in which they must end.
pub struct Subject {
    pub name: &'static str,
    pod_in: SchedClassifier,
    pod_out: SchedClassifier,
    _agent: Process,
    client: Pod,
    backend: Pod,
    node: Node,
    _topology: Topology,
}

impl Subject {
    pub fn start(name: &'static str, agent: &Path) -> Result<Self> {
        let topology = Topology::new("packet")?;
        let node = topology.node()?;
        let (client, backend) = (node.pod("client")?, node.pod("backend")?);
        let manifest = topology.directory().join("manifest.yaml");
        std::fs::write(&manifest, manifest_of(&backend))?;
        let mut command = Command::new(agent);
        command.arg("agent").arg(format!("--source=file={}", manifest.display()));
        // Segments of no connection are refused from the start, as later.
        command.arg("--adoption-window=0s");
        command.arg(format!("--node-name={}", node.node_name())).arg("--cgroup-root").arg(node.cgroup());
        command.arg("--bpffs").arg(node.bpffs()).arg("--run-dir").arg(node.run_dir());
        let process = Process::start(command, &topology.directory().join("agent.log"), Some(node.netns()))?;
        let started = Instant::now();
        let [pod_in, pod_out] = loop {
            process.check()?;
            match programs(node.bpffs()) {
                Ok(found) => break found,
                Err(error) if started.elapsed() > SOON => {
                    return Err(error).with_context(|| format!("not within {SOON:?}; it said:\n{}", process.tail()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        let this = Self { name, pod_in, pod_out, _agent: process, client, backend, node, _topology: topology };
        let begun = Instant::now();
        while let Err(error) = (0..2).try_for_each(|family| this.open(family, 1)) {
            if begun.elapsed() > SOON {
                return Err(error.context(format!("version {name:?} serves nothing")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(this)
    }

    /// Where the packets must be run: routes and neighbours are looked up there.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.node.namespace().netns().run(work)
    }

    pub fn service(family: usize) -> SocketAddr {
        SocketAddr::new(CLUSTER_IPS[family], PORT)
    }

    pub fn client(&self, family: usize, port: u16) -> SocketAddr {
        SocketAddr::new(self.client.addresses().both()[family], port)
    }

    pub fn backend(&self, family: usize) -> SocketAddr {
        SocketAddr::new(self.backend.addresses().both()[family], TARGET)
    }

    /// What a client's packet costs.
    pub fn request(&self, packet: &[u8]) -> Result<Ran> {
        run(&self.pod_in, packet)
    }

    /// What the backend's packet costs at the client's link.
    pub fn reply(&self, packet: &[u8]) -> Result<Ran> {
        run(&self.pod_out, packet)
    }

    /// A connection from this port is made: SYN, SYN+ACK, ACK.
    pub fn open(&self, family: usize, port: u16) -> Result<()> {
        let (from, to, backend) = (self.client(family, port), Self::service(family), self.backend(family));
        self.within(|| {
            let sent = self.request(&tcp(from, to, SYN, 1_000, 0))?;
            ensure!(sent.bytes != tcp(from, to, SYN, 1_000, 0), "the first packet is left alone");
            let told = self.reply(&tcp(backend, from, SYN | ACK, BACKEND_ISN, 1_001))?;
            ensure!(told.bytes != tcp(backend, from, SYN | ACK, BACKEND_ISN, 1_001), "the answer is left alone");
            let known = self.request(&tcp(from, to, ACK, 1_001, BACKEND_ISN + 1))?;
            ensure!([sent.verdict, told.verdict, known.verdict].iter().all(|verdict| *verdict != DROP), "dropped");
            Ok(())
        })
    }
}

/// `pod_in` and `pod_out` that use the maps pinned there.
pub fn programs(bpffs: &Path) -> Result<[SchedClassifier; 2]> {
    let set = if bpffs.join("ballast/tables").exists() { "ballast/tables/flows4" } else { "ballast/flows4" };
    let map = MapData::from_pin(bpffs.join(set)).context("no map flows4 is pinned yet")?;
    let id = map.info()?.id();
    let mut found = [None, None];
    for info in loaded_programs() {
        let Ok(info) = info else { continue };
        let position = ["pod_in", "pod_out"].iter().position(|name| info.name_as_str() == Some(name));
        let Some(position) = position else { continue };
        if info.map_ids().ok().flatten().is_some_and(|ids| ids.contains(&id)) {
            found[position] = Some(SchedClassifier::from_program_info(info, ["pod_in", "pod_out"][position].into())?);
        }
    }
    match found {
        [Some(pod_in), Some(pod_out)] => Ok([pod_in, pod_out]),
        _ => bail!("pod_in and pod_out are not loaded yet"),
    }
}

fn manifest_of(backend: &Pod) -> String {
    let [v4, v6] = CLUSTER_IPS;
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: bench, name: echo}}\n\
         spec: {{clusterIPs: [\"{v4}\", \"{v6}\"], ports: [\
         {{name: tcp, port: {PORT}, targetPort: {TARGET}, protocol: TCP}}, \
         {{name: udp, port: {PORT}, targetPort: {TARGET}, protocol: UDP}}]}}\n"
    );
    let slices = backend.addresses().both().map(|backend| {
        let family = if backend.is_ipv4() { "IPv4" } else { "IPv6" };
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{namespace: bench, name: echo-{}, labels: {{kubernetes.io/service-name: echo}}}}\n\
             addressType: {family}\nports: [\
             {{name: tcp, port: {TARGET}, protocol: TCP}}, {{name: udp, port: {TARGET}, protocol: UDP}}]\n\
             endpoints: [{{addresses: [\"{backend}\"], conditions: {{ready: true}}}}]\n",
            family.to_lowercase()
        )
    });
    service + &slices.concat()
}
