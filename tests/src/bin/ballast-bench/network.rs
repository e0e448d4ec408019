//! Two nodes with a client and a backend each: one with Ballast, one without.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lb_tests::cluster::Process;
use lb_tests::topology::{Node, Place, Pod, Topology};
use socket2::SockRef;

use crate::connect::{self, MESSAGE_BYTES};

/// The service, in both families.
const CLUSTER_IPS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 96, 0, 80)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x80))];
/// Port of the service, and of its backend.
const PORT: u16 = 8080;
/// Port of the same backend for direct connections: the two ways never meet in one tuple of addresses and ports, where one of
/// them would have to take another source port.
const DIRECT_PORT: u16 = 8081;
/// How soon the agent must serve.
const SOON: Duration = Duration::from_secs(10);
/// How often a waiting server looks whether it shall stop.
const TICK: Duration = Duration::from_millis(50);

/// All of it; dropped, everything is removed. Fields are dropped in their order: the agent first, the topology last.
pub struct Network {
    agent: Process,
    pub served: Side,
    pub bare: Side,
    _topology: Topology,
}

/// A node with a client and a backend.
pub struct Side {
    _servers: Vec<Server>,
    client: Pod,
    backend: Pod,
    node: Node,
}

impl Network {
    /// Makes the nodes and starts the agent on one of them.
    pub fn new(agent: &Path, stop: &AtomicBool) -> Result<Self> {
        let topology = Topology::new("bench")?;
        let (served, bare) = (Side::new(topology.node()?)?, Side::new(topology.node()?)?);
        let agent = start_agent(agent, &topology, &served)?;
        let network = Self { agent, served, bare, _topology: topology };
        for address in CLUSTER_IPS {
            network.wait_for(SocketAddr::new(address, PORT), stop)?;
        }
        Ok(network)
    }

    /// Addresses of the service: IPv4, IPv6.
    pub fn cluster_ips() -> [SocketAddr; 2] {
        CLUSTER_IPS.map(|address| SocketAddr::new(address, PORT))
    }

    fn wait_for(&self, service: SocketAddr, stop: &AtomicBool) -> Result<()> {
        let started = Instant::now();
        loop {
            self.agent.check()?;
            match connect::block(self.served.client(), service, 1) {
                Ok(_) => return Ok(()),
                Err(_) if stop.load(Ordering::Relaxed) => bail!("interrupted"),
                Err(error) if started.elapsed() > SOON => {
                    return Err(error).with_context(|| {
                        format!("{service} is not served within {SOON:?}; the agent said:\n{}", self.agent.tail())
                    });
                }
                Err(_) => sleep(TICK),
            }
        }
    }
}

impl Side {
    fn new(node: Node) -> Result<Self> {
        let (client, backend) = (node.pod("client")?, node.pod("backend")?);
        let addresses = backend.addresses().both().into_iter();
        let addresses = addresses.flat_map(|address| [PORT, DIRECT_PORT].map(|port| SocketAddr::new(address, port)));
        let servers = addresses.map(|address| Server::new(backend.place(), address));
        Ok(Self { _servers: servers.collect::<Result<_>>()?, client, backend, node })
    }

    /// Where connections come from.
    pub fn client(&self) -> &Place {
        self.client.place()
    }

    /// Where the backend answers direct connections: IPv4, IPv6.
    pub fn direct(&self) -> [SocketAddr; 2] {
        self.backend.addresses().both().map(|address| SocketAddr::new(address, DIRECT_PORT))
    }
}

fn start_agent(agent: &Path, topology: &Topology, side: &Side) -> Result<Process> {
    let manifest = topology.directory().join("manifest.yaml");
    std::fs::write(&manifest, manifest_of(side)).with_context(|| format!("writing {}", manifest.display()))?;
    let mut command = Command::new(agent);
    command.arg("agent").arg("--source").arg(format!("file={}", manifest.display()));
    command.args(["--node-name", &side.node.node_name()]);
    command.arg("--bpffs").arg(side.node.bpffs()).arg("--run-dir").arg(side.node.run_dir());
    command.arg("--cgroup-root").arg(side.node.cgroup());
    Process::start(command, &topology.directory().join("agent.log"), Some(side.node.place()))
}

/// One service with one backend in both families.
fn manifest_of(side: &Side) -> String {
    let [v4, v6] = CLUSTER_IPS;
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: bench, name: echo}}\n\
         spec: {{clusterIPs: [\"{v4}\", \"{v6}\"], ports: [{{port: {PORT}, protocol: TCP}}]}}\n"
    );
    let slices = side.backend.addresses().both().map(|backend| {
        let family = if backend.is_ipv4() { "IPv4" } else { "IPv6" };
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{namespace: bench, name: echo-{}, labels: {{kubernetes.io/service-name: echo}}}}\n\
             addressType: {family}\nports: [{{name: \"\", port: {PORT}, protocol: TCP}}]\n\
             endpoints: [{{addresses: [\"{}\"], conditions: {{ready: true}}}}]\n",
            family.to_lowercase(),
            backend
        )
    });
    service + &slices.concat()
}

/// Answers one message on each connection with the same bytes; one thread, so that it costs the same for every arm.
struct Server {
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Server {
    fn new(place: &Place, address: SocketAddr) -> Result<Self> {
        let listener = place.run(|| TcpListener::bind(address)).with_context(|| format!("a server on {address}"))?;
        // Bounds accept().
        SockRef::from(&listener).set_read_timeout(Some(TICK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let worker = place.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else { continue };
                let mut message = [0; MESSAGE_BYTES];
                // A client that goes away in between reports it.
                if stream.set_read_timeout(Some(SOON)).is_ok() && stream.read_exact(&mut message).is_ok() {
                    stream.write_all(&message).ok();
                }
            }
        });
        Ok(Self { stop, worker: Some(worker) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            worker.join().ok();
        }
    }
}
