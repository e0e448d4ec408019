//! Which chains, tables and sets are kube-proxy's, and how its chains leave a table of iptables: jumps first, then rules, then chains.
//!
//! Names of others begin with `KUBE-`, too, and stay. The kubelet has `KUBE-KUBELET-CANARY`, `KUBE-IPTABLES-HINT`, and `KUBE-FIREWALL` of the
//! table `filter`. kube-proxy makes that chain as well, so it goes where there is no kubelet. kube-router has `KUBE-POD-FW-`, `KUBE-NWPLCY-`,
//! `KUBE-ROUTER-`, and the sets `KUBE-SRC-` and `KUBE-DST-`.

use std::collections::{BTreeMap, BTreeSet};

/// Its table in nftables mode, in both families.
pub const TABLE: &str = "kube-proxy";
/// Tables of iptables that it writes to.
const TABLES: [&str; 3] = ["nat", "filter", "mangle"];
/// The link that has its addresses in IPVS mode.
pub const IPVS_LINK: &str = "kube-ipvs0";
/// Chains of `pkg/proxy/iptables` and `pkg/proxy/ipvs` of Kubernetes 1.36, and those of earlier versions.
const CHAINS: [&str; 19] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-NODE-PORT",
    "KUBE-POSTROUTING",
    MARK,
    "KUBE-MARK-DROP",
    "KUBE-FORWARD",
    "KUBE-LOAD-BALANCER",
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SOURCE-RANGES-FIREWALL",
    "KUBE-PROXY-CANARY",
    "KUBE-HOSTPORTS",
    "KUBE-PORTALS-HOST",
    "KUBE-PORTALS-CONTAINER",
    "KUBE-NODEPORT-HOST",
    "KUBE-NODEPORT-CONTAINER",
];
/// A chain for each service port, policy or endpoint.
pub const SERVICE_PREFIX: &str = "KUBE-SVC-";
const CHAIN_PREFIXES: [&str; 6] = [SERVICE_PREFIX, "KUBE-SVL-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-FW-", "KUBE-XLB-"];
/// Marks packets that [`MASQUERADE`] masquerades. Others use the mark: the CNI plug-in `portmap` for host ports.
const MARK: &str = "KUBE-MARK-MASQ";
const MASQUERADE: &str = "KUBE-POSTROUTING";
/// Sets of IPVS mode; those of IPv6 begin with `KUBE-6-`.
const SETS: [&str; 16] = [
    "LOOP-BACK",
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-SOURCE-IP",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-SCTP-HASH",
    "HEALTH-CHECK-NODE-PORT",
];
const SET_OF_ADDRESSES: &str = "IPVS-IPS";

/// The chain by which the kubelet finds out that its rules are gone.
pub const KUBELETS: &str = "KUBE-KUBELET-CANARY";
const FIREWALL: &str = "KUBE-FIREWALL";

/// Whether kube-proxy made the chain in this table, which is one of iptables. `kubelet`: one has rules here, too.
pub fn is_chain(table: &str, chain: &str, kubelet: bool) -> bool {
    if !TABLES.contains(&table) {
        return false;
    }
    let of_service = CHAIN_PREFIXES.iter().any(|prefix| chain.starts_with(prefix));
    of_service || CHAINS.contains(&chain) || (chain == FIREWALL && !(kubelet && table == "filter"))
}

/// Whether the chain is one that kube-proxy makes for a service port with endpoints.
pub fn is_of_service(table: &str, chain: &str) -> bool {
    match table {
        TABLE => chain.starts_with("service-"),
        "nat" => chain.starts_with(SERVICE_PREFIX),
        _ => false,
    }
}

/// Chains in words: those that each service has are counted by their prefix.
pub fn summary<'a>(chains: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for chain in chains {
        let prefix = CHAIN_PREFIXES.iter().find(|prefix| chain.starts_with(**prefix));
        *counts.entry(prefix.copied().unwrap_or(chain)).or_default() += 1;
    }
    let text = |(name, count): (&str, usize)| {
        if CHAIN_PREFIXES.contains(&name) { format!("{name}* ({count})") } else { name.to_owned() }
    };
    counts.into_iter().map(text).collect()
}

/// Whether kube-proxy made the ipset.
pub fn is_set(name: &str) -> bool {
    let Some(name) = name.strip_prefix("KUBE-") else { return false };
    let name = name.strip_prefix("6-").unwrap_or(name);
    SETS.contains(&name) || name == SET_OF_ADDRESSES
}

/// A chain of one table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain<'a> {
    pub name: &'a str,
    /// Packets enter it by themselves.
    pub base: bool,
}

/// A rule of one table of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a, Id> {
    pub chain: &'a str,
    pub leads_to: &'a [String],
    pub id: Id,
}

/// What to remove of a table, in this order, and what stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal<'a, Id> {
    /// Rules of base chains that lead to chains of kube-proxy.
    pub jumps: Vec<Rule<'a, Id>>,
    pub chains: BTreeSet<&'a str>,
    /// Chains of kube-proxy that chains of others use, with the chain that does.
    pub kept: Vec<(&'a str, &'a str)>,
}

