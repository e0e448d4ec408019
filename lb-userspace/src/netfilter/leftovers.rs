//! What kube-proxy has left on this node, in each of its modes, and its removal.

use std::{io, net::IpAddr, time::Duration};

use super::{
    ipset,
    ipvs::{Ipvs, VirtualService},
    kube_proxy::{self, IPVS_LINK, Removal},
    legacy,
    nf_tables::{self, Change, Family, Ruleset, Table},
    translated,
};
use crate::conntrack::nat_hooks;
use crate::netlink::{Request, Socket, flag};

/// Of include/uapi/linux/rtnetlink.h.
const DELETE_LINK: u16 = 17;
/// Node ports, as API servers give them out by default.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
/// A set is busy until the kernel has freed the rules that used it: how often it is tried, and how long between.
const SET_TRIES: u32 = 200;
const SET_PAUSE: Duration = Duration::from_millis(20);

/// The subject could not be read or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {error}; run as root, in the network namespace of the node")]
pub struct NetfilterError {
    action: String,
    error: io::Error,
}

fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> NetfilterError {
    let action = action.into();
    move |error| NetfilterError { action, error }
}

/// What became of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Removed,
    /// It is needed, as the text says.
    Kept,
    Added,
    /// It should go and could not: the text says why, and the remedy.
    Left,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: Kind,
    pub what: String,
}

/// What there is of kube-proxy.
#[derive(Debug, Default)]
pub struct Leftovers {
    rules: Ruleset,
    sets: Vec<String>,
    services: Vec<VirtualService>,
    ipvs_link: Option<u32>,
    legacy: Vec<legacy::Found>,
    /// The families in which a kubelet has rules.
    kubelets: Vec<Family>,
}

impl Leftovers {
    pub fn find() -> Result<Self, NetfilterError> {
        let of_iptables = |rules: &Ruleset, table: &Table| !removed_chains(rules, table, false).is_empty();
        let rules = Ruleset::with_rules_of(of_iptables).map_err(failed("list nf_tables"))?;
        let mut sets = ipset::names().map_err(failed("list ipsets"))?;
        sets.retain(|name| kube_proxy::is_set(name));
        let ipvs_link = nix::net::if_::if_nametoindex(IPVS_LINK).ok();
        let services = match ipvs_link {
            Some(_) => ipvs_services().map_err(failed("list IPVS services"))?,
            None => Vec::new(),
        };
        let legacy = legacy::find().map_err(failed("read the old iptables"))?;
        let has_kubelet = |family: &Family| {
            let chains = rules.chains.iter().filter(|chain| chain.table.family == *family);
            chains.clone().any(|chain| chain.name == kube_proxy::KUBELETS) || legacy::has_kubelet(*family)
        };
        let kubelets = Family::ALL.into_iter().filter(has_kubelet).collect();
        Ok(Self { rules, sets, services, ipvs_link, legacy, kubelets })
    }

    /// Where there is something: modes of kube-proxy with what was found of them.
    pub fn modes(&self) -> Vec<String> {
        let mut modes = Vec::new();
        let tables: Vec<&str> = self.own_tables().map(|table| table.family.name()).collect();
        if !tables.is_empty() {
            modes.push(format!("nftables: table kube-proxy of {}", tables.join(" and ")));
        }
        let of_iptables = self.iptables_tables();
        if !of_iptables.is_empty() {
            let chains: usize = of_iptables.iter().map(|table| self.chains_of(table).len()).sum();
            modes.push(format!("iptables (nf_tables): {chains} chains KUBE-"));
        }
        if !self.legacy.is_empty() {
            let tables: Vec<String> = self.legacy.iter().map(legacy::Found::text).collect();
            modes.push(format!("old iptables: chains KUBE- in {}", tables.join(", ")));
        }
        if self.ipvs_link.is_some() || !self.sets.is_empty() {
            let (services, sets) = (self.services.len(), self.sets.len());
            modes.push(format!("IPVS: link kube-ipvs0 or sets KUBE-; {services} services, {sets} sets"));
        }
        modes
    }

    /// Whether the rules lead to services of the family. kube-proxy writes all those of a family at once, after it has listed all objects.
    pub fn serves(&self, family: Family) -> bool {
        let mut chains = self.rules.chains.iter().filter(|chain| chain.table.family == family);
        let by_rules = chains.any(|chain| kube_proxy::is_of_service(&chain.table.name, &chain.name));
        let is_v4 = family == Family::Ip;
        by_rules || legacy::serves(family) || self.services.iter().any(|service| service.address.is_ipv4() == is_v4)
    }

