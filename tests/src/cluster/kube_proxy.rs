//! The real kube-proxy in nftables mode on a node of the tests, beside which Ballast is measured.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Process, binary};
use crate::topology::Node;

/// How kube-proxy is started: in nftables mode, with its defaults but for what no namespace may change.
pub struct KubeProxy<'a> {
    pub node: &'a Node,
    pub kubeconfig: String,
    /// For its configuration and its log.
    pub folder: PathBuf,
}

impl KubeProxy<'_> {
    pub fn start(&self) -> Result<Process> {
        self.start_with(&json!({}))
    }

    /// [`Self::start`] with some fields of its configuration set otherwise.
    pub fn start_with(&self, fields: &Value) -> Result<Process> {
        self.start_by(fields, None)
    }

    /// [`Self::start_with`] with a folder of programs before all others: which `iptables` it finds.
    pub fn start_by(&self, fields: &Value, programs: Option<&Path>) -> Result<Process> {
        let file = self.folder.join("kube-proxy.json");
        let mut config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.node.node_name(),
            "bindAddress": "0.0.0.0",
            "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
            "clientConnection": {"kubeconfig": self.kubeconfig, "contentType": "application/vnd.kubernetes.protobuf"},
            // Those of the machine are not a namespace's to change.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "oomScoreAdj": 0,
        });
        for (field, value) in fields.as_object().into_iter().flatten() {
            config[field] = value.clone();
        }
        std::fs::write(&file, config.to_string()).with_context(|| file.display().to_string())?;
        let mut command = Command::new(binary("kube-proxy")?);
        command.arg("--config").arg(&file);
        if let Some(programs) = programs {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let folders = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(folders)?);
        }
        Process::start(command, &self.folder.join("kube-proxy.log"), Some(self.node.netns()))
    }

    /// Removes its rules, and what connections they made the kernel remember.
    pub fn clean_up(&self) -> Result<()> {
        let mut command = Command::new("nft");
        // Deleting what is not there is an error, and older versions have no `destroy`.
        command.arg("add table ip kube-proxy; delete table ip kube-proxy").stdin(Stdio::null());
        let status = self.node.netns().run(|| command.status()).context("nft")?;
        ensure!(status.success(), "nft ended with {status}");
        Ok(())
    }
}
