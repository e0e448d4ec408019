//! Other proxies on the node, running or gone: two of them would both translate the same connections.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{Finding, Level, nft};

/// What was seen of others.
#[derive(Debug, Default)]
struct Seen {
    /// Names of processes in this network namespace.
    processes: Vec<String>,
    nftables: Vec<nft::Named>,
    /// Names of the tables of the old iptables in use.
    iptables: Vec<String>,
    links: Vec<String>,
    /// Files of Cilium's among the pins.
    cilium_pins: bool,
}

/// Looks for them.
pub(super) fn examine(bpffs: &Path) -> Vec<Finding> {
    let (nftables, unseen) = match nft::list() {
        Ok(found) => (found, None),
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => (Vec::new(), None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let mut found = judge(&Seen {
        processes: processes(),
        nftables,
        iptables: ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"]
            .iter()
            .flat_map(|path| lines(path))
            .collect(),
        links: nix::net::if_::if_nameindex()
            .map(|all| all.iter().map(|link| link.name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default(),
        cilium_pins: ["cilium", "tc/globals/cilium_lxc"].iter().any(|name| bpffs.join(name).exists()),
    });
    if let Some(error) = unseen {
        let remedy = "run as root";
        found.push(Finding::bad("other-proxies", Level::Warn, format!("could not look at nftables: {error}"), remedy));
    }
    if found.is_empty() { vec![Finding::ok("other-proxies", "no trace of another one")] } else { found }
}

fn judge(seen: &Seen) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add =
        |level, found: String, remedy: &str| findings.push(Finding::bad("other-proxies", level, found, remedy));
    for name in ["kube-proxy", "cilium-agent", "kube-router"] {
        if seen.processes.iter().any(|process| process == name) {
            let remedy =
                "one proxy for each node: remove it (kube-proxy's DaemonSet; Cilium with kubeProxyReplacement=false)";
            add(Level::Fail, format!("{name} runs in this network namespace"), remedy);
        }
    }
    if seen.nftables.iter().any(|named| named.table == "kube-proxy") {
        let remedy = "kube-proxy --cleanup, or nft delete table ip kube-proxy, and ip6";
        add(Level::Warn, "rules of kube-proxy (nftables: table kube-proxy)".to_owned(), remedy);
    }
    if let Some(named) = seen.nftables.iter().find(|named| named.chain.starts_with("KUBE-SERVICES")) {
        let remedy =
            "kube-proxy --cleanup, or iptables-save without the lines of KUBE- into iptables-restore, and ip6tables";
        add(Level::Warn, format!("rules of kube-proxy (iptables: {} in table {})", named.chain, named.table), remedy);
    }
    if seen.iptables.iter().any(|table| table == "nat") {
        let remedy = "iptables-legacy-save -t nat | grep KUBE- must say nothing; else kube-proxy --cleanup";
        add(Level::Warn, "rules of the old iptables translate addresses: they may be kube-proxy's".to_owned(), remedy);
    }
    if seen.links.iter().any(|link| link == "kube-ipvs0") {
        let remedy = "kube-proxy --cleanup, or ipvsadm -C and ip link delete kube-ipvs0";
        add(Level::Warn, "services of kube-proxy in IPVS mode (link kube-ipvs0)".to_owned(), remedy);
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

fn lines(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_proxy_is_known_by_what_it_leaves() {
        let named = |table: &str, chain: &str| nft::Named { table: table.to_owned(), chain: chain.to_owned() };
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let cases = [
            (Seen { processes: text(&["bash", "kube-proxy"]), ..Seen::default() }, Level::Fail, "kube-proxy runs"),
            (Seen { nftables: vec![named("kube-proxy", "")], ..Seen::default() }, Level::Warn, "nftables"),
            (Seen { nftables: vec![named("nat", "KUBE-SERVICES")], ..Seen::default() }, Level::Warn, "iptables"),
            (Seen { iptables: text(&["filter", "nat"]), ..Seen::default() }, Level::Warn, "old iptables"),
            (Seen { links: text(&["lo", "kube-ipvs0"]), ..Seen::default() }, Level::Warn, "IPVS"),
            (Seen { cilium_pins: true, ..Seen::default() }, Level::Warn, "Cilium"),
        ];
        for (seen, level, words) in cases {
            let [finding] = judge(&seen).try_into().expect("one finding");
            assert!(finding.level == level && finding.found.contains(words), "{finding:?}");
            assert!(finding.remedy.is_some());
        }
        let harmless = Seen { processes: text(&["bash"]), links: text(&["lo"]), ..Seen::default() };
        assert!(judge(&harmless).is_empty());
        // Others use nftables, too.
        assert!(judge(&Seen { nftables: vec![named("filter", "input")], ..Seen::default() }).is_empty());
    }
}
