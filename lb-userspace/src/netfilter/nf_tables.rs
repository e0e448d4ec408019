//! nf_tables: tables, chains and rules as the kernel lists them, and the messages that remove them. iptables-nft keeps its rules here, too.

use std::io;

use crate::netlink::{Request, Socket, attributes, find, flag, is_without, text};

/// How many messages one transaction has at most: it is one packet to the kernel.
const MOST_OF_A_BATCH: usize = 512;
/// Of include/uapi/linux/netfilter/nfnetlink.h and nf_tables.h.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NF_TABLES: u16 = 10;
const SUBSYSTEM: u16 = NF_TABLES << 8;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const IMMEDIATE_DATA: u16 = 2;
const DATA_VERDICT: u16 = 2;
const VERDICT_CHAIN: u16 = 2;

/// An address family of netfilter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ip,
    Ip6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::Ip, Self::Ip6];

    pub fn number(self) -> u8 {
        match self {
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.number() == number)
    }
}

/// A table of one of the two families.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    pub family: Family,
    pub name: String,
}

/// A chain, and whether packets enter it by themselves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chain {
    pub table: Table,
    pub name: String,
    pub base: bool,
}

/// A rule, and the chains that it leads to. Jumps by a verdict map are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub table: Table,
    pub chain: String,
    pub handle: u64,
    pub leads_to: Vec<String>,
}

/// What the two families hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ruleset {
    pub tables: Vec<Table>,
    pub chains: Vec<Chain>,
    pub rules: Vec<Rule>,
}

impl Ruleset {
    /// Tables and chains. Without nf_tables there are none.
    pub fn names() -> io::Result<Self> {
        let mut all = Self::default();
        list(request(GET_TABLE, flag::DUMP, 0), |family, attributes| {
            all.tables.extend(table(family, attributes, TABLE_NAME));
        })?;
        list(request(GET_CHAIN, flag::DUMP, 0), |family, attributes| all.chains.extend(chain(family, attributes)))?;
        Ok(all)
    }

    /// The rules of these tables, too.
    pub fn with_rules_of(wanted: impl Fn(&Self, &Table) -> bool) -> io::Result<Self> {
        let mut all = Self::names()?;
        let tables: Vec<Table> = all.tables.iter().filter(|table| wanted(&all, table)).cloned().collect();
        for table in tables {
            let request = request(GET_RULE, flag::DUMP, table.family.number()).text(RULE_TABLE, &table.name);
            // Older kernels list the rules of all tables.
            list(request, |family, attributes| {
                all.rules.extend(rule(family, attributes).filter(|rule| rule.table == table));
            })?;
        }
        Ok(all)
    }
}

fn list(request: Request, mut take: impl FnMut(u8, &[u8])) -> io::Result<()> {
    let Some(mut socket) = Socket::netfilter()? else { return Ok(()) };
    match socket.converse(&request.bytes(), |_, family, attributes| take(family, attributes)) {
        Err(error) if is_without(&error) => Ok(()),
        listed => listed,
    }
}

/// A change of nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    DeleteTable(Table),
    DeleteRule(Table, String, u64),
    /// Deletes all rules of a chain.
    Flush(Table, String),
    DeleteChain(Table, String),
}

impl Change {
    fn request(&self) -> Request {
        let of = |kind, table: &Table, attribute| request(kind, 0, table.family.number()).text(attribute, &table.name);
        match self {
            Self::DeleteTable(table) => of(DELETE_TABLE, table, TABLE_NAME),
            Self::DeleteRule(table, chain, handle) => {
                of(DELETE_RULE, table, RULE_TABLE).text(RULE_CHAIN, chain).with(RULE_HANDLE, &handle.to_be_bytes())
            }
            Self::Flush(table, chain) => of(DELETE_RULE, table, RULE_TABLE).text(RULE_CHAIN, chain),
            Self::DeleteChain(table, name) => of(DELETE_CHAIN, table, CHAIN_TABLE).text(CHAIN_NAME, name),
        }
    }
}

/// Makes the changes in their order. Each group of [`MOST_OF_A_BATCH`] takes place as a whole or not at all.
pub fn apply(changes: &[Change]) -> io::Result<()> {
    for group in changes.chunks(MOST_OF_A_BATCH) {
        // One batch for each socket: the kernel may answer a refused one more than once.
        let Some(mut socket) = Socket::netfilter()? else { return Ok(()) };
        socket.converse(&batch(group), |_, _, _| ())?;
    }
    Ok(())
}

