//! The demo's network: a node with three backends and a client behind it, an external host, and the agent.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lb_tests::cluster::Process;
use lb_tests::peers::Server;
use lb_tests::topology::{Addresses, NetNs, Node, Outside, Pod, Topology};
use serde_json::Value;

use crate::manifest;
use crate::waiting::Waiting;

/// The addresses of the sample's services (deploy/sample.yaml).
pub const WEB: [IpAddr; 2] = [v4(10), v6(0xa)];
pub const DNS: [IpAddr; 2] = [v4(53), v6(0x35)];
pub const EMPTY: [IpAddr; 2] = [v4(99), v6(0x63)];
/// Their ports, TCP and UDP.
pub const TCP_PORT: u16 = 80;
pub const UDP_PORT: u16 = 53;
/// The backends' ports, TCP and UDP.
const TCP_TARGET: u16 = 8080;
const UDP_TARGET: u16 = 5353;

const fn v4(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 96, 0, last))
}

const fn v6(last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, last))
}

/// What the user gave.
#[derive(Debug)]
pub struct Setting {
    pub agent: PathBuf,
    pub sample: PathBuf,
    pub drain_period: Duration,
    pub flags: Vec<String>,
}

/// A pod that answers.
pub struct Backend {
    pub name: String,
    pub addresses: Addresses,
    /// Servers and pod; none once it was killed.
    alive: Option<(Vec<Server>, Pod)>,
}

/// All of it; dropped, everything is removed. Fields are dropped in their order: the agent first, the topology last.
pub struct Fixture {
    agent: Option<Process>,
    pub backends: Vec<Backend>,
    pub client: Pod,
    pub outside: Outside,
    pub node: Node,
    pub topology: Topology,
    pub setting: Setting,
    pub waiting: Waiting,
    pub sample: String,
}

impl Fixture {
    /// Makes the topology, with servers running, and starts the agent.
    pub fn new(setting: Setting, waiting: Waiting) -> Result<Self> {
        let sample = fs::read_to_string(&setting.sample)
            .with_context(|| format!("the sample manifest {}", setting.sample.display()))?;
        let topology = Topology::new("demo")?;
        let node = topology.node()?;
        let outside = topology.outside("outside", &node)?;
        let mut backends = Vec::new();
        for number in 1..=3 {
            backends.push(backend(&node, &format!("web-{number}"))?);
        }
        let client = node.pod("client")?;
        let mut fixture = Self { agent: None, backends, client, outside, node, topology, setting, waiting, sample };
        fixture.write_manifest(&fixture.sample)?;
        fixture.start_agent()?;
        Ok(fixture)
    }

    /// Starts the agent in the node's namespace.
    pub fn start_agent(&mut self) -> Result<()> {
        let mut command = Command::new(&self.setting.agent);
        command.arg("agent").args(self.places());
        let ours = [
            ("--source", format!("file={}", self.manifest().display())),
            ("--node-name", self.node.node_name()),
            ("--cgroup-root", self.node.cgroup().display().to_string()),
            ("--drain-period", format!("{}s", self.setting.drain_period.as_secs())),
            // So that a tour sees the end of a connection that goes well.
            ("--drain-max", "0s".to_owned()),
        ];
        for (flag, value) in ours {
            // What the user gave wins.
            if !self.setting.flags.iter().any(|given| given.split('=').next() == Some(flag)) {
                command.args([flag, &value]);
            }
        }
        command.args(&self.setting.flags);
        self.agent = Some(Process::start(command, &self.log(), Some(self.node.netns()))?);
        Ok(())
    }

    /// Kills the agent with SIGKILL.
    pub fn kill_agent(&mut self) {
        self.agent = None;
    }

    /// An error with the end of its log if the agent ended by itself.
    pub fn check_agent(&self) -> Result<()> {
        self.agent.as_ref().map_or(Ok(()), Process::check)
    }

