//! Ballast on a side, told of the same services as everybody else by a manifest.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use lb_tests::cluster::Process;
use serde_json::{Value, json};

use super::side::{BACKEND6, BACKENDS4, Side};
use crate::control::objects::{self, NAMESPACE, PORT, TARGET_PORT};

/// The service of IPv6.
const CLUSTER_IP6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x80);

/// An agent on a side. Fields in the order in which they must end.
pub struct Ballast {
    agent: Process,
    pub side: Side,
}

impl Ballast {
    /// Starts it with that many IPv4 services and one of IPv6.
    pub fn start(program: &Path, side: Side, services: usize, flags: &[&str]) -> Result<Self> {
        let manifest = side.node.run_dir().join("manifest");
        std::fs::create_dir_all(&manifest)?;
        std::fs::write(manifest.join("services.yaml"), manifest_of(services))
            .with_context(|| format!("writing {}", manifest.display()))?;
        let mut command = Command::new(program);
        command.arg("agent").arg(format!("--source=file={}", manifest.display()));
        command.arg(format!("--node-name={}", side.node.node_name())).arg("--cgroup-root").arg(side.node.cgroup());
        command.arg("--bpffs").arg(side.node.bpffs()).arg("--run-dir").arg(side.node.run_dir());
        command.args(flags);
        let log = side.node.run_dir().join("agent.log");
        let agent = Process::start(command, &log, Some(side.node.place()))?;
        Ok(Self { agent, side })
    }

    /// The error to show if it ended.
    pub fn check(&self) -> Result<()> {
        self.agent.check()
    }

    /// The end of what it said.
    pub fn tail(&self) -> String {
        self.agent.tail()
    }
}

/// Whether the agent can leave the kernel's way out, and be told to.
pub fn knows_fast_path(program: &Path) -> Result<bool> {
    let output = Command::new(program).args(["agent", "--help"]).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("starting {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).contains("--fast-path"))
}

/// A cluster IP and its port: IPv4 by number, IPv6 the one that there is.
pub fn service(family: usize, number: usize) -> SocketAddr {
    let address = if family == 0 { IpAddr::V4(objects::cluster_ip(number)) } else { IpAddr::V6(CLUSTER_IP6) };
    SocketAddr::new(address, PORT)
}

/// Documents of JSON, which are YAML.
fn manifest_of(services: usize) -> String {
    let endpoints: Vec<Value> =
        (0..).zip(BACKENDS4).map(|(number, address)| objects::endpoint(address, true, number)).collect();
    let four = (0..services).flat_map(|number| {
        let name = objects::name(number);
        [objects::service(&name, objects::cluster_ip(number)), objects::slice(&name, &name, &endpoints)]
    });
    let six = [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "six", "namespace": NAMESPACE},
            "spec": {"clusterIP": CLUSTER_IP6, "clusterIPs": [CLUSTER_IP6], "ipFamilies": ["IPv6"],
                "ports": [{"name": "http", "protocol": "TCP", "port": PORT, "targetPort": TARGET_PORT}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "six", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "six"}},
            "addressType": "IPv6", "ports": [{"name": "http", "protocol": "TCP", "port": TARGET_PORT}],
            "endpoints": [{"addresses": [BACKEND6], "conditions": {"ready": true}}],
        }),
    ];
    four.chain(six).map(|document| format!("---\n{document}\n")).collect::<Vec<_>>().concat()
}