/// Errors come unasked; the last message says that there was none.
fn batch(changes: &[Change]) -> Vec<u8> {
    let border = |kind| Request::with_resource(kind, 0, 0, NF_TABLES).bytes();
    let mut bytes = border(BATCH_BEGIN);
    for (number, change) in changes.iter().enumerate() {
        let is_last = number + 1 == changes.len();
        bytes.extend(change.request().flagged(if is_last { flag::ACK } else { 0 }).bytes());
    }
    bytes.extend(border(BATCH_END));
    bytes
}

fn request(kind: u16, flags: u16, family: u8) -> Request {
    Request::nfnetlink(SUBSYSTEM | kind, flags, family)
}

fn table(family: u8, attributes: &[u8], name: u16) -> Option<Table> {
    Some(Table { family: Family::of(family)?, name: text(attributes, name) })
}

fn chain(family: u8, attributes: &[u8]) -> Option<Chain> {
    Some(Chain {
        table: table(family, attributes, CHAIN_TABLE)?,
        name: text(attributes, CHAIN_NAME),
        base: find(attributes, CHAIN_HOOK).is_some(),
    })
}

fn rule(family: u8, of_rule: &[u8]) -> Option<Rule> {
    let verdict = |(_, expression): (u16, &[u8])| {
        let data = find(expression, EXPRESSION_DATA).and_then(|data| find(data, IMMEDIATE_DATA));
        let name = text(data.and_then(|data| find(data, DATA_VERDICT))?, VERDICT_CHAIN);
        Some(name).filter(|name| !name.is_empty() && text(expression, EXPRESSION_NAME) == "immediate")
    };
    Some(Rule {
        table: table(family, of_rule, RULE_TABLE)?,
        chain: text(of_rule, RULE_CHAIN),
        handle: u64::from_be_bytes(find(of_rule, RULE_HANDLE)?.try_into().ok()?),
        leads_to: attributes(find(of_rule, RULE_EXPRESSIONS).unwrap_or_default()).filter_map(verdict).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{Answer, Nest, read};

    #[test]
    fn a_rule_tells_which_chain_it_leads_to() {
        let text = |text: &str| [text.as_bytes(), b"\0"].concat();
        let verdict = Nest::default().with(1, &(-3_i32).to_be_bytes()).with(VERDICT_CHAIN, &text("KUBE-SERVICES"));
        let value = Nest::default().nest(DATA_VERDICT, &verdict);
        let data = Nest::default().with(1, &[0; 4]).nest(IMMEDIATE_DATA, &value);
        let jump = Nest::default().with(EXPRESSION_NAME, &text("immediate")).nest(EXPRESSION_DATA, &data);
        let comment = Nest::default().with(1, &text("comment")).with(IMMEDIATE_DATA, &[0; 4]);
        let matches = Nest::default().with(EXPRESSION_NAME, &text("match")).nest(EXPRESSION_DATA, &comment);
        let bytes = request(6, 0, 2)
            .text(RULE_TABLE, "nat")
            .text(RULE_CHAIN, "PREROUTING")
            .with(RULE_HANDLE, &7_u64.to_be_bytes())
            .nest(RULE_EXPRESSIONS, &Nest::default().nest(1, &matches).nest(1, &jump))
            .bytes();
        let [Answer::Message { family, attributes, .. }] = read(&bytes)[..] else { panic!("one message") };
        let table = Table { family: Family::Ip, name: "nat".to_owned() };
        let leads_to = vec!["KUBE-SERVICES".to_owned()];
        assert_eq!(rule(family, attributes), Some(Rule { table, chain: "PREROUTING".to_owned(), handle: 7, leads_to }));
        for length in 0..attributes.len() {
            let _ = rule(family, &attributes[..length]);
        }
    }

    #[test]
    fn the_last_change_of_a_batch_alone_is_confirmed() {
        let table = Table { family: Family::Ip6, name: "kube-proxy".to_owned() };
        let bytes = batch(&[Change::DeleteTable(table.clone()), Change::DeleteTable(table)]);
        let mut flags = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            flags.push(u16::from_ne_bytes([bytes[at + 6], bytes[at + 7]]) & flag::ACK != 0);
            at += u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("a length")) as usize;
        }
        assert_eq!(flags, [false, false, true, false]);
    }
}
