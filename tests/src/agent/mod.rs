//! The real agent on a node of the tests: started, fed with manifests, asked, killed.

mod command;
mod manifest;
mod metrics;

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ipnet::IpNet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;

pub use command::binary;
pub use manifest::{Endpoint, External, Manifest, Port, Protocol, Service};

use crate::peers::eventually;
use crate::steps::{Step, Stepped};
use crate::topology::{NetNs, Node};

/// How long an agent may take to make a change. Generous: a test machine may be busy.
pub const SOON: Duration = Duration::from_mins(1);
/// How long an agent may take to start: in an emulated machine the verifier alone takes minutes.
pub const START: Duration = Duration::from_mins(8);

/// The flag that names these nodes as those that may send packets in outer headers.
pub fn peers_flag(nodes: &[Node]) -> String {
    let addresses = nodes.iter().flat_map(Node::ips).map(|address| IpNet::from(address).to_string());
    format!("--dsr-peers={}", addresses.collect::<Vec<_>>().join(","))
}

/// An agent, alive or dead, and the folder that it takes its manifest from. Dropped, it is killed and its things are removed.
#[derive(Debug)]
pub struct Agent {
    netns: NetNs,
    /// `None`: that of the workspace.
    binary: Option<PathBuf>,
    arguments: Vec<String>,
    /// Variables of its environment.
    environment: Vec<(&'static str, String)>,
    folder: PathBuf,
    bpffs: PathBuf,
    /// Of the log and of manifests that are being written.
    home: PathBuf,
    run_dir: PathBuf,
    /// The address of its metrics and probes.
    asked_at: IpAddr,
    child: Option<Child>,
}

impl Agent {
    /// Starts an agent on this node and waits until its tables hold the manifest.
    pub fn start(node: &Node, manifest: &Manifest) -> Result<Self> {
        Self::start_with(node, manifest, &[])
    }

    /// [`Self::start`] with more flags.
    pub fn start_with(node: &Node, manifest: &Manifest, flags: &[&str]) -> Result<Self> {
        let mut agent = Self::prepare(node, flags)?;
        agent.write(manifest)?;
        agent.restart()?;
        Ok(agent)
    }

    /// An agent that does not run yet.
    pub fn prepare(node: &Node, flags: &[&str]) -> Result<Self> {
        Self::prepare_in(node, node.run_dir(), flags)
    }

    /// [`Self::prepare`] with a run folder of its own; the log and the manifest are where they always are.
    pub fn prepare_in(node: &Node, run_dir: &Path, flags: &[&str]) -> Result<Self> {
        let folder = node.run_dir().join("manifest");
        std::fs::create_dir_all(&folder)?;
        let (arguments, asked_at) = command::arguments(node, run_dir, &folder, flags)?;
        Ok(Self {
            netns: node.netns().clone(),
            binary: None,
            arguments,
            environment: Vec::new(),
            folder,
            bpffs: node.bpffs().to_owned(),
            home: node.run_dir().to_owned(),
            run_dir: run_dir.to_owned(),
            asked_at,
            child: None,
        })
    }

    /// Runs another build of the agent, with the programs in it.
    #[must_use]
    pub fn built_as(mut self, binary: PathBuf) -> Self {
        self.arguments.retain(|argument| !argument.starts_with("--programs="));
        self.binary = Some(binary);
        self
    }

