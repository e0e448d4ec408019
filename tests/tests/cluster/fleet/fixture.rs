//! Two nodes with agents of the manual's DaemonSet, and a host with the API server and the plugin.

use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Pod as KubePod, Secret};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use lb_tests::agent::{self, Agent};
use lb_tests::cluster::{Hosted, tools};
use lb_tests::guide::{Guide, commands};
use lb_tests::topology::{Node, Outside, Topology};
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../../../docs/src/fleet.md");
pub const NAMESPACE: &str = "kube-system";
/// The user that the DaemonSet's pods are.
const AGENT_USER: &str = "system:serviceaccount:kube-system:ballast";
/// Whom the manual binds the rights of an operator to.
pub const OPERATOR: &str = "jane";
/// Where the DaemonSet mounts the Secret.
const MOUNTED: &str = "/etc/ballast-fleet";

/// Two nodes with agents, and the host of the API server, where the plugin runs. Fields in the order in which they must end.
pub struct Fleet {
    pub agents: Vec<Agent>,
    pub cluster: Hosted,
    api: Outside,
    pub nodes: [Node; 2],
    pub folder: tempfile::TempDir,
    _topology: Topology,
}

impl Fleet {
    /// What the manual's section "Switch it on" does, and what the DaemonSet controller and the kubelets do about it.
    pub fn new(subject: &str) -> Result<Self> {
        let topology = Topology::new(subject)?;
        let nodes = [topology.node()?, topology.node()?];
        nodes[0].route_to(&nodes[1])?;
        nodes[1].route_to(&nodes[0])?;
        let api = topology.outside("api", &nodes[0])?;
        let cluster = Hosted::start(&api)?;
        nodes.iter().try_for_each(|node| cluster.create_node(node))?;
        let guide = Guide::new(&cluster, api.netns())?;
        let component = "components: [../fleet]";
        ensure!(PAGE.contains(component), "the manual says how the component is added");
        guide.run(&format!("echo '{component}' >> deploy/kustomize/example/kustomization.yaml"), &nodes[0])?;
        let all = commands(PAGE, "## Switch it on");
        ensure!(!all.is_empty(), "commands");
        for command in &all {
            guide.run(command, &nodes[0])?;
        }
        let folder = tempfile::tempdir()?;
        symlink(agent::binary()?, folder.path().join("kubectl-ballast"))?;
        let mut this = Self { agents: Vec::new(), cluster, api, nodes, folder, _topology: topology };
        this.start_agents()?;
        Ok(this)
    }

    /// The pods of the DaemonSet, whose agents run with its options and with the rights of its ServiceAccount.
    fn start_agents(&mut self) -> Result<()> {
        let (set, secret) = self.cluster.with_client(|client| async move {
            let set = Api::<DaemonSet>::namespaced(client.clone(), NAMESPACE).get("ballast").await?;
            let secret = Api::<Secret>::namespaced(client, NAMESPACE).get("ballast-fleet").await?;
            Ok((set, secret))
        })?;
        let template = serde_json::to_value(set.spec.template)?;
        let arguments = template["spec"]["containers"][0]["args"].as_array().context("arguments")?.clone();
        let kubeconfig = self.cluster.kubeconfig_as(AGENT_USER)?;
        for node in &self.nodes {
            let mounted = node.run_dir().join("fleet");
            std::fs::create_dir_all(&mounted)?;
            for (name, content) in secret.data.iter().flatten() {
                std::fs::write(mounted.join(name), &content.0)?;
            }
            let mounted = mounted.display().to_string();
            let flags = arguments.iter().filter_map(Value::as_str).filter(|flag| flag.starts_with("--fleet-"));
            let flags: Vec<String> = flags.map(|flag| flag.replace(MOUNTED, &mounted)).collect();
            ensure!(flags.len() == 3, "{arguments:?}");
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let mut agent = Hosted::agent_by(&kubeconfig, node, &flags)?;
            agent.restart()?;
            self.agents.push(agent);
            self.create_pod(node, &template)?;
        }
        Ok(())
    }