impl<'a, Id: Copy> Removal<'a, Id> {
    pub fn of(table: &str, kubelet: bool, chains: &[Chain<'a>], rules: &[Rule<'a, Id>]) -> Self {
        let ours =
            |name: &str| is_chain(table, name, kubelet) && chains.iter().any(|chain| chain.name == name && !chain.base);
        let is_base = |name: &str| chains.iter().any(|chain| chain.name == name && chain.base);
        let mut remaining: BTreeSet<&str> =
            chains.iter().filter(|chain| ours(chain.name)).map(|chain| chain.name).collect();
        let mut kept: Vec<(&str, &str)> = Vec::new();
        // What chains of others use stays, and what that leads to.
        loop {
            let used = rules.iter().filter(|rule| !is_base(rule.chain) && !remaining.contains(rule.chain));
            let mut used = used.flat_map(|rule| rule.leads_to.iter().map(|name| (name.as_str(), rule.chain)));
            let masquerades = || kept.iter().any(|(name, _)| *name == MARK).then_some((MASQUERADE, MARK));
            let found = used.find(|(name, _)| remaining.contains(name));
            let found = found.or_else(|| masquerades().filter(|(name, _)| remaining.contains(name)));
            let Some((name, by)) = found else { break };
            // The set holds the name as long as the chains live.
            let Some(name) = remaining.take(name) else { break };
            kept.push((name, by));
        }
        let leads_away = |rule: &&Rule<'a, Id>| rule.leads_to.iter().any(|name| remaining.contains(name.as_str()));
        let jumps = rules.iter().filter(|rule| is_base(rule.chain)).filter(leads_away).copied().collect();
        Self { jumps, chains: remaining, kept }
    }

    pub fn is_empty(&self) -> bool {
        self.jumps.is_empty() && self.chains.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_of_the_kubelet_and_of_kube_router_are_not_kube_proxys() {
        for name in ["KUBE-SERVICES", "KUBE-SEP-AYCN5HPXMIRJNJXU", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY"] {
            assert!(is_chain("nat", name, true) && is_chain("filter", name, true), "{name}");
        }
        assert!(!is_chain("mine", "KUBE-SERVICES", true), "no table of iptables");
        assert!(is_chain("nat", FIREWALL, true) && !is_chain("filter", FIREWALL, true));
        assert!(is_chain("filter", FIREWALL, false), "there is no kubelet that it belongs to");
        for name in [KUBELETS, "KUBE-IPTABLES-HINT", "KUBE-POD-FW-X", "KUBE-NWPLCY-X", "KUBE-ROUTER-INPUT"] {
            assert!(!is_chain("filter", name, false) && !is_chain("mangle", name, false), "{name}");
        }
        assert!(is_set("KUBE-CLUSTER-IP") && is_set("KUBE-6-NODE-PORT-TCP") && is_set("KUBE-IPVS-IPS"));
        assert!(!is_set("KUBE-SRC-ABC") && !is_set("mine"));
    }

    #[test]
    fn chains_of_services_are_counted_and_the_others_named() {
        let text = summary(["KUBE-SERVICES", "KUBE-SEP-A", "KUBE-SEP-B"]);
        assert_eq!(text, ["KUBE-SEP-* (2)", "KUBE-SERVICES"]);
    }

    #[test]
    fn jumps_of_base_chains_and_chains_go_and_other_rules_stay() {
        let (services, endpoint, mine) = (names(&["KUBE-SERVICES"]), names(&["KUBE-SEP-A"]), names(&["MINE"]));
        let chain = |name, base| Chain { name, base };
        let chains = [
            chain("PREROUTING", true),
            chain("MINE", false),
            chain("KUBE-SERVICES", false),
            chain("KUBE-SEP-A", false),
            chain("KUBE-KUBELET-CANARY", false),
        ];
        let rule = |chain, leads_to, id| Rule { chain, leads_to, id };
        let rules = [
            rule("PREROUTING", &services[..], 1),
            rule("PREROUTING", &mine[..], 2),
            rule("KUBE-SERVICES", &endpoint[..], 3),
            rule("MINE", &[], 4),
        ];
        let removal = Removal::of("nat", true, &chains, &rules);
        assert_eq!(removal.jumps.iter().map(|rule| rule.id).collect::<Vec<_>>(), [1]);
        assert_eq!(removal.chains, BTreeSet::from(["KUBE-SERVICES", "KUBE-SEP-A"]));
        assert_eq!(removal.kept, []);
    }

    #[test]
    fn a_chain_that_others_use_stays_and_what_it_needs_with_it() {
        let (mark, masquerade) = (names(&["KUBE-MARK-MASQ"]), names(&["KUBE-POSTROUTING"]));
        let chains = [
            Chain { name: "POSTROUTING", base: true },
            Chain { name: "CNI-HOSTPORT", base: false },
            Chain { name: "KUBE-MARK-MASQ", base: false },
            Chain { name: "KUBE-POSTROUTING", base: false },
            Chain { name: "KUBE-SERVICES", base: false },
        ];
        let rules = [
            Rule { chain: "CNI-HOSTPORT", leads_to: &mark, id: 1 },
            Rule { chain: "KUBE-SERVICES", leads_to: &mark, id: 2 },
            Rule { chain: "POSTROUTING", leads_to: &masquerade, id: 3 },
        ];
        let removal = Removal::of("nat", true, &chains, &rules);
        assert_eq!(removal.kept, [("KUBE-MARK-MASQ", "CNI-HOSTPORT"), ("KUBE-POSTROUTING", "KUBE-MARK-MASQ")]);
        assert_eq!(removal.chains, BTreeSet::from(["KUBE-SERVICES"]));
        assert!(removal.jumps.is_empty(), "{removal:?}");
    }
}