    /// Removes all of it; with `dry_run` only says so. While connections are translated, an empty NAT chain is kept for them.
    pub fn remove(&self, dry_run: bool) -> Result<Vec<Done>, NetfilterError> {
        let mut done = Vec::new();
        done.extend(keep_nat(dry_run)?);
        self.remove_nf_tables(dry_run, &mut done)?;
        for found in &self.legacy {
            remove_legacy(found, self.kubelets.contains(&found.family), dry_run, &mut done)?;
        }
        for set in &self.sets {
            if !dry_run {
                destroy(set).map_err(failed(format!("destroy the ipset {set}")))?;
            }
            done.push(Done::removed(format!("ipset {set}")));
        }
        self.remove_ipvs(dry_run, &mut done)?;
        Ok(done)
    }

    fn own_tables(&self) -> impl Iterator<Item = &Table> {
        self.rules.tables.iter().filter(|table| table.name == kube_proxy::TABLE)
    }

    fn iptables_tables(&self) -> Vec<&Table> {
        self.rules.tables.iter().filter(|table| !self.chains_of(table).is_empty()).collect()
    }

    fn chains_of(&self, table: &Table) -> Vec<&str> {
        removed_chains(&self.rules, table, self.kubelets.contains(&table.family))
    }

    fn remove_nf_tables(&self, dry_run: bool, done: &mut Vec<Done>) -> Result<(), NetfilterError> {
        // All jumps go first: no packet enters a chain that is half removed.
        let (mut first, mut then) = (Vec::new(), Vec::new());
        for table in self.own_tables() {
            first.push(Change::DeleteTable(table.clone()));
            done.push(Done::removed(format!("table {} {}", table.family.name(), table.name)));
        }
        for table in self.iptables_tables() {
            let (chains, rules) = of_table(&self.rules, table);
            let removal = Removal::of(&table.name, self.kubelets.contains(&table.family), &chains, &rules);
            let text = |what: String| format!("{} {} {what}", table.family.name(), table.name);
            let delete =
                |rule: &kube_proxy::Rule<'_, u64>| Change::DeleteRule(table.clone(), rule.chain.to_owned(), rule.id);
            first.extend(removal.jumps.iter().map(delete));
            let chains = || removal.chains.iter().map(|chain| (*chain).to_owned());
            then.extend(chains().map(|chain| Change::Flush(table.clone(), chain)));
            then.extend(chains().map(|chain| Change::DeleteChain(table.clone(), chain)));
            let summary = kube_proxy::summary(removal.chains.iter().copied());
            done.extend(summary.into_iter().map(|chain| Done::removed(format!("chain {}", text(chain)))));
            for (chain, by) in &removal.kept {
                let what = text(format!("{chain}: {by} uses it"));
                done.push(Done { kind: Kind::Kept, what: format!("chain {what}") });
            }
        }
        if dry_run {
            return Ok(());
        }
        // Flushed in one transaction and deleted in the next ones, chains refer to none that is left.
        let changes: Vec<Change> = first.into_iter().chain(flushes_first(then)).collect();
        nf_tables::apply(&changes).map_err(failed("remove rules of kube-proxy from nf_tables"))
    }

    fn remove_ipvs(&self, dry_run: bool, done: &mut Vec<Done>) -> Result<(), NetfilterError> {
        let Some(link) = self.ipvs_link else { return Ok(()) };
        let addresses = addresses_of(IPVS_LINK);
        let mut ipvs = Ipvs::open().map_err(failed("open IPVS"))?;
        for service in &self.services {
            if !is_of_kube_proxy(service, &addresses) {
                let what = format!("IPVS service {}: its address is not on {IPVS_LINK}", service.text());
                done.push(Done { kind: Kind::Kept, what });
                continue;
            }
            if let Some(ipvs) = ipvs.as_mut().filter(|_| !dry_run) {
                ipvs.delete(service).map_err(failed(format!("delete the IPVS service {}", service.text())))?;
            }
            done.push(Done::removed(format!("IPVS service {}", service.text())));
        }
        if !dry_run {
            delete_link(link).map_err(failed(format!("delete the link {IPVS_LINK}")))?;
        }
        done.push(Done::removed(format!("link {IPVS_LINK}")));
        Ok(())
    }
}

/// Connections are translated while any chain of `type nat` is there: an empty one is kept for them.
fn keep_nat(dry_run: bool) -> Result<Option<Done>, NetfilterError> {
    let table = nat_hooks::TABLE;
    let counted: Result<usize, _> = Family::ALL.into_iter().map(translated::count).sum();
    let count = counted.map_err(|error| failed("list connections")(io::Error::other(error)))?;
    let is_kept = nat_hooks::is_kept().map_err(failed(format!("look for the table {table}")))?;
    if !dry_run && count > 0 {
        nat_hooks::keep().map_err(failed(format!("add the table {table}")))?;
    }
    if !dry_run && count == 0 {
        nat_hooks::release().map_err(failed(format!("delete the table {table}")))?;
    }
    let why = format!("table {table}: {count} connections are translated; run this again when none is");
    Ok(match (is_kept, count) {
        (true, 0) => Some(Done::removed(format!("table {table}: no connection is translated"))),
        (false, 0) => None,
        (true, _) => Some(Done { kind: Kind::Kept, what: why }),
        (false, _) => Some(Done { kind: Kind::Added, what: why }),
    })
}