    fn create_pod(&self, node: &Node, template: &Value) -> Result<()> {
        let mut pod = template.clone();
        pod["metadata"]["name"] = json!(format!("ballast-{}", node.node_name()));
        self.run_pod(NAMESPACE, pod, node, &node.ips())
    }

    /// Makes the pod's object, and says of it what the node's kubelet says of a pod with these addresses.
    pub fn run_pod(&self, namespace: &str, mut pod: Value, node: &Node, ips: &[IpAddr]) -> Result<()> {
        pod["spec"]["nodeName"] = json!(node.node_name());
        let name = pod["metadata"]["name"].as_str().context("a name")?.to_owned();
        let all: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let status = json!({"status": {"phase": "Running", "podIP": ips[0], "podIPs": all, "hostIP": node.ips()[0]}});
        self.cluster.with_client(|client| async move {
            let pods = Api::<KubePod>::namespaced(client, namespace);
            pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
            pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
            Ok(())
        })
    }

    /// Runs kubectl on the host of the API server as this user, with the plugin in its PATH.
    fn kubectl(&self, user: &str, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new(tools().join("kubectl"));
        let path = format!("{}:{}", self.folder.path().display(), std::env::var("PATH").unwrap_or_default());
        command.args(arguments).env("PATH", path).env("KUBECONFIG", self.cluster.kubeconfig_as(user)?);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        Ok(self.api.netns().run(|| command.output())?)
    }

    /// The exit code of `kubectl ballast`, and all that it printed.
    pub fn ballast(&self, user: &str, arguments: &[&str]) -> Result<(Option<i32>, String)> {
        let output = self.kubectl(user, &[&["ballast"], arguments].concat())?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok((output.status.code(), text))
    }

    /// A command of the manual, as a shell of an operator runs it: `kubectl` on the host of the API server, `sudo ballast` on the node.
    /// Its output goes to pipes.
    pub fn shell(&self, command: &str, node: usize) -> Result<Child> {
        let (on_node, folder) = (command.starts_with("sudo "), self.folder.path());
        let (agent, node) = (agent::binary()?, &self.nodes[node]);
        let (bpffs, run_dir) = (node.bpffs().display(), node.run_dir().display());
        let script = format!("#!/bin/sh\nexec {} \"$@\" --bpffs={bpffs} --run-dir={run_dir}\n", agent.display());
        let programs = folder.join(node.node_name());
        std::fs::create_dir_all(&programs)?;
        std::fs::write(programs.join("ballast"), script)?;
        std::fs::set_permissions(programs.join("ballast"), std::fs::Permissions::from_mode(0o755))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{}:{path}", programs.display(), folder.display(), tools().display());
        let netns = if on_node { node.netns() } else { self.api.netns() };
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {}", command.trim_start_matches("sudo "))]);
        shell.env("PATH", path).env("KUBECONFIG", self.cluster.kubeconfig_as(OPERATOR)?);
        shell.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(netns.start(&mut shell)?)
    }

    /// A file with a token of this ServiceAccount; without an audience it is for the API server itself.
    pub fn token(&self, account: &str, audience: Option<&str>) -> Result<PathBuf> {
        let audience = audience.map(|audience| format!("--audience={audience}"));
        let fixed = ["-n", NAMESPACE, "create", "token", account];
        let arguments: Vec<&str> = fixed.into_iter().chain(audience.as_deref()).collect();
        let output = self.admin(&arguments)?;
        let file = self.folder.path().join(format!("{account}-{}", audience.is_some()));
        std::fs::write(&file, output)?;
        Ok(file)
    }

    pub fn admin(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(tools().join("kubectl"));
        command.args(arguments).env("KUBECONFIG", self.cluster.kubeconfig()).stdin(Stdio::null());
        let output = self.api.netns().run(|| command.output())?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}
