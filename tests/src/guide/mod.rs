//! The manual's pages about kube-proxy, carried out: their commands are run as they are written, in their order.
//!
//! A command is a line of a block ```` ```sh ````, with the lines that continue it. `kubectl` and what edits the files of `deploy/` run on the
//! host of the API server, `ballast` on the node of the step.

mod crossing;
mod daemon_sets;
mod placement;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::{Hosted, binary, tools};
use crate::topology::{NetNs, Node};

pub use crossing::{Connections, Crossing};
pub use daemon_sets::{DaemonSets, create_kube_proxy};

/// The commands of a section of a page, from its heading to the next one of the same rank.
pub fn commands(page: &str, heading: &str) -> Vec<String> {
    let rank = heading.chars().take_while(|letter| *letter == '#').count();
    let is_end = |line: &str| {
        let other = line.chars().take_while(|letter| *letter == '#').count();
        (1..=rank).contains(&other)
    };
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let (mut commands, mut within, mut continues) = (Vec::<String>::new(), false, false);
    for line in lines {
        let text = line.trim();
        match text {
            "```sh" => within = true,
            _ if text.starts_with("```") => within = false,
            _ if !within && is_end(line) => break,
            _ if within && continues => {
                let last = commands.last_mut().expect("a line that it continues");
                *last = format!("{} {}", last.trim_end_matches('\\'), text);
            }
            _ if within && !text.is_empty() && !text.starts_with('#') => commands.push(text.to_owned()),
            _ => {}
        }
        continues = within && text.ends_with('\\');
    }
    commands
}

/// Where the commands run: a copy of the repository's `deploy/`, and the host of the API server.
pub struct Guide<'a> {
    cluster: &'a Hosted,
    host: &'a NetNs,
    folder: tempfile::TempDir,
}

impl<'a> Guide<'a> {
    pub fn new(cluster: &'a Hosted, host: &'a NetNs) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("blt-guide-").tempdir()?;
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy"), &folder.path().join("deploy"))?;
        Ok(Self { cluster, host, folder })
    }

    /// Runs a command that concerns this node, and returns what it printed.
    pub fn run(&self, command: &str, node: &Node) -> Result<String> {
        let mut shell = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        let programs = self.folder.path().join("bin");
        fs::create_dir_all(&programs)?;
        let (tools, programs) = (tools(), programs.display().to_string());
        shell.arg("-ec").arg(command).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env("PATH", format!("{programs}:{}:{path}", tools.display()));
        shell.env("KUBECONFIG", self.cluster.kubeconfig()).env("NODE", node.node_name());
        let netns = if command.starts_with("ballast ") || command.contains(" ballast ") {
            self.ballast(node)?;
            node.netns()
        } else {
            binary("kubectl")?;
            self.host
        };
        let output = netns.run(|| shell.output())?;
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "{command}: {}\n{text}", output.status);
        Ok(text)
    }

    /// Each node of a test has folders of its own: `ballast` without flags means those.
    fn ballast(&self, node: &Node) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let file = self.folder.path().join("bin/ballast");
        let (agent, bpffs, run_dir) = (crate::agent::binary()?, node.bpffs().display(), node.run_dir().display());
        let script = format!("#!/bin/sh\nexec {} \"$@\" --bpffs={bpffs} --run-dir={run_dir}\n", agent.display());
        fs::write(&file, script).context("a script")?;
        Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
    }
}

fn copy(from: &Path, to: &PathBuf) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let into = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &into)?;
        } else {
            fs::copy(entry.path(), &into)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commands_of_a_section_are_found_in_their_order() {
        let page = "# T\n```sh\nno\n```\n## A\n1. x\n\n   ```sh\n   one \\\n     --two\n   # a comment\n   three\n   ```\n### B\n```sh\nfour\n```\n\
                    ```yaml\nno: 1\n```\n## C\n```sh\nno\n```\n";
        assert_eq!(commands(page, "## A"), ["one  --two", "three", "four"]);
        assert_eq!(commands(page, "### B"), ["four"]);
        assert!(commands(page, "## D").is_empty());
    }
}