impl Done {
    fn removed(what: String) -> Self {
        Self { kind: Kind::Removed, what }
    }
}

/// Chains of kube-proxy in a table of iptables.
fn removed_chains<'a>(rules: &'a Ruleset, table: &Table, kubelet: bool) -> Vec<&'a str> {
    let chains = rules.chains.iter().filter(|chain| chain.table == *table && !chain.base);
    chains.map(|chain| chain.name.as_str()).filter(|name| kube_proxy::is_chain(&table.name, name, kubelet)).collect()
}

type OfTable<'a> = (Vec<kube_proxy::Chain<'a>>, Vec<kube_proxy::Rule<'a, u64>>);

fn of_table<'a>(rules: &'a Ruleset, table: &Table) -> OfTable<'a> {
    let chains = rules.chains.iter().filter(|chain| chain.table == *table);
    let chains = chains.map(|chain| kube_proxy::Chain { name: &chain.name, base: chain.base });
    let of_table = rules.rules.iter().filter(|rule| rule.table == *table);
    let rules = of_table.map(|rule| kube_proxy::Rule { chain: &rule.chain, leads_to: &rule.leads_to, id: rule.handle });
    (chains.collect(), rules.collect())
}

fn flushes_first(changes: Vec<Change>) -> impl Iterator<Item = Change> {
    let (flushes, rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(|change| matches!(change, Change::Flush(..)));
    flushes.into_iter().chain(rest)
}

fn remove_legacy(
    found: &legacy::Found,
    kubelet: bool,
    dry_run: bool,
    done: &mut Vec<Done>,
) -> Result<(), NetfilterError> {
    let text = found.text();
    let Some((removed, kept)) = legacy::remove(found, kubelet, dry_run).map_err(failed(format!("change {text}")))?
    else {
        let what = format!(
            "chains KUBE- of the old {text}: iptables-legacy-save is not here; run `ballast cleanup --kube-proxy` on the host, \
             where iptables is installed"
        );
        done.push(Done { kind: Kind::Left, what });
        return Ok(());
    };
    done.extend(removed.into_iter().map(|chain| Done::removed(format!("chain (old iptables) {chain}"))));
    done.extend(kept.into_iter().map(|what| Done { kind: Kind::Kept, what: format!("chain (old iptables) {what}") }));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a command without a runtime waits for the kernel")]
fn destroy(set: &str) -> io::Result<()> {
    for _ in 1..SET_TRIES {
        match ipset::destroy(set) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(SET_PAUSE),
            destroyed => return destroyed,
        }
    }
    ipset::destroy(set)
}

fn ipvs_services() -> io::Result<Vec<VirtualService>> {
    Ipvs::open()?.map_or(Ok(Vec::new()), |mut ipvs| ipvs.services())
}

/// kube-proxy has all its addresses on its link, but for the node's own, at which it serves node ports.
fn is_of_kube_proxy(service: &VirtualService, addresses: &[IpAddr]) -> bool {
    addresses.contains(&service.address.ip()) || NODE_PORTS.contains(&service.address.port())
}

fn addresses_of(link: &str) -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten().filter(|found| found.interface_name == link);
    let address = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    all.filter_map(address).collect()
}

fn delete_link(index: u32) -> io::Result<()> {
    let Some(mut socket) = Socket::open(libc::NETLINK_ROUTE)? else { return Ok(()) };
    // `struct ifinfomsg`: the family and the kind before the index, flags behind it.
    let header = [[0; 4], index.to_ne_bytes(), [0; 4], [0; 4]].concat();
    socket.converse(&Request::with_header(DELETE_LINK, flag::ACK, &header).bytes(), |_, _, _| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipvs_services_of_others_are_not_kube_proxys() {
        let service = |address: &str| VirtualService { address: address.parse().expect("an address"), protocol: 6 };
        let link = ["10.96.0.1".parse().expect("an address")];
        assert!(is_of_kube_proxy(&service("10.96.0.1:443"), &link));
        assert!(is_of_kube_proxy(&service("192.0.2.1:30080"), &link), "a node port");
        assert!(!is_of_kube_proxy(&service("192.0.2.1:6443"), &link), "a load balancer of the API server");
    }
}
