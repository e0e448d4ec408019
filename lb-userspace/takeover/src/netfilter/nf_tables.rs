//! nf_tables: tables, chains and rules as the kernel lists them, and the messages that remove them. iptables-nft keeps its rules here, too.

use std::io;

use netlink_packet_core::parse_u64_be;

use lb_netlink::{
    Attributes, Family, Message, Socket, attributes, find, is_without,
    nf_tables::{self, DELETE_CHAIN, DELETE_RULE, DELETE_TABLE, GET_RULE, GET_TABLE, attribute},
    text,
};

/// How many messages one transaction has at most: it is one packet to the kernel.
const MOST_OF_A_BATCH: usize = 512;

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
        let Some(mut socket) = Socket::netfilter()? else { return Ok(Self::default()) };
        let tables = Message::nfnetlink(GET_TABLE, 0, Attributes::default());
        let tables = socket.list(tables, |message| table(&message, attribute::TABLE_NAME));
        Ok(Self {
            tables: or_none(tables)?,
            chains: or_none(nf_tables::chains(&mut socket))?.into_iter().filter_map(chain).collect(),
            rules: Vec::new(),
        })
    }

    /// The rules of these tables, too.
    pub fn with_rules_of(wanted: impl Fn(&Self, &Table) -> bool) -> io::Result<Self> {
        let mut all = Self::names()?;
        let tables: Vec<Table> = all.tables.iter().filter(|table| wanted(&all, table)).cloned().collect();
        let Some(mut socket) = Socket::netfilter()? else { return Ok(all) };
        for table in tables {
            let named = Attributes::default().text(attribute::RULE_TABLE, &table.name);
            // Older kernels list the rules of all tables.
            let rules = socket.list(Message::nfnetlink(GET_RULE, table.family.number(), named), |message| {
                rule(&message).filter(|rule| rule.table == table)
            });
            all.rules.extend(or_none(rules)?);
        }
        Ok(all)
    }
}

fn or_none<T>(listed: io::Result<Vec<T>>) -> io::Result<Vec<T>> {
    if listed.as_ref().is_err_and(is_without) { Ok(Vec::new()) } else { listed }
}

/// A family as nftables names it.
pub fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}

/// What is removed from nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesetEdit {
    DeleteTable(Table),
    DeleteRule(Table, String, u64),
    /// Deletes all rules of a chain.
    Flush(Table, String),
    DeleteChain(Table, String),
}

impl RulesetEdit {
    fn message(&self) -> Message {
        let (kind, table, attributes) = match self {
            Self::DeleteTable(table) => (DELETE_TABLE, table, Attributes::default()),
            Self::DeleteRule(table, chain, handle) => {
                let rule = Attributes::default().text(attribute::RULE_CHAIN, chain);
                (DELETE_RULE, table, rule.with(attribute::RULE_HANDLE, &handle.to_be_bytes()))
            }
            Self::Flush(table, chain) => (DELETE_RULE, table, Attributes::default().text(attribute::RULE_CHAIN, chain)),
            Self::DeleteChain(table, name) => {
                (DELETE_CHAIN, table, Attributes::default().text(attribute::CHAIN_NAME, name))
            }
        };
        // Tables, chains and rules have their table's name under one number.
        Message::nfnetlink(kind, table.family.number(), attributes.text(attribute::TABLE_NAME, &table.name))
    }
}

/// Makes the changes in their order. Each group of [`MOST_OF_A_BATCH`] takes place as a whole or not at all.
pub fn apply(changes: &[RulesetEdit]) -> io::Result<()> {
    let groups = changes.chunks(MOST_OF_A_BATCH);
    groups.map(|group| group.iter().map(|change| (0, change.message())).collect()).try_for_each(nf_tables::apply)
}

fn table(message: &Message, name: u16) -> Option<Table> {
    Some(Table { family: family(message.family())?, name: text(&message.attributes, name) })
}

fn family(number: u8) -> Option<Family> {
    Family::ALL.into_iter().find(|family| family.number() == number)
}

fn chain(found: nf_tables::Chain) -> Option<Chain> {
    let table = Table { family: family(found.family)?, name: found.table };
    Some(Chain { table, name: found.name, base: found.hook.is_some() })
}

fn rule(message: &Message) -> Option<Rule> {
    let of_rule = &message.attributes;
    let verdict = |(_, expression): (u16, &[u8])| {
        let data = find(expression, attribute::EXPRESSION_DATA).and_then(|data| find(data, attribute::IMMEDIATE_DATA));
        let name = text(data.and_then(|data| find(data, attribute::DATA_VERDICT))?, attribute::VERDICT_CHAIN);
        Some(name).filter(|name| !name.is_empty() && text(expression, attribute::EXPRESSION_NAME) == "immediate")
    };
    let expressions = attributes(find(of_rule, attribute::RULE_EXPRESSIONS).unwrap_or_default());
    Some(Rule {
        table: table(message, attribute::RULE_TABLE)?,
        chain: text(of_rule, attribute::RULE_CHAIN),
        handle: parse_u64_be(find(of_rule, attribute::RULE_HANDLE)?).ok()?,
        leads_to: expressions.filter_map(verdict).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_tells_which_chain_it_leads_to() {
        let new = Attributes::default;
        let verdict = new().with(1, &(-3_i32).to_be_bytes()).text(attribute::VERDICT_CHAIN, "KUBE-SERVICES");
        let data =
            new().with(1, &[0; 4]).nest(attribute::IMMEDIATE_DATA, &new().nest(attribute::DATA_VERDICT, &verdict));
        let expression = |name, data: &Attributes| {
            new().text(attribute::EXPRESSION_NAME, name).nest(attribute::EXPRESSION_DATA, data)
        };
        let comment = new().text(1, "comment").with(attribute::IMMEDIATE_DATA, &[0; 4]);
        let all = new().nest(1, &expression("match", &comment)).nest(1, &expression("immediate", &data));
        let attributes = new()
            .text(attribute::RULE_TABLE, "nat")
            .text(attribute::RULE_CHAIN, "PREROUTING")
            .with(attribute::RULE_HANDLE, &7_u64.to_be_bytes())
            .nest(attribute::RULE_EXPRESSIONS, &all);
        let table = Table { family: Family::V4, name: "nat".to_owned() };
        let leads_to = vec!["KUBE-SERVICES".to_owned()];
        let expected = Rule { table, chain: "PREROUTING".to_owned(), handle: 7, leads_to };
        let message = |attributes| Message::nfnetlink(nf_tables::NEW_RULE, 2, attributes);
        assert_eq!(rule(&message(attributes.clone())), Some(expected));
        for length in 0..attributes.len() {
            let _ = rule(&message(attributes[..length].into()));
        }
    }
}
