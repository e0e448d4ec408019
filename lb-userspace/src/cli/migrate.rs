//! `ballast migrate`: the agent's configuration from kube-proxy's.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;

use super::output::print;
use crate::config::kube_proxy;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// A KubeProxyConfiguration, or the ConfigMap that holds one, in YAML or JSON; `-`: standard input
    #[arg(value_name = "FILE")]
    from: PathBuf,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let from = &arguments.from;
    let text = if from.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(from)
    };
    let text = text.with_context(|| format!("cannot read {}", from.display()))?;
    let migrated = kube_proxy::migrate(&text).map_err(anyhow::Error::msg);
    print(&migrated.with_context(|| format!("{} cannot be migrated", from.display()))?.to_string())
}
