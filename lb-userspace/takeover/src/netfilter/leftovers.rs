//! What kube-proxy has left on this node, in each of its modes, and its removal.

use std::{io, time::Duration};

use super::{
    ipset,
    kube_proxy::{self, Removal},
    legacy,
    nf_tables::{self, Ruleset, RulesetEdit, Table},
    translated,
    virtual_services::VirtualServices,
};
use crate::conntrack::nat_hooks;
use lb_netlink::Family;
use lb_tables::pause::pause;

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

pub(super) fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> NetfilterError {
    let action = action.into();
    move |error| NetfilterError { action, error }
}

/// What became of a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftoverOutcome {
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
    pub outcome: LeftoverOutcome,
    pub what: String,
}

/// What there is of kube-proxy.
#[derive(Debug, Default)]
pub struct Leftovers {
    rules: Ruleset,
    sets: Vec<String>,
    virtual_services: VirtualServices,
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
        let virtual_services = VirtualServices::find().map_err(failed("list IPVS services"))?;
        let legacy = legacy::find().map_err(failed("read the old iptables"))?;
        let has_kubelet = |family: &Family| {
            let chains = rules.chains.iter().filter(|chain| chain.table.family == *family);
            chains.clone().any(|chain| chain.name == kube_proxy::KUBELETS) || legacy::has_kubelet(*family)
        };
        let kubelets = Family::ALL.into_iter().filter(has_kubelet).collect();
        Ok(Self { rules, sets, virtual_services, legacy, kubelets })
    }

    /// Where there is something: modes of kube-proxy with what was found of them.
    pub fn modes(&self) -> Vec<String> {
        let mut modes = Vec::new();
        let tables: Vec<&str> = self.own_tables().map(|table| nf_tables::family_name(table.family)).collect();
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
        if self.virtual_services.link.is_some() || !self.sets.is_empty() {
            let (services, sets) = (self.virtual_services.services.len(), self.sets.len());
            modes.push(format!("IPVS: link kube-ipvs0 or sets KUBE-; {services} services, {sets} sets"));
        }
        modes
    }

    /// Whether the rules lead to services of the family. kube-proxy writes all those of a family at once, after it has listed all objects.
    pub fn serves(&self, family: Family) -> bool {
        let mut chains = self.rules.chains.iter().filter(|chain| chain.table.family == family);
        let mut virtual_services = self.virtual_services.services.iter();
        let by_rules = chains.any(|chain| kube_proxy::is_of_service(&chain.table.name, &chain.name));
        let is_v4 = family == Family::V4;
        by_rules || legacy::serves(family) || virtual_services.any(|service| service.address.is_ipv4() == is_v4)
    }

    /// Removes all of it; with `dry_run` only says so. While connections are translated, an empty NAT chain is kept for them.
    pub fn remove(&self, dry_run: bool) -> Result<Vec<Done>, NetfilterError> {
        let mut done = Vec::new();
        let translated = translated::list().map_err(|error| failed("list connections")(io::Error::other(error)))?;
        done.extend(keep_nat(translated.len(), dry_run)?);
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
        self.virtual_services.remove(&translated, dry_run, &mut done)?;
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
            first.push(RulesetEdit::DeleteTable(table.clone()));
            done.push(Done::removed(format!("table {} {}", nf_tables::family_name(table.family), table.name)));
        }
        for table in self.iptables_tables() {
            let (chains, rules) = of_table(&self.rules, table);
            let removal = Removal::of(&table.name, self.kubelets.contains(&table.family), &chains, &rules);
            let text = |what: String| format!("{} {} {what}", nf_tables::family_name(table.family), table.name);
            let delete = |rule: &kube_proxy::Rule<'_, u64>| {
                RulesetEdit::DeleteRule(table.clone(), rule.chain.to_owned(), rule.id)
            };
            first.extend(removal.jumps.iter().map(delete));
            let chains = || removal.chains.iter().map(|chain| (*chain).to_owned());
            then.extend(chains().map(|chain| RulesetEdit::Flush(table.clone(), chain)));
            then.extend(chains().map(|chain| RulesetEdit::DeleteChain(table.clone(), chain)));
            let summary = kube_proxy::summary(removal.chains.iter().copied());
            done.extend(summary.into_iter().map(|chain| Done::removed(format!("chain {}", text(chain)))));
            for (chain, by) in &removal.kept {
                let what = text(format!("{chain}: {by} uses it"));
                done.push(Done { outcome: LeftoverOutcome::Kept, what: format!("chain {what}") });
            }
        }
        if dry_run {
            return Ok(());
        }
        // Flushed in one transaction and deleted in the next ones, chains refer to none that is left.
        let changes: Vec<RulesetEdit> = first.into_iter().chain(flushes_first(then)).collect();
        nf_tables::apply(&changes).map_err(failed("remove rules of kube-proxy from nf_tables"))
    }
}

/// Connections are translated while any chain of `type nat` is there: an empty one is kept for them.
fn keep_nat(count: usize, dry_run: bool) -> Result<Option<Done>, NetfilterError> {
    let table = nat_hooks::TABLE;
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
        (true, _) => Some(Done { outcome: LeftoverOutcome::Kept, what: why }),
        (false, _) => Some(Done { outcome: LeftoverOutcome::Added, what: why }),
    })
}

impl Done {
    pub(super) fn removed(what: String) -> Self {
        Self { outcome: LeftoverOutcome::Removed, what }
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

fn flushes_first(changes: Vec<RulesetEdit>) -> impl Iterator<Item = RulesetEdit> {
    let (flushes, rest): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| matches!(change, RulesetEdit::Flush(..)));
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
        done.push(Done { outcome: LeftoverOutcome::Left, what });
        return Ok(());
    };
    done.extend(removed.into_iter().map(|chain| Done::removed(format!("chain (old iptables) {chain}"))));
    done.extend(
        kept.into_iter()
            .map(|what| Done { outcome: LeftoverOutcome::Kept, what: format!("chain (old iptables) {what}") }),
    );
    Ok(())
}

fn destroy(set: &str) -> io::Result<()> {
    for _ in 1..SET_TRIES {
        match ipset::destroy(set) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => pause(SET_PAUSE),
            destroyed => return destroyed,
        }
    }
    ipset::destroy(set)
}
