//! Ballast's agent as a process: started, cleaned up, asked for its metrics and, as any other, for its memory.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lb_tests::cluster::Process;
use lb_tests::topology::Node;
use serde::Serialize;

/// How long an agent's HTTP server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process takes of the machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Resident.
    pub rss: u64,
    /// Resident, with what is shared divided among those who share it.
    pub pss: u64,
    /// Resident and its own: neither its program nor a library.
    pub anonymous: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

impl Memory {
    pub fn of(process: &Process) -> Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{}/{file}", process.pid());
            std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))
        };
        let (now, peak) = (read("smaps_rollup")?, read("status")?);
        let field = |text: &str, name: &str| parse_kib(text, name).with_context(|| format!("no {name}"));
        Ok(Self {
            rss: field(&now, "Rss")?,
            pss: field(&now, "Pss")?,
            anonymous: field(&now, "Anonymous")?,
            peak: field(&peak, "VmHWM")?,
        })
    }
}

/// A number of kibibytes as the kernel writes it, in bytes.
fn parse_kib(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// How Ballast is started.
pub struct Ballast<'a> {
    pub program: &'a Path,
    pub node: &'a Node,
    /// Its log, added to by each start.
    pub log: PathBuf,
}

impl Ballast<'_> {
    pub fn start(&self, flags: &[String]) -> Result<Process> {
        std::fs::remove_file(&self.log).ok();
        let mut command = Command::new(self.program);
        command.arg("agent").arg(format!("--node-name={}", self.node.node_name()));
        self.folders(&mut command).arg("--cgroup-root").arg(self.node.cgroup());
        command.args(["--log-level=debug", "--metrics-bind=127.0.0.1:10249", "--health-bind=127.0.0.1:10256"]);
        command.args(flags);
        Process::start(command, &self.log, Some(self.node.netns()))
    }

    /// Removes what an agent that ended left in the kernel.
    pub fn clean_up(&self) -> Result<()> {
        let mut command = Command::new(self.program);
        command.arg("cleanup").stdin(Stdio::null()).stdout(Stdio::null());
        self.folders(&mut command);
        let status = self.node.netns().run(|| command.status()).context("ballast cleanup")?;
        ensure!(status.success(), "ballast cleanup ended with {status}");
        Ok(())
    }

    /// Sum of the points of a metric.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let text = get(self.node, "/metrics")?;
        let is_ours = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values = text.lines().filter(is_ours).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        let values: Vec<f64> = values.collect();
        ensure!(!values.is_empty(), "the agent has no metric {name}");
        Ok(values.iter().sum())
    }

    fn folders<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.arg("--bpffs").arg(self.node.bpffs()).arg("--run-dir").arg(self.node.run_dir())
    }
}

fn get(node: &Node, path: &str) -> Result<String> {
    let mut text = String::new();
    node.netns().run(|| -> Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", 10249))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut text)?;
        Ok(())
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::parse_kib;

    #[test]
    fn the_kernels_kibibytes_are_read() {
        let text =
            "00400000-7ffc [rollup]\nRss:               49140 kB\nPss:                46000 kB\nPss_Anon: 3 kB\n";
        assert_eq!(parse_kib(text, "Rss"), Some(49_140 * 1024));
        assert_eq!(parse_kib(text, "Pss"), Some(46_000 * 1024));
        assert_eq!(parse_kib(text, "VmHWM"), None);
    }
}
