//! Other proxies on the node, running or gone: two of them would both translate the same connections.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::finding::{Finding, Level};
use lb_takeover::netfilter::{Leftovers, translated_connections};

/// What was seen of others.
#[derive(Debug, Default)]
struct Seen {
    /// Names of processes in this network namespace.
    processes: Vec<String>,
    /// What kube-proxy left, by its mode.
    kube_proxy: Vec<String>,
    /// Connections that netfilter translates, of both families.
    translated: usize,
    links: Vec<String>,
    /// Files of Cilium's among the pins.
    cilium_pins: bool,
}

/// Looks for them.
pub(super) fn examine(bpffs: &Path) -> Vec<Finding> {
    let (kube_proxy, unseen) = match Leftovers::find() {
        Ok(leftovers) => (leftovers.modes(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let seen = Seen {
        processes: processes(),
        kube_proxy,
        // Without the right to see them there are none to report.
        translated: translated_connections().map_or(0, |connections| connections.len()),
        links: nix::net::if_::if_nameindex()
            .map(|all| all.iter().map(|link| link.name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default(),
        cilium_pins: ["cilium", "tc/globals/cilium_lxc"].iter().any(|name| bpffs.join(name).exists()),
    };
    let mut found = judge(&seen);
    if let Some(error) = unseen {
        let text = error.to_string();
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "run as root"));
        found.push(Finding::bad("other-proxies", Level::Warn, what, remedy));
    }
    if !found.is_empty() {
        return found;
    }
    let text = match seen.translated {
        0 => "no trace of another one".to_owned(),
        count => format!("no trace of another one; netfilter translates {count} connections"),
    };
    vec![Finding::ok("other-proxies", text)]
}

/// Whether kube-proxy runs in this network namespace, as far as its processes can be seen.
pub fn kube_proxy_runs() -> bool {
    processes().iter().any(|name| name == KUBE_PROXY)
}

const KUBE_PROXY: &str = "kube-proxy";

fn judge(seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add =
        |level, found: String, remedy: &str| findings.push(Finding::bad("other-proxies", level, found, remedy));
    for name in [KUBE_PROXY, "cilium-agent", "kube-router"] {
        if seen.processes.iter().any(|process| process == name) {
            let remedy =
                "one proxy for each node: remove it (kube-proxy's DaemonSet; Cilium with kubeProxyReplacement=false)";
            add(Level::Fail, format!("{name} runs in this network namespace"), remedy);
        }
    }
    for mode in &seen.kube_proxy {
        let count = seen.translated;
        let found = format!("rules of kube-proxy ({mode}); netfilter translates {count} connections");
        add(Level::Warn, found, "once kube-proxy has stopped here: ballast cleanup --kube-proxy");
    }
    if seen.cilium_pins || seen.links.iter().any(|link| link == "cilium_host") {
        let remedy = "as a network only, with kubeProxyReplacement=false; gone, `cilium-dbg post-uninstall-cleanup`";
        add(Level::Warn, "programs or links of Cilium".to_owned(), remedy);
    }
    findings
}

/// Names of the processes that are in this network namespace, as far as they can be seen.
fn processes() -> Vec<String> {
    let namespace = |folder: PathBuf| fs::metadata(folder.join("ns/net")).map(|meta| (meta.dev(), meta.ino())).ok();
    let own = namespace("/proc/self".into());
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let here = folders.filter(|folder| own.is_some() && namespace(folder.clone()) == own);
    here.filter_map(|folder| Some(fs::read_to_string(folder.join("comm")).ok()?.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proxy_is_known_by_what_it_leaves() {
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mode = text(&["nftables: table kube-proxy of ip"]);
        let cases = [
            (Seen { processes: text(&["bash", "kube-proxy"]), ..Seen::default() }, Level::Fail, "kube-proxy runs"),
            (Seen { kube_proxy: mode, translated: 3, ..Seen::default() }, Level::Warn, "translates 3 connections"),
            (Seen { cilium_pins: true, ..Seen::default() }, Level::Warn, "Cilium"),
        ];
        for (seen, level, words) in cases {
            let [finding] = judge(&seen).try_into().expect("one finding");
            assert!(finding.level == level && finding.found.contains(words), "{finding:?}");
            assert!(finding.remedy.is_some());
        }
        let harmless = Seen { processes: text(&["bash"]), links: text(&["lo"]), translated: 3, ..Seen::default() };
        assert!(judge(&harmless).is_empty());
    }
}