    /// Gives it a variable in its environment.
    #[must_use]
    pub fn with_variable(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    /// Starts it, or starts it again, and waits until it is ready.
    pub fn restart(&mut self) -> Result<()> {
        self.launch()?;
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().context("not started")?.try_wait()? {
                bail!("the agent ended with {status}:\n{}", self.log());
            }
            if self.is_ready() {
                return Ok(());
            }
            ensure!(start.elapsed() < START, "the agent is not ready within {START:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// The same with other flags, on the same node. The agent before is killed; what it pinned stays, and programs that these flags do not change
    /// are not verified again.
    pub fn restart_with(&mut self, node: &Node, flags: &[&str]) -> Result<()> {
        (self.arguments, self.asked_at) = command::arguments(node, &self.run_dir, &self.folder, flags)?;
        self.restart()
    }

    /// Starts it without waiting for anything.
    pub fn launch(&mut self) -> Result<()> {
        self.kill();
        let mut command = self.command()?;
        self.child = Some(self.netns.start(&mut command).context("starting the agent")?);
        Ok(())
    }

    /// Starts it with a limit from the beginning, and waits for nothing.
    pub fn launch_limited(&mut self, resource: Resource, most: u64) -> Result<()> {
        self.kill();
        let mut command = self.command()?;
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        // SAFETY: between fork and exec there is one system call, which allocates nothing.
        unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) };
        self.child = Some(self.netns.start(&mut command).context("starting the agent")?);
        Ok(())
    }

    /// Starts it to be watched step by step, and killed at one of them if one is given. Waits for nothing.
    pub fn launch_stepped(&mut self, kill_at: Option<Step>) -> Result<Stepped> {
        self.kill();
        Stepped::start(&self.netns, self.command()?, kill_at)
    }

    /// The agent's command line, with the log as its output.
    fn command(&self) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = self.program()?;
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    fn program(&self) -> Result<Command> {
        Ok(command::of(match &self.binary {
            Some(binary) => binary.clone(),
            None => binary()?,
        }))
    }

    /// Runs it to its end, for starts that must fail; one that does not is killed.
    pub fn run_to_end(&mut self) -> Result<Output> {
        let mut command = self.program()?;
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.netns.start(&mut command)?;
        let start = std::time::Instant::now();
        while child.try_wait()?.is_none() {
            if start.elapsed() > SOON {
                child.kill()?;
            }
            std::thread::sleep(Duration::from_millis(30));
        }
        Ok(child.wait_with_output()?)
    }

    /// Replaces the manifest as `kubectl` users do: a new file in one step.
    pub fn write(&self, manifest: &Manifest) -> Result<()> {
        self.write_text(&manifest.yaml())
    }

    /// Replaces the manifest by any text.
    pub fn write_text(&self, text: &str) -> Result<()> {
        let new = self.home.join("manifest.new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, self.folder.join("services.yaml"))?;
        Ok(())
    }

    /// Replaces the manifest and waits until the backends that the tables show are those of the manifest.
    pub fn apply(&self, manifest: &Manifest) -> Result<()> {
        self.write(manifest)?;
        let expected = manifest.states();
        eventually("the tables hold the manifest", SOON, || {
            let mut shown = self.states().ok()?;
            // Draining backends are no more in the manifest.
            shown.retain(|(_, _, state)| state != "draining" && state != "gone");
            (shown == expected).then_some(())
        });
        Ok(())
    }

    /// Service, address:port and state of each backend, sorted.
    pub fn states(&self) -> Result<Vec<(String, String, String)>> {
        let list = self.json(&["get", "backends", "-A"])?;
        let mut states = Vec::new();
        for item in list["items"].as_array().context("no items")? {
            let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
            let address: std::net::IpAddr = text("address").parse()?;
            let port = u16::try_from(item["port"].as_u64().context("no port")?)?;
            let target = std::net::SocketAddr::new(address, port).to_string();
            states.push((text("service"), target, text("state")));
        }
        states.sort();
        Ok(states)
    }

    /// SIGKILL: what it pinned stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) -> Result<()> {
        let mut child = self.child.take().context("not running")?;
        kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGTERM)?;
        let status = child.wait()?;
        ensure!(status.success(), "the agent ended with {status} on SIGTERM:\n{}", self.log());
        Ok(())
    }

    pub fn alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Runs `ballast` with these arguments on the node.
    pub fn cli(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = self.cli_command(arguments)?;
        let netns = self.netns.clone();
        Ok(netns.run(|| command.output())?)
    }

    /// Starts it with these arguments, with pipes for its output.
    pub fn start_cli(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.cli_command(arguments)?;
        Ok(self.netns.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?)
    }

    fn cli_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = self.program()?;
        command.args(arguments).stdin(Stdio::null());
        command.arg(format!("--bpffs={}", self.bpffs.display()));
        command.arg(format!("--run-dir={}", self.run_dir.display()));
        Ok(command)
    }

    /// Same with `-o json`, parsed.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
        let output = self.cli(&arguments)?;
        ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Everything it logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn bpffs(&self) -> &Path {
        &self.bpffs
    }

    /// GET of a path on the health port: status and body.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        self.get(10256, path)
    }

    /// The metrics page.
    pub fn metrics(&self) -> Result<String> {
        Ok(self.get(10249, "/metrics")?.1)
    }

    /// GET of a path on a port of the node: status and body.
    pub fn get(&self, port: u16, path: &str) -> Result<(u16, String)> {
        self.get_at(SocketAddr::new(self.asked_at, port), path)
    }

    /// GET of a path, by a process of the node: status and body.
    pub fn get_at(&self, at: SocketAddr, path: &str) -> Result<(u16, String)> {
        use std::io::{Read as _, Write as _};
        let netns = self.netns.clone();
        let answer = netns.run(|| -> std::io::Result<String> {
            let mut stream = std::net::TcpStream::connect(at)?;
            stream.set_read_timeout(Some(SOON))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = answer.with_context(|| format!("awaiting the agent's answer to GET {path} at {at}"))?;
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status line")?;
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        Ok((status, body))
    }

    /// Whether `/readyz` says so.
    pub fn is_ready(&self) -> bool {
        matches!(self.health("/readyz"), Ok((200, _)))
    }

    fn log_path(&self) -> PathBuf {
        self.home.join("agent.log")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("agent's log:\n{}", self.log());
        }
        if let Ok(mut command) = self.program() {
            command.arg("cleanup").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.arg(format!("--bpffs={}", self.bpffs.display()));
            command.arg(format!("--run-dir={}", self.run_dir.display()));
            let netns = self.netns.clone();
            netns.run(|| command.status()).ok();
        }
    }
}