    /// The flags that every command of `ballast` needs here.
    pub fn places(&self) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        vec!["--bpffs".into(), text(self.node.bpffs()), "--run-dir".into(), text(self.node.run_dir())]
    }

    /// What `ballast` prints.
    pub fn ballast(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.setting.agent).args(arguments).args(self.places()).output();
        let output = output.with_context(|| format!("running {}", self.setting.agent.display()))?;
        if !output.status.success() {
            bail!("ballast {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The items of `ballast get WHAT -o json`.
    pub fn get(&self, what: &str) -> Result<Vec<Value>> {
        let text = self.ballast(&["get", what, "-A", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).with_context(|| format!("ballast get {what}: not JSON"))?;
        Ok(list["items"].as_array().with_context(|| format!("ballast get {what}: no items"))?.clone())
    }

    /// Waits until the agent says that it is ready: programs loaded, links attached, tables written. Returns how long that took.
    pub fn wait_until_ready(&self) -> Result<Duration> {
        let (time, ()) = self.waiting.until("the agent to be ready", || {
            self.check_agent()?;
            let status = self.ballast(&["status", "-o", "json"]).and_then(|text| Ok(serde_json::from_str(&text)?));
            Ok(ready(&status.unwrap_or_default()))
        })?;
        Ok(time)
    }

    /// Waits until `look` is content with `ballast get WHAT`; returns how long that took and what it returned.
    pub fn wait_for<T>(&self, what: &str, text: &str, look: impl Fn(&[Value]) -> Option<T>) -> Result<(Duration, T)> {
        self.waiting.until(text, || {
            self.check_agent()?;
            let items = match self.get(what) {
                Ok(items) => items,
                Err(error) => return Ok(Err(format!("{error:#}"))),
            };
            Ok(look(&items).ok_or_else(|| "the tables do not hold it yet".to_owned()))
        })
    }

    /// The states of this pod's backends, all families and ports.
    pub fn states(&self, items: &[Value], pod: &str) -> Vec<String> {
        let Some(backend) = self.backends.iter().find(|b| b.name == pod) else { return Vec::new() };
        let own: Vec<String> = backend.addresses.both().iter().map(ToString::to_string).collect();
        let of_pod = items.iter().filter(|item| own.iter().any(|address| item["address"] == **address));
        of_pod.map(|item| item["state"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits until all four backends of the pod take new connections.
    pub fn wait_until_active(&self, pod: &str) -> Result<Duration> {
        let (time, ()) = self.wait_for("backends", &format!("{pod} to be active"), |items| {
            let states = self.states(items, pod);
            (states.len() == 4 && states.iter().all(|s| s == "active")).then_some(())
        })?;
        Ok(time)
    }

    /// Waits until none of the pod's backends takes new connections: draining, or gone already on a slow machine.
    pub fn wait_until_draining(&self, pod: &str) -> Result<Duration> {
        let (time, ()) = self.wait_for("backends", &format!("{pod} to drain"), |items| {
            self.states(items, pod).iter().all(|state| state != "active").then_some(())
        })?;
        Ok(time)
    }

    /// Replaces the manifest by the sample without these pods.
    pub fn without(&self, pods: &[&str]) -> Result<()> {
        let gone = self.backends.iter().filter(|backend| pods.contains(&backend.name.as_str()));
        let addresses: Vec<IpAddr> = gone.flat_map(|backend| backend.addresses.both()).collect();
        self.write_manifest(&manifest::without(&self.sample, &addresses))
    }

    /// Kills a backend: its servers, its link, its namespace.
    pub fn kill_backend(&mut self, name: &str) {
        for backend in self.backends.iter_mut().filter(|backend| backend.name == name) {
            backend.alive = None;
        }
    }

    /// Both kinds of clients: a pod, and a process of the host.
    pub fn clients(&self) -> [(&'static str, &NetNs); 2] {
        [("pod", self.client.netns()), ("host process", self.node.netns())]
    }

    /// The manifest that the agent watches.
    pub fn manifest(&self) -> PathBuf {
        self.topology.directory().join("manifest.yaml")
    }

    /// The agent's log.
    pub fn log(&self) -> PathBuf {
        self.topology.directory().join("agent.log")
    }

    fn write_manifest(&self, text: &str) -> Result<()> {
        // Written beside and renamed: a reader never sees half a file.
        let path = self.manifest();
        let fresh = path.with_extension("new");
        fs::write(&fresh, text).with_context(|| format!("writing {}", fresh.display()))?;
        fs::rename(&fresh, &path).with_context(|| format!("replacing {}", path.display()))
    }
}

fn backend(node: &Node, name: &str) -> Result<Backend> {
    let pod = node.pod(name)?;
    let mut servers = Vec::new();
    for address in pod.addresses().both() {
        servers.push(Server::tcp(pod.netns(), name, SocketAddr::new(address, TCP_TARGET))?);
        servers.push(Server::udp(pod.netns(), name, SocketAddr::new(address, UDP_TARGET))?);
    }
    Ok(Backend { name: name.to_owned(), addresses: pod.addresses(), alive: Some((servers, pod)) })
}

/// What the agent's own report says: ready, or why not.
fn ready(status: &Value) -> Result<(), String> {
    let health = &status["agent"]["health"];
    if health["readyz"] == true {
        return Ok(());
    }
    let faults = health["faults"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let faults = faults.collect::<Vec<_>>().join("; ");
    Err(if faults.is_empty() { "it loads its programs".to_owned() } else { faults })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn readiness_is_the_agents_own_word() {
        let status = |readyz: bool| json!({"agent": {"health": {"readyz": readyz, "faults": ["the first sync"]}}});
        assert_eq!(ready(&status(true)), Ok(()));
        assert_eq!(ready(&status(false)), Err("the first sync".into()));
        assert_eq!(ready(&json!({"agent": null})), Err("it loads its programs".into()));
    }
}
